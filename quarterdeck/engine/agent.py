"""The built-in agent as a caller sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from quarterdeck import events as ev
from quarterdeck.engine.conversation import messages_of
from quarterdeck.engine.decisions import decided, respond
from quarterdeck.engine.errors import InvalidOption, TurnNotFinished
from quarterdeck.engine.message import Message
from quarterdeck.engine.runtime import Core
from quarterdeck.engine.subscription import Subscription
from quarterdeck.engine.tools.base import Tool
from quarterdeck.events import BY_NAME, Image, Json, Todo, TokenUsage
from quarterdeck.kernel.command_results import Decided, Dropped, Receipt, Steered
from quarterdeck.kernel.commands import MODES

RunState = Literal["idle", "running", "streaming", "executing_tools"]


class AgentStatus(Struct, frozen=True, kw_only=True):
    """What an agent is doing. `state` is 001's; while a call is held it is idle, and `approvals` says so."""

    session_id: str
    state: RunState
    activity: str
    phase: str
    model: str
    #: Turns since it was opened.
    turns: int
    #: Calls that run now.
    tools: tuple[str, ...]
    #: Names of open approvals and questions.
    approvals: tuple[str, ...]
    questions: tuple[str, ...]
    queued: int
    steering: int
    messages: int
    usage: TokenUsage
    todos: tuple[Todo, ...]


