"""The built-in agent as callers use it: `Agent` and its status.

The methods have the names and parameters of a session's commands (`SessionHandle`), where both exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from quarterdeck import events as ev
from quarterdeck.engine.batch import KillTools
from quarterdeck.engine.conversation import messages_of
from quarterdeck.engine.errors import InvalidOption, TurnNotFinished
from quarterdeck.engine.hooks import PluginContext
from quarterdeck.engine.model import Message
from quarterdeck.engine.runtime import AgentRuntime
from quarterdeck.engine.subscription import Subscription
from quarterdeck.engine.tools.base import Tool
from quarterdeck.events import BY_NAME, Image, Json, Todo, TokenUsage
from quarterdeck.kernel.command_results import Decided, Dropped, Receipt, Steered
from quarterdeck.kernel.commands import MODES

RunState = Literal["idle", "running", "streaming", "executing_tools"]
_KILL_TOOLS = ("killable", "all", "none")


class AgentStatus(Struct, frozen=True, kw_only=True):
    """What an agent is doing. While a call waits for an approval, `state` is `idle` and `approvals` isn't empty."""

    session_id: str
    state: RunState
    activity: str
    phase: str
    model: str
    #: Number of turns since the agent was created or resumed.
    turns: int
    #: Names of the tools that are running.
    tools: tuple[str, ...]
    #: Ids of open approvals.
    approvals: tuple[str, ...]
    #: Ids of open questions.
    questions: tuple[str, ...]
    #: Number of queued prompts.
    queued: int
    #: Number of queued steering texts.
    steering: int
    #: Number of messages in the conversation.
    messages: int
    usage: TokenUsage
    todos: tuple[Todo, ...]


