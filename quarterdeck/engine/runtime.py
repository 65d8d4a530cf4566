"""One agent: what its turns share, and what people want of it. `agent.py` is the face that callers see.

While nothing is asked of it it holds no task, no timer and no connection: a turn is a task of its own, and the next one is
begun by whoever ends the last.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from quarterdeck import events as ev
from quarterdeck.engine import context, decisions
from quarterdeck.engine.batch import Batch, KillTools
from quarterdeck.engine.errors import AgentGone, InvalidOption, NothingKept, PromptRefused, SteeringRefused
from quarterdeck.engine.gates import OpenGates
from quarterdeck.engine.hooks import Hooks
from quarterdeck.engine.journal import Journal, now_ms
from quarterdeck.engine.model import Model
from quarterdeck.engine.options import Options
from quarterdeck.engine.plugins.base import Plugin, SwitchModel
from quarterdeck.engine.subscription import call_of
from quarterdeck.engine.tools.base import Tool
from quarterdeck.engine.turn import Prompt, Turn
from quarterdeck.errors import QuarterdeckError, QueueFull
from quarterdeck.events import Body, Image, Json, TokenUsage
from quarterdeck.kernel import queue
from quarterdeck.kernel.command_results import Dropped, Receipt, Steered

Resolve: TypeAlias = Callable[[str, Mapping[str, Json]], tuple[Model, str]]

#: How long an abort waits for the last word of plugins: agent_abort must be heard within 100 ms.
_LAST_WORD_S = 0.05
#: How long a stop waits for what it ends.
_UNWIND_S = 10.0


class LastTurn:
    """How the last turn ended."""

    __slots__ = ("kind", "message", "text")

    def __init__(self, kind: str, text: str, message: str = "") -> None:
        self.kind = kind
        self.text = text
        self.message = message


class Core:
    """See the module."""

    __slots__ = (
        "_background",
        "_begun",
        "_collectors",
        "_context_tokens",
        "_ids",
        "_leaving",
        "_model",
        "_nonce",
        "_resolve",
        "_store",
        "children",
        "gates",
        "hooks",
        "is_alive",
        "journal",
        "last",
        "mode",
        "model_name",
        "options",
        "own_model_name",
        "provider_opts",
        "session_id",
        "thinking",
        "tools",
        "turn",
        "turns",
    )

    def __init__(
        self,
        journal: Journal,
        options: Options,
        *,
        model: tuple[Model, str, str],
        resolve: Resolve,
        provider_opts: Mapping[str, Json],
        tools: Mapping[str, Tool],
        plugins: Sequence[Plugin] = (),
    ) -> None:
        self.session_id = journal.session_id
        self.journal = journal
        self.options = options
        self.hooks = Hooks(plugins, options.hook_s)
        self.gates = OpenGates()
        self.tools: Mapping[str, Tool] = tools
        self._model, self.own_model_name, self.model_name = model
        self._resolve = resolve
        self.provider_opts = provider_opts
        self.mode = options.mode
        self.thinking = options.thinking
        self.turn: Turn | None = None
        #: Sub-agents at work.
        self.children: dict[tuple[str, ...], Turn] | None = None
        self.turns = 0
        self.last: LastTurn | None = None
        self.is_alive = True
        self._store = options.store
        self._nonce = secrets.token_hex(3)
        self._ids = itertools.count(1)
        self._collectors: list[asyncio.Future[None]] | None = None
        self._begun: dict[Turn, asyncio.Future[str | None]] | None = None
        self._leaving: set[asyncio.Task[Any]] | None = None
        self._background: tuple[Batch, ...] | None = None
        self._context_tokens: dict[tuple[str, ...], int] | None = None

    @property
    def model(self) -> Model:
        return self._model

    @property
    def store(self) -> Path:
        """Where files of this session may lie; made when it is first wanted."""
        if self._store is None:
            import tempfile

            self._store = Path(tempfile.mkdtemp(prefix="quarterdeck-"))
        return self._store

    def next_id(self, kind: str) -> str:
        """Never given twice in a session: another life of it has another nonce."""
        return f"{kind}{next(self._ids)}-{self._nonce}"

    def alive(self) -> None:
        if not self.is_alive:
            raise AgentGone(self.session_id, self.journal.has_log)

    def context(self, turn: Turn | None = None) -> context.PluginContext:
        return context.PluginContext(self, turn)

    # ----------------------------------------------------------------------------------------------------- texts

    def prompts_wait(self) -> list[queue.Waiting]:
        return [one for one in self.journal.state.queue if one.kind == "prompt"]

    def steering_waits(self) -> bool:
        return queue.steering(self.journal.state.queue) > 0

    def steering_refs(self) -> tuple[str, ...]:
        return tuple(one.id for one in self.journal.state.queue if one.kind == "steer")

    async def prompt(
        self, text: str, images: tuple[Image, ...] = (), message_id: str = "", supersede: bool = False
    ) -> Receipt:
        """A turn begins with it at once, or it waits until the open one is over."""
        self.alive()
        _refuse_empty(text, images)
        message_id = message_id or self.next_id("p")
        confirmed = decisions.confirmed(self, text)
        if confirmed is not None:
            decisions.decide(self, confirmed, "approved", "user", "confirmed by a prompt", True, "")
            await self.journal.flush()
            return Receipt(message_id, "answered")
        supersedes = supersede and self.turn is not None and bool(self.gates.held(()))
        if supersedes:
            self._supersede()
        elif self.turn is not None or self.prompts_wait():
            self.journal.write((ev.PromptQueued(text=text, message_id=message_id, images=images),), "user")
            if self.turn is None:
                self._next()
            await self.journal.flush()
            return Receipt(message_id, "queued", reason="when the texts before it are done")
        await self._begin(Prompt(text, message_id, images))
        return Receipt(message_id, "started")

    async def _begin(self, prompt: Prompt) -> None:
        """Returns when the text is durable, and the plugins let it in."""
        turn = self._start(prompt)
        if turn.opened:
            await self.journal.flush()
            return
        told: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._begun = self._begun or {}
        self._begun[turn] = told
        refusal = await told
        await self.journal.flush()
        if refusal is not None:
            raise PromptRefused(refusal)

    def _start(self, prompt: Prompt) -> Turn:
        turn = self.turn = Turn(self, prompt)
        self.turns += 1
        if not self.hooks.has("before_prompt"):
            turn.open()
        after, self._leaving = self._leaving or set(), None
        turn.task = asyncio.get_running_loop().create_task(turn.run(after))
        return turn

    def begun(self, turn: Turn, refusal: str | None) -> None:
        """The plugins have spoken about its prompt."""
        told = (self._begun or {}).pop(turn, None)
        if told is not None and not told.done():
            told.set_result(refusal)

    def _next(self) -> None:
        """The first text that waits begins the next turn."""
        waiting = self.prompts_wait()
        if waiting and self.turn is None and self.is_alive:
            first = waiting[0]
            self._start(Prompt(first.text, first.id, first.images))

    def turn_over(self, turn: Turn) -> None:
        """The closing event was written."""
        if self.turn is turn:
            self.turn = None
        left = turn.left() - {_current()}
        if left:
            self._leaving = (self._leaving or set()) | left
        if turn.opened:
            self.last = LastTurn("aborted" if turn.ending else turn.outcome, turn.text, turn.why)
        self._next()
        if self.turn is None:
            self._settle()

    def _settle(self) -> None:
        collectors, self._collectors = self._collectors or [], None
        for one in collectors:
            if not one.done():
                one.set_result(None)

    async def at_rest(self) -> None:
        """Returns when no turn is open and no text waits."""
        while self.turn is not None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._collectors = [*(self._collectors or ()), waiter]
            await waiter

    async def steer(self, text: str, ref: str = "", images: tuple[Image, ...] = ()) -> Steered:
        """Into the turn under way; a prompt when there is none."""
        self.alive()
        _refuse_empty(text, images)
        ref = ref or self.next_id("s")
        if self.hooks.has("before_steering"):
            verdict = await self.hooks.ask("before_steering", self.context(self.turn), text)
            if verdict.abort is not None:
                self._tell_steering(ref, text, "rejected", images)
                await self.journal.flush()
                raise SteeringRefused(verdict.abort)
            text = "\n\n".join([text, *verdict.prompts])
        if self.turn is None:
            # told and begun in one write: no kill comes between
            self._tell_steering(ref, text, "prompted", images)
            await self.prompt(text, images, ref)
            return Steered(ref, "prompted")
        limit = self.options.max_steering_queue
        if queue.steering(self.journal.state.queue) >= limit:
            self._tell_steering(ref, text, "rejected_full", images)
            await self.journal.flush()
            raise QueueFull(limit)
        self._tell_steering(ref, text, "queued", images)
        if self.turn.batch is not None:
            self.turn.batch.give_way()
        await self.journal.flush()
        return Steered(ref, "queued")

    def _tell_steering(self, ref: str, text: str, status: Any, images: tuple[Image, ...]) -> None:
        body = ev.SteeringReceived(ref=ref, text=text, queued_at=now_ms(), status=status, images=images)
        self.journal.write((body,), "user")

    # --------------------------------------------------------------------------------------------------- an end

    async def abort(
        self, reason: str | None = None, kill_tools: KillTools = "killable", clear_queue: bool = False
    ) -> Dropped:
        """Ends the turn. agent_abort is said in any case, so that whoever listens can reconcile."""
        self.alive()
        dropped: list[Body] = []
        if clear_queue:
            dropped = [ev.PromptDropped(text=one.text, message_id=one.id) for one in self.journal.state.queue]
        turn = self.turn
        if kill_tools == "all":
            self._kill_background(reason or "aborted")
        if turn is None or turn.ending:
            self.journal.write((*dropped, ev.AgentAbort(reason=reason)), "user")
        else:
            await self.end(turn, ev.AgentAbort(reason=reason, turn_id=turn.turn_id), kill_tools, dropped)
        await self.journal.flush()
        return Dropped(tuple(one.text for one in dropped if isinstance(one, ev.PromptDropped)))

    async def end(
        self, turn: Turn, closing: ev.AgentAbort, kill: KillTools = "killable", first: Sequence[Body] = ()
    ) -> None:
        """Ends the open turn from outside: everything that is cut off is told, and its task is told to end."""
        if turn.ending:
            return
        said = self._cut(turn, closing.reason or "aborted", kill)
        turn.why = closing.reason or ""
        if self.hooks.has("after_turn") and turn.opened:
            self.journal.write((*first, *said), "user")
            turn.last_word = asyncio.ensure_future(turn.after_turn(closing))
            await asyncio.wait((turn.last_word,), timeout=_LAST_WORD_S)
            first, said = (), []
        self.journal.write((*first, *said, closing), "user")
        self.turn_over(turn)

    def _cut(self, turn: Turn, reason: str, kill: KillTools) -> list[Body]:
        turn.ending = True
        of_turn, said = turn.interrupted(kill, reason), list[Body]()
        for child in tuple((self.children or {}).values()):
            if turn.batch is None or not turn.batch.goes_on(call_of(child.path[-1])):
                said += child.interrupted("all", reason)
        said += of_turn
        if not turn.opened:
            said.append(ev.PromptDropped(text=turn.prompt.text, message_id=turn.prompt.message_id))
            self.begun(turn, reason)
        if turn.task is not None and turn.task is not _current():
            turn.task.cancel()
        return said

    def detached(self, batch: Batch, begins: bool) -> None:
        """Calls of this batch go on without their turn, or none does any more."""
        others = tuple(one for one in self._background or () if one is not batch)
        self._background = (*others, batch) if begins else others or None

    def _kill_background(self, reason: str) -> None:
        """What went on without its turn ends too."""
        for batch in self._background or ():
            self.journal.write(batch.interrupted("all", reason), "user")
            self._leaving = (self._leaving or set()) | batch.dying

    async def stopped(self) -> None:
        """Everything of it ends; the texts that wait stay where they are."""
        self.is_alive = False
        if self.turn is not None:
            await self.end(self.turn, ev.AgentAbort(reason="stopped", turn_id=self.turn.turn_id), "all")
        self._kill_background("stopped")
        await self.left()

    async def left(self) -> None:
        """Returns when nothing that was told to end is still ending."""
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=_UNWIND_S)

    async def compact(self) -> bool:
        """In the open turn when its batch is done, or at its end; without one, in a turn of its own."""
        self.alive()
        if self.turn is not None:
            self.turn.want_compaction()
            return False
        turn = self.turn = Turn(self, Prompt("", self.next_id("p")))
        turn.opened = True
        self.journal.write((turn.made(ev.AgentStart),), "user")
        done: list[bool] = []

        async def work() -> None:
            done.append(await turn.compact("manual"))

        turn.task = asyncio.get_running_loop().create_task(turn.run(set(), work))
        await asyncio.wait((turn.task,))
        return done == [True]

    def die(self, error: QuarterdeckError) -> None:
        """It cannot go on: somebody else owns its log. Whoever waits for it is told."""
        self.is_alive = False
        turn, self.turn = self.turn, None
        if turn is not None:
            self.last = LastTurn("aborted", turn.text, error.message)
            self.begun(turn, error.message)
            turn.interrupted("all", error.message)
            if turn.task is not None:
                turn.task.cancel()
        self._settle()
        self.journal.close(error)

    def _supersede(self) -> None:
        """Another text takes the place of the turn that waits."""
        turn = self.turn
        assert turn is not None
        first = [held.resolved("superseded", "user", "superseded") for held in self.gates.held(())]
        for held in self.gates.held(()):
            self.gates.drop(held)
        # the queue waits for this text, which comes first
        waiting, self.turn = turn, None
        self.journal.write(
            (*first, *self._cut(waiting, "superseded", "killable"), waiting.made(ev.AgentAbort, reason="superseded")),
            "user",
        )
        left = waiting.left()
        if left:
            self._leaving = (self._leaving or set()) | left

    # ------------------------------------------------------------------------------------------------ model and tools

    def resolved(self, name: str, opts: Mapping[str, Json]) -> tuple[Model, str]:
        return self._resolve(name, opts)

    def switch(self, name: str, opts: Mapping[str, Json] | None = None) -> bool:
        """From the next turn on; whether anything changed."""
        changed = opts is not None and dict(opts) != dict(self.provider_opts)
        if name == self.model_name and not changed:
            return False
        wanted = self.provider_opts if opts is None else opts
        model, own = self._resolve(name, wanted)
        switched = ev.ModelSwitched(to=name, from_=self.model_name, provider_opts_changed=changed)
        self._model, self.own_model_name, self.model_name = model, own, name
        self.provider_opts = wanted
        self.journal.write((switched,), "user")
        return True

    def plugin_switches(self, wanted: SwitchModel, turn: Turn) -> None:
        """A plugin's switch counts from the next request on."""
        try:
            self.switch(wanted.model, wanted.provider_opts)
        except QuarterdeckError as error:
            text = f"the model was not switched: {error.message}"
            self.journal.write((ev.Notice(level="error", text=text, source="plugin"),))
            return
        turn.model, turn.own_model_name, turn.model_name = self._model, self.own_model_name, self.model_name
        turn.provider_opts = self.provider_opts

    def change_tools(self, attach: Sequence[Tool] = (), detach: Sequence[str] = ()) -> ev.ToolsUpdated:
        """All of it or nothing; a tool that is attached again replaces the one before."""
        tools = {name: tool for name, tool in self.tools.items() if name not in detach}
        gone = tuple(name for name in detach if name in self.tools)
        tools.update({tool.name: tool for tool in attach})
        self.tools = tools
        return ev.ToolsUpdated(attached=tuple(tool.name for tool in attach), detached=gone)

    # ------------------------------------------------------------------------------------------------------- tokens

    def counted(self, usage: TokenUsage, model: str, turn: Turn | None, message_id: str = "") -> list[Body]:
        """What a request cost, told and added to its turn."""
        message_id = message_id or self.next_id("u")
        made = turn.made if turn is not None else _made
        # whoever says what it costs is paid by use; of all others it is not known
        billing = "unknown" if usage.cost_usd is None else "metered"
        told: list[Body] = [made(ev.Usage, tokens=usage, message_id=message_id, model=model, billing=billing)]
        if turn is None:
            return told
        turn.add_usage(usage)
        self._context_tokens = {**(self._context_tokens or {}), turn.path: usage.total_tokens}
        limit = self.options.context_limit
        if limit and not turn.path:
            percent = round(100 * usage.total_tokens / limit, 1)
            told.append(turn.made(ev.ContextUsage, tokens=usage.total_tokens, limit=limit, percent=percent))
        return told

    def count(self, usage: TokenUsage, model: str, turn: Turn | None) -> None:
        """Of a request beside the conversation: it says nothing of how full the context is."""
        before = dict(self._context_tokens or {})
        told = [one for one in self.counted(usage, model, turn) if isinstance(one, ev.Usage)]
        self._context_tokens = before
        self.journal.write(told)

    def context_tokens(self, path: tuple[str, ...]) -> int:
        return (self._context_tokens or {}).get(path, 0)

    async def checkpoint(self) -> str:
        """Everything so far is durable, under this name."""
        self.alive()
        if not self.journal.has_log:
            raise NothingKept
        name = self.next_id("c")
        self.journal.write((ev.CheckpointSaved(checkpoint_id=name),))
        await self.journal.flush()
        return name


def _made(kind: Callable[..., Body], /, **fields: Any) -> Body:
    return kind(**fields)


def _refuse_empty(text: str, images: Sequence[Image]) -> None:
    if not text.strip() and not images:
        raise InvalidOption("there is nothing in the text", "Say something, or send an image.")


def _current() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