class Agent:
    """One agent. Commands return when what they did is durable, if there is a log; what comes of it, events tell."""

    __slots__ = ("_core",)

    def __init__(self, core: Core) -> None:
        self._core = core

    @property
    def session_id(self) -> str:
        return self._core.session_id

    @property
    def model(self) -> str:
        return self._core.model_name

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation as the model reads it."""
        return messages_of(self._core.journal.conversation)

    @property
    def is_busy(self) -> bool:
        """Whether a turn is open, at work or held."""
        return self._core.turn is not None

    @property
    def tools(self) -> tuple[str, ...]:
        return tuple(self._core.tools)

    async def prompt(
        self, text: str, *, images: Sequence[Image] = (), message_id: str = "", supersede: bool = False
    ) -> Receipt:
        """Begins a turn, or waits for the open one to end. `supersede` closes an approval that is open and goes first."""
        return await self._core.prompt(text, tuple(images), message_id, supersede)

    async def steer(self, text: str, *, ref: str = "", images: Sequence[Image] = ()) -> Steered:
        """A text for the turn under way: merged before its next request. QueueFull, SteeringRefused."""
        return await self._core.steer(text, ref, tuple(images))

    async def abort(
        self,
        reason: str | None = None,
        *,
        kill_tools: Literal["killable", "all", "none"] = "killable",
        clear_queue: bool = False,
    ) -> Dropped:
        """Ends the turn under way; the texts that were dropped."""
        if kill_tools not in ("killable", "all", "none"):
            raise InvalidOption(f"kill_tools cannot be {kill_tools!r}", "It is killable, all or none.")
        return await self._core.abort(reason, kill_tools, clear_queue)

    async def approve(
        self, gate: str = "", *, auto_resume: bool = True, option: str = "", by: str = "user", reason: str = ""
    ) -> Decided:
        """The held call may run. Without `auto_resume` it may run when it comes again, and the turn ends."""
        return await decided(self._core, gate, "approved", by, reason, auto_resume, option)

    async def reject(
        self, gate: str = "", *, auto_resume: bool = False, option: str = "", by: str = "user", reason: str = ""
    ) -> Decided:
        """The held call may not run. The turn ends, or with `auto_resume` goes on without the call."""
        return await decided(self._core, gate, "rejected", by, reason, auto_resume, option)

    async def respond(self, response: Json, ref: str = "", *, by: str = "user") -> Decided:
        """The answer to a question of the agent: to the oldest one, or to the one that is named."""
        return await respond(self._core, response, ref, by)

    async def switch_model(self, model: str, provider_opts: Mapping[str, Json] | None = None) -> bool:
        """The next turn uses another model. False when it is the same one."""
        self._core.alive()
        changed = self._core.switch(model, provider_opts)
        await self._core.journal.flush()
        return changed

    async def switch_mode(self, mode: str) -> None:
        """How much it may do unasked, from the next call on."""
        self._core.alive()
        if mode not in MODES:
            raise InvalidOption(f"there is no mode {mode!r}", f"Modes: {', '.join(MODES)}.")
        self._core.mode = mode
        self._core.journal.write((ev.SettingChanged(mode=mode),), "user")
        await self._core.journal.flush()

    async def attach_tool(self, *tools: Tool, detach: Collection[str] = ()) -> None:
        """From the next request on. Several tools, or tools that go as others come, change in one step."""
        await self._change_tools(tools, tuple(detach))

    async def detach_tool(self, *names: str, attach: Sequence[Tool] = ()) -> None:
        """The model may still call it once; it is told that the tool is gone."""
        await self._change_tools(attach, names)

    async def _change_tools(self, attach: Sequence[Tool], detach: Sequence[str]) -> None:
        core = self._core
        core.alive()
        missing = [name for name in detach if name not in core.tools]
        if missing:
            raise InvalidOption(f"there is no tool {', '.join(missing)}", f"Tools: {', '.join(core.tools) or 'none'}.")
        changed = core.change_tools(attach, detach)
        if len(attach) + len(detach) == 1:
            body = ev.ToolAttached(name=attach[0].name) if attach else ev.ToolDetached(name=detach[0])
            core.journal.write((body,), "user")
        elif attach or detach:
            core.journal.write((changed,), "user")
        await core.journal.flush()

    async def compact(self) -> bool:
        """Shortens the conversation now, or when the batch under way is done. Whether it is shorter, if it is known."""
        return await self._core.compact()

    def subscribe(self, since: int | None = None, types: Collection[str] | None = None) -> Subscription:
        """Events from here on, or after an index. With a log all of them, without one what `event_buffer_size` kept.

        `types` names those that are wanted. What sub-agents do comes among the others with an `agent_path`; with `types`
        it comes only if they name `sub_agent_event`, and then it is wrapped. The iteration ends when the agent is stopped;
        if it dies, AgentDown is raised.
        """
        self._core.alive()
        unknown = [name for name in types or () if name not in BY_NAME]
        if unknown:
            raise InvalidOption(f"there is no event {', '.join(unknown)}", "docs/events.md lists them.")
        return self._core.journal.subscribe(since, None if types is None else frozenset(types))

    def status(self) -> AgentStatus:
        """What it is doing now."""
        core, state = self._core, self._core.journal.state
        core.alive()
        return AgentStatus(
            session_id=core.session_id,
            state=state.run.value,  # type: ignore[arg-type]
            activity=state.activity.value,
            phase=state.phase.value,
            model=core.model_name,
            turns=core.turns,
            tools=tuple(call.name for call in state.turn.calls),
            approvals=tuple(one.gate_id for one in core.gates.held()),
            questions=tuple(one.gate_id for one in core.gates.asked()),
            queued=len(core.prompts_wait()),
            steering=len(core.steering_refs()),
            messages=len(self.messages),
            usage=state.usage.total,
            todos=state.todos,
        )

    async def collect_reply(self, timeout: float | None = None) -> str:  # noqa: ASYNC109 # a caller's patience, not a task's
        """What the last turn said, once no turn is open and no text waits. TurnNotFinished, TimeoutError."""
        self._core.alive()
        await asyncio.wait_for(self._core.at_rest(), timeout)
        await self._core.journal.flush()
        last = self._core.last
        if last is None:
            return ""
        if last.kind != "completed":
            raise TurnNotFinished(last.kind, last.message)
        return last.text

    async def checkpoint(self) -> str:
        """Everything so far is durable when this returns; a name for it. NothingKept without a log."""
        return await self._core.checkpoint()

    async def stop(self) -> None:
        """Ends it: the open turn, its tools, its sub-agents. Its log stays, and can be resumed."""
        core = self._core
        if not core.is_alive:
            return
        await core.stopped()
        if core.hooks.has("session_end"):
            await core.hooks.ask("session_end", core.context())
        core.journal.write((ev.SessionSuspended(reason="stopped"),), "user")
        try:
            await core.journal.flush()
        finally:
            core.journal.close()