class Agent:
    """One agent.

    With a log, a method returns once the events that it wrote are durable. What follows from them arrives as events
    (`subscribe`). After `stop`, or if another process takes over the log, all methods raise `AgentGone`.
    """

    def __init__(self, runtime: AgentRuntime) -> None:
        self._runtime = runtime

    @property
    def session_id(self) -> str:
        return self._runtime.session_id

    @property
    def model(self) -> str:
        return self._runtime.model.full_name

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation as the model reads it."""
        return messages_of(self._runtime.journal.conversation)

    @property
    def is_busy(self) -> bool:
        """Whether a turn is open: working, or waiting for an approval or an answer."""
        return self._runtime.turn is not None

    @property
    def tools(self) -> tuple[str, ...]:
        """Names of the attached tools."""
        return tuple(self._runtime.tools)

    # ------------------------------------------------------------------------------------------------------- commands

    async def prompt(
        self, text: str, *, images: Sequence[Image] = (), message_id: str = "", supersede: bool = False
    ) -> Receipt:
        """Start a turn, or queue the prompt until the open turn ends.

        With `supersede`, the prompt ends a turn that waits for an approval and starts right away.

        Raises:
            InvalidOption: the prompt is empty.
            PromptRefused: a plugin rejected the prompt.
        """
        return await self._runtime.prompt(text, tuple(images), message_id, supersede)

    async def steer(self, text: str, *, ref: str = "", images: Sequence[Image] = ()) -> Steered:
        """Add a text to the open turn before its next request. Without an open turn, start one with it.

        Raises:
            InvalidOption: the text is empty.
            QueueFull: too many steering texts are queued.
            SteeringRefused: a plugin rejected the text.
        """
        return await self._runtime.steer(text, ref, tuple(images))

    async def abort(
        self,
        *,
        kill_tools: KillTools = "killable",
        clear_queue: bool = False,
        reason: str | None = None,
    ) -> Dropped:
        """End the open turn, and with `clear_queue` drop all queued texts. Returns the dropped texts.

        Raises:
            InvalidOption: `kill_tools` is invalid.
        """
        if kill_tools not in _KILL_TOOLS:
            raise InvalidOption(f"kill_tools can't be {kill_tools!r}", f"Use one of: {', '.join(_KILL_TOOLS)}.")
        return await self._runtime.abort(reason, kill_tools, clear_queue)

    async def approve(
        self, gate_id: str = "", *, auto_resume: bool = True, option: str = "", by: str = "user", reason: str = ""
    ) -> Decided:
        """Approve a held call, which then runs. Without `gate_id`, approve the oldest one.

        With `auto_resume=False` the turn ends instead, and the same call needs no approval the next time.

        Raises:
            NoSuchGate: there is no such approval.
            AlreadyDecided: the approval was decided before.
        """
        self._runtime.require_alive()
        return await self._runtime.approvals.decide(
            gate_id, "approved", by=by, reason=reason, auto_resume=auto_resume, option=option
        )

    async def reject(
        self, gate_id: str = "", *, auto_resume: bool = False, option: str = "", by: str = "user", reason: str = ""
    ) -> Decided:
        """Reject a held call and end the turn. With `auto_resume=True` the turn continues without the call.

        Raises:
            NoSuchGate: there is no such approval.
            AlreadyDecided: the approval was decided before.
        """
        self._runtime.require_alive()
        return await self._runtime.approvals.decide(
            gate_id, "rejected", by=by, reason=reason, auto_resume=auto_resume, option=option
        )

    async def respond(self, gate_id: str, answer: Json, *, by: str = "user") -> Decided:
        """Answer a question of the agent. An empty `gate_id` means the oldest question.

        Raises:
            NoSuchGate: there is no such question.
            AlreadyDecided: the question was answered before.
        """
        self._runtime.require_alive()
        return await self._runtime.approvals.respond(gate_id, answer, by=by)

    async def compact(self) -> bool:
        """Compact the conversation now, or in an open turn after its tool calls.

        Returns whether the conversation is shorter now. False if a turn is open, because it compacts later.
        """
        return await self._runtime.compact()

    async def switch_model(self, model: str, provider_opts: Mapping[str, Json] | None = None) -> bool:
        """Use another model from the next turn on. Returns False if it is the current one.

        Raises:
            QuarterdeckError: the provider is unknown or not configured.
        """
        self._runtime.require_alive()
        has_changed = self._runtime.switch_model(model, provider_opts)
        await self._runtime.journal.flush()
        return has_changed

    async def switch_mode(self, mode: str) -> None:
        """Change which calls need an approval, from the next call on.

        Raises:
            InvalidOption: there is no such mode.
        """
        self._runtime.require_alive()
        if mode not in MODES:
            raise InvalidOption(f"unknown mode {mode!r}", f"Modes: {', '.join(MODES)}.")
        self._runtime.mode = mode
        self._runtime.journal.write((ev.SettingChanged(mode=mode),), "user")
        await self._runtime.journal.flush()

    async def attach_tool(self, *tools: Tool, detach: Collection[str] = ()) -> None:
        """Attach tools, and detach others in the same step, from the next request on.

        Raises:
            InvalidOption: a tool to detach isn't attached.
        """
        await self._change_tools(tools, tuple(detach))

    async def detach_tool(self, *names: str, attach: Sequence[Tool] = ()) -> None:
        """Detach tools, and attach others in the same step. If the model still calls one, it reads that it is gone.

        Raises:
            InvalidOption: a tool isn't attached.
        """
        await self._change_tools(attach, names)

    async def _change_tools(self, attach: Sequence[Tool], detach: Sequence[str]) -> None:
        runtime = self._runtime
        runtime.require_alive()
        missing = [name for name in detach if name not in runtime.tools]
        if missing:
            hint = f"Attached tools: {', '.join(runtime.tools) or 'none'}."
            raise InvalidOption(f"no such tool: {', '.join(missing)}", hint)
        updated = runtime.change_tools(attach, detach)
        if len(attach) + len(detach) == 1:
            body = ev.ToolAttached(name=attach[0].name) if attach else ev.ToolDetached(name=detach[0])
            runtime.journal.write((body,), "user")
        elif attach or detach:
            runtime.journal.write((updated,), "user")
        await runtime.journal.flush()

    # --------------------------------------------------------------------------------------------- events and results

    def subscribe(self, since: int | None = None, types: Collection[str] | None = None) -> Subscription:
        """Iterate over events from now on, or after the event with index `since`.

        With a log, `since` may be any index. Without one, only the last `event_buffer_size` events can be read again.

        `types` selects events by name. Events of sub-agents are included, with their `agent_path`. If `types` is set, they
        are included only if it contains `sub_agent_event`, and are then wrapped in that event. The iteration ends when the
        agent is stopped, and raises `AgentDown` if the agent dies.

        Raises:
            InvalidOption: an event name in `types` is unknown.
        """
        self._runtime.require_alive()
        unknown = [name for name in types or () if name not in BY_NAME]
        if unknown:
            raise InvalidOption(f"unknown event: {', '.join(unknown)}", "See docs/events.md for all events.")
        return self._runtime.journal.subscribe(since, None if types is None else frozenset(types))

    def status(self) -> AgentStatus:
        """Return what the agent is doing now."""
        runtime, state = self._runtime, self._runtime.journal.state
        runtime.require_alive()
        return AgentStatus(
            session_id=runtime.session_id,
            state=state.run.value,  # type: ignore[arg-type]
            activity=state.activity.value,
            phase=state.phase.value,
            model=runtime.model.full_name,
            turns=runtime.turn_count,
            tools=tuple(call.name for call in state.turn.calls),
            approvals=tuple(approval.gate_id for approval in runtime.approvals.pending_approvals()),
            questions=tuple(asked.gate_id for asked in runtime.approvals.pending_questions()),
            queued=len(runtime.queued_prompts()),
            steering=len(runtime.steering_refs()),
            messages=len(self.messages),
            usage=state.usage.total,
            todos=state.todos,
        )

    async def collect_reply(self, timeout: float | None = None) -> str:  # noqa: ASYNC109 # simpler for callers
        """Wait until no turn is open and no prompt is queued, and return the text of the last turn.

        Raises:
            TurnNotFinished: the last turn failed or was aborted.
            TimeoutError: it took longer than `timeout` seconds.
        """
        self._runtime.require_alive()
        await asyncio.wait_for(self._runtime.wait_until_idle(), timeout)
        await self._runtime.journal.flush()
        result = self._runtime.last_result
        if result is None:
            return ""
        if result.kind != "completed":
            raise TurnNotFinished(result.kind, result.message)
        return result.text

    async def checkpoint(self) -> str:
        """Make everything so far durable and return an id for this point of the log.

        Raises:
            NothingKept: the agent has no log.
        """
        return await self._runtime.checkpoint()

    async def stop(self) -> None:
        """End the agent: its turn, its tools and its sub-agents. `quarterdeck.resume` restores it from its log."""
        runtime = self._runtime
        if not runtime.is_alive:
            return
        await runtime.stop()
        await runtime.hooks.run("session_end", PluginContext(runtime, None))
        runtime.journal.write((ev.SessionSuspended(reason="stopped"),), "user")
        try:
            await runtime.journal.flush()
        finally:
            runtime.journal.close()
