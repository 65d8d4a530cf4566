"""Hold one agent together: its turns, its queued texts, its model and tools, and the commands that callers give it.

`agent.py` is the public face of `AgentRuntime`. An idle agent has no task, no timer and no connection: each turn is a task,
and the code that ends a turn starts the next one.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from quarterdeck import events as ev
from quarterdeck.engine.approvals import Approvals
from quarterdeck.engine.batch import Batch, KillTools
from quarterdeck.engine.errors import AgentGone, InvalidOption, NothingKept, PromptRefused, SteeringRefused
from quarterdeck.engine.hooks import Hooks, PluginContext
from quarterdeck.engine.journal import Journal, now_ms
from quarterdeck.engine.model import SelectedModel
from quarterdeck.engine.options import ModelResolver, ResolvedOptions
from quarterdeck.engine.plugins.base import Plugin, SwitchModel
from quarterdeck.engine.subscription import call_of
from quarterdeck.engine.tools.base import Tool
from quarterdeck.engine.turn import Prompt, Turn, TurnResult, current_task
from quarterdeck.errors import QuarterdeckError, QueueFull
from quarterdeck.events import Body, Image, Json, TokenUsage
from quarterdeck.kernel import queue
from quarterdeck.kernel.command_results import Dropped, Receipt, Steered

#: Seconds that `stop` waits for cancelled tasks.
_UNWIND_S = 10.0


class AgentRuntime:
    """One running agent.

    At most one turn is open at a time (`turn`). Prompts that arrive meanwhile wait in the queue, which is part of the
    session's state and therefore survives a restart.
    """

    def __init__(
        self,
        journal: Journal,
        options: ResolvedOptions,
        *,
        model: SelectedModel,
        resolver: ModelResolver,
        tools: Mapping[str, Tool],
        plugins: Sequence[Plugin] = (),
    ) -> None:
        self.session_id = journal.session_id
        self.journal = journal
        self.options = options
        self.hooks = Hooks(plugins, options.hook_timeout)
        self.approvals = Approvals(self)
        self.tools = tools
        #: The model of the next turn. A turn keeps the model that it started with.
        self.model = model
        self.mode = options.mode
        #: The open turn.
        self.turn: Turn | None = None
        #: Turns of sub-agents that are working, by agent path.
        self.children: dict[tuple[str, ...], Turn] = {}
        #: Number of turns since the agent was created or resumed.
        self.turn_count = 0
        self.last_result: TurnResult | None = None
        self.is_alive = True
        self._resolver = resolver
        self._store = options.store
        self._nonce = secrets.token_hex(3)
        self._ids = itertools.count(1)
        #: Set while no turn is open.
        self._idle = asyncio.Event()
        self._idle.set()
        #: Cancelled tasks that must end before the next request.
        self._unwinding: set[asyncio.Task[Any]] = set()
        #: Batches with calls that outlived their turn.
        self._background: list[Batch] = []
        #: Tokens in the context of each agent, by agent path, as of its last request.
        self._context_tokens: dict[tuple[str, ...], int] = {}

    @property
    def store(self) -> Path:
        """Folder for files of this session. Without the option, a temporary folder is created on first use."""
        if self._store is None:
            self._store = Path(tempfile.mkdtemp(prefix="quarterdeck-"))
        return self._store

    def next_id(self, prefix: str) -> str:
        """Return an id that is unique in the session. The nonce differs each time the session is resumed."""
        return f"{prefix}{next(self._ids)}-{self._nonce}"

    def require_alive(self) -> None:
        """Raise `AgentGone` if the agent was stopped or died."""
        if not self.is_alive:
            raise AgentGone(self.session_id, self.journal.has_log)

    # ------------------------------------------------------------------------------------------------------- prompts

    def queued_prompts(self) -> list[queue.Waiting]:
        return [waiting for waiting in self.journal.state.queue if waiting.kind == "prompt"]

    def steering_refs(self) -> tuple[str, ...]:
        return tuple(waiting.id for waiting in self.journal.state.queue if waiting.kind == "steer")

    async def prompt(
        self, text: str, images: tuple[Image, ...] = (), message_id: str = "", supersede: bool = False
    ) -> Receipt:
        """Start a turn with a prompt, or queue the prompt until the open turn ends. See `Agent.prompt`."""
        self.require_alive()
        _require_content(text, images)
        message_id = message_id or self.next_id("p")
        if self.approvals.approve_by_prompt(text):
            await self.journal.flush()
            return Receipt(message_id, "answered")
        if supersede and self.turn is not None and self.approvals.pending_approvals(()):
            self._supersede_turn(self.turn)
        elif self.turn is not None or self.queued_prompts():
            self.journal.write((ev.PromptQueued(text=text, message_id=message_id, images=images),), "user")
            if self.turn is None:
                self._start_next_turn()
            await self.journal.flush()
            return Receipt(message_id, "queued", reason="waiting for earlier prompts")
        turn = self._start_turn(Prompt(text, message_id, images))
        refusal = None if turn.has_begun else await turn.admission
        await self.journal.flush()
        if refusal is not None:
            raise PromptRefused(refusal)
        return Receipt(message_id, "started")

    def _start_turn(self, prompt: Prompt) -> Turn:
        turn = Turn(self, prompt)
        self._open(turn)
        self.turn_count += 1
        if not self.hooks.has("before_prompt"):
            # Begin now, not in the task: a prompt is recorded in the same pass of the loop in which it was given.
            turn.begin()
        after, self._unwinding = self._unwinding, set()
        turn.task = asyncio.get_running_loop().create_task(turn.run(after))
        return turn

    def _start_next_turn(self) -> None:
        """Start a turn with the first queued prompt, if there is one."""
        prompts = self.queued_prompts()
        if prompts and self.turn is None and self.is_alive:
            self._start_turn(Prompt(prompts[0].text, prompts[0].id, prompts[0].images))

    def _open(self, turn: Turn) -> None:
        self.turn = turn
        self._idle.clear()

    def finish_turn(self, turn: Turn) -> None:
        """Close a turn whose closing event was written, and start the next one."""
        if self.turn is turn:
            self.turn = None
        self._unwinding |= turn.unwinding() - {current_task()}
        if turn.has_begun:
            self.last_result = turn.result
        self._start_next_turn()
        if self.turn is None:
            self._idle.set()

    async def wait_until_idle(self) -> None:
        """Wait until no turn is open and no prompt is queued."""
        # A new turn may have begun between the event and this task's next step.
        while self.turn is not None:
            await self._idle.wait()

    # ------------------------------------------------------------------------------------------------------ steering

    async def steer(self, text: str, ref: str = "", images: tuple[Image, ...] = ()) -> Steered:
        """Queue a text for the open turn, or start a turn with it. See `Agent.steer`."""
        self.require_alive()
        _require_content(text, images)
        ref = ref or self.next_id("s")
        verdict = await self.hooks.run("before_steering", PluginContext(self, self.turn), text)
        if verdict.abort is not None:
            self._record_steering(ref, text, "rejected", images)
            await self.journal.flush()
            raise SteeringRefused(verdict.abort)
        text = "\n\n".join([text, *verdict.prompts])
        if self.turn is None:
            # Both events are written in the same pass of the loop, so a crash can't separate them.
            self._record_steering(ref, text, "prompted", images)
            await self.prompt(text, images, ref)
            return Steered(ref, "prompted")
        limit = self.options.max_steering_queue
        if queue.steering_count(self.journal.state.queue) >= limit:
            self._record_steering(ref, text, "rejected_full", images)
            await self.journal.flush()
            raise QueueFull(limit)
        self._record_steering(ref, text, "queued", images)
        if self.turn.batch is not None:
            self.turn.batch.give_way()
        await self.journal.flush()
        return Steered(ref, "queued")

    def _record_steering(
        self,
        ref: str,
        text: str,
        status: Literal["queued", "prompted", "rejected", "rejected_full"],
        images: tuple[Image, ...],
    ) -> None:
        body = ev.SteeringReceived(ref=ref, text=text, queued_at=now_ms(), status=status, images=images)
        self.journal.write((body,), "user")

    # ------------------------------------------------------------------------------------------------ ending a turn

    async def abort(
        self, reason: str | None = None, kill_tools: KillTools = "killable", clear_queue: bool = False
    ) -> Dropped:
        """Abort the open turn. See `Agent.abort`.

        `agent_abort` is written even if no turn is open, so that a client whose view is out of date can reconcile it.
        """
        self.require_alive()
        waiting = self.journal.state.queue if clear_queue else ()
        dropped: list[Body] = [ev.PromptDropped(text=text.text, message_id=text.id) for text in waiting]
        turn = self.turn
        if kill_tools == "all":
            self._kill_background(reason or "aborted")
        if turn is None or turn.is_cancelled:
            self.journal.write((*dropped, ev.AgentAbort(reason=reason)), "user")
        else:
            await self.cancel_turn(turn, ev.AgentAbort(reason=reason, turn_id=turn.turn_id), kill_tools, dropped)
        await self.journal.flush()
        return Dropped(tuple(text.text for text in waiting))

    async def cancel_turn(
        self, turn: Turn, closing: ev.AgentAbort, kill: KillTools = "killable", before: Sequence[Body] = ()
    ) -> None:
        """End a turn from outside.

        Args:
            turn: the turn to end.
            closing: the event that closes it.
            kill: which of its tool calls are killed.
            before: events to write first, in the same batch.
        """
        if turn.is_cancelled:
            return
        bodies = [*before, *self._cancel_with_children(turn, closing.reason, kill)]
        if self.hooks.has("after_turn") and turn.has_begun:
            self.journal.write(bodies, "user")
            bodies = []
            await turn.run_cancel_hooks(closing)
        self.journal.write((*bodies, closing), "user")
        self.finish_turn(turn)

    def _cancel_with_children(self, turn: Turn, reason: str | None, kill: KillTools) -> list[Body]:
        """Cancel a turn and its sub-agents, and return the events for that. Events of the sub-agents come first."""
        bodies = turn.cancel(reason, kill)
        of_children: list[Body] = []
        for child in tuple(self.children.values()):
            if turn.batch is None or not turn.batch.outlives_turn(call_of(child.path[-1])):
                of_children += child.interrupt("all", reason or "aborted")
        return [*of_children, *bodies]

    def _supersede_turn(self, turn: Turn) -> None:
        """End the turn that waits for an approval, because a new prompt replaces it.

        Doesn't start the next queued prompt: the new prompt comes first.
        """
        bodies = self.approvals.supersede_all()
        self.turn = None
        bodies += self._cancel_with_children(turn, "superseded", "killable")
        self.journal.write((*bodies, turn.body(ev.AgentAbort, reason="superseded")), "user")
        self._unwinding |= turn.unwinding()

    # --- calls that outlive their turn

    def add_background(self, batch: Batch) -> None:
        """Register a batch with calls that outlive their turn."""
        if batch not in self._background:
            self._background.append(batch)

    def remove_background(self, batch: Batch) -> None:
        if batch in self._background:
            self._background.remove(batch)

    def _kill_background(self, reason: str) -> None:
        for batch in tuple(self._background):
            self.journal.write(batch.interrupt("all", reason), "user")
            self._unwinding |= batch.unwinding

    # --- the end of the agent

    async def stop(self) -> None:
        """End the turn and everything that it started. Queued prompts stay in the log for `resume`."""
        self.is_alive = False
        if self.turn is not None:
            await self.cancel_turn(self.turn, ev.AgentAbort(reason="stopped", turn_id=self.turn.turn_id), "all")
        self._kill_background("stopped")
        await self.wait_until_unwound()

    async def wait_until_unwound(self) -> None:
        """Wait until all cancelled tasks have ended, for a limited time."""
        if self._unwinding:
            await asyncio.wait(self._unwinding, timeout=_UNWIND_S)

    def die(self, error: QuarterdeckError) -> None:
        """End the agent because another process owns its log now. Nothing more can be written."""
        self.is_alive = False
        turn, self.turn = self.turn, None
        if turn is not None:
            turn.cancel(error.message, "all")
            self.last_result = turn.result
        self._idle.set()
        self.journal.close(error)

    # ---------------------------------------------------------------------------------------------------- compaction

    async def compact(self) -> bool:
        """Compact the conversation: in the open turn after its batch, or else in a turn of its own.

        Returns whether the conversation is shorter now. False if a turn is open, because it compacts later.
        """
        self.require_alive()
        if self.turn is not None:
            self.turn.request_compaction()
            return False
        turn = Turn(self, Prompt("", self.next_id("p")))
        self._open(turn)
        turn.begin_without_prompt()
        results: list[bool] = []

        async def work() -> None:
            results.append(await turn.compact("manual"))

        turn.task = asyncio.get_running_loop().create_task(turn.run(set(), work))
        await asyncio.wait((turn.task,))
        return results == [True]

    # ----------------------------------------------------------------------------------------------- model and tools

    def select_model(self, full_name: str, options: Mapping[str, Json] | None = None) -> SelectedModel:
        """Return a model by name, with these options or those of the current model.

        Raises:
            QuarterdeckError: there is no such provider, or it isn't configured.
        """
        options = self.model.options if options is None else options
        provider, name = self._resolver(full_name, options)
        return SelectedModel(provider, name, full_name, options)

    def switch_model(self, full_name: str, options: Mapping[str, Json] | None = None) -> bool:
        """Use another model from the next turn on. Return whether anything changed."""
        options_changed = options is not None and dict(options) != dict(self.model.options)
        if full_name == self.model.full_name and not options_changed:
            return False
        selected = self.select_model(full_name, options)
        switched = ev.ModelSwitched(to=full_name, from_=self.model.full_name, provider_opts_changed=options_changed)
        self.model = selected
        self.journal.write((switched,), "user")
        return True

    def switch_model_for_plugin(self, switch: SwitchModel, turn: Turn) -> None:
        """Apply a plugin's `SwitchModel`, which takes effect with the next request of the turn."""
        try:
            self.switch_model(switch.model, switch.provider_opts)
        except QuarterdeckError as error:
            text = f"the model wasn't switched: {error.message}"
            self.journal.write((ev.Notice(level="error", text=text, source="plugin"),))
            return
        turn.model = self.model

    def change_tools(self, attach: Sequence[Tool] = (), detach: Sequence[str] = ()) -> ev.ToolsUpdated:
        """Attach and detach tools in one step. A tool replaces one of the same name."""
        tools = {name: tool for name, tool in self.tools.items() if name not in detach}
        detached = tuple(name for name in detach if name in self.tools)
        tools.update({tool.name: tool for tool in attach})
        self.tools = tools
        return ev.ToolsUpdated(attached=tuple(tool.name for tool in attach), detached=detached)

    # -------------------------------------------------------------------------------------------------------- tokens

    def count_usage(self, usage: TokenUsage, model: str, turn: Turn, message_id: str) -> list[Body]:
        """Count the tokens of a request of the conversation, and return the events for that."""
        turn.add_usage(usage)
        self._context_tokens[turn.path] = usage.total_tokens
        bodies = [turn.body(ev.Usage, **_usage_fields(usage, model, message_id))]
        limit = self.options.context_limit
        if limit and not turn.path:
            percent = round(100 * usage.total_tokens / limit, 1)
            bodies.append(turn.body(ev.ContextUsage, tokens=usage.total_tokens, limit=limit, percent=percent))
        return bodies

    def record_side_usage(self, usage: TokenUsage, model: str, turn: Turn | None) -> None:
        """Count the tokens of a request outside the conversation, which says nothing about the size of the context."""
        fields = _usage_fields(usage, model, self.next_id("u"))
        if turn is None:
            self.journal.write((ev.Usage(**fields),))
        else:
            turn.add_usage(usage)
            turn.record(ev.Usage, **fields)

    def context_tokens(self, path: tuple[str, ...]) -> int:
        return self._context_tokens.get(path, 0)

    # ---------------------------------------------------------------------------------------------------- checkpoints

    async def checkpoint(self) -> str:
        """Make everything durable and return an id for this point. See `Agent.checkpoint`."""
        self.require_alive()
        if not self.journal.has_log:
            raise NothingKept
        checkpoint_id = self.next_id("c")
        self.journal.write((ev.CheckpointSaved(checkpoint_id=checkpoint_id),))
        await self.journal.flush()
        return checkpoint_id


def _usage_fields(usage: TokenUsage, model: str, message_id: str) -> dict[str, Any]:
    # A provider that reports a cost bills by use. Of the others we don't know.
    billing = "unknown" if usage.cost_usd is None else "metered"
    return {"tokens": usage, "message_id": message_id, "model": model, "billing": billing}


def _require_content(text: str, images: Sequence[Image]) -> None:
    if not text.strip() and not images:
        raise InvalidOption("the text is empty", "Pass a text or an image.")
