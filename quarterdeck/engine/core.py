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
from typing import Any, Literal, TypeAlias

from quarterdeck import events as ev
from quarterdeck.engine import context
from quarterdeck.engine.batch import KillTools
from quarterdeck.engine.errors import AgentGone, InvalidOption, NothingKept, PromptRefused, SteeringRefused
from quarterdeck.engine.gates import Asked, Held, OpenGates
from quarterdeck.engine.hooks import Hooks
from quarterdeck.engine.journal import Journal, now_ms
from quarterdeck.engine.loop import Prompt, Turn
from quarterdeck.engine.model import Model
from quarterdeck.engine.options import Options
from quarterdeck.engine.plugins.base import Plugin, SwitchModel
from quarterdeck.engine.tools.base import Tool
from quarterdeck.errors import QuarterdeckError, QueueFull
from quarterdeck.events import Body, Image, Json, Option, TokenUsage
from quarterdeck.events.gate import GateStatus
from quarterdeck.kernel import queue
from quarterdeck.kernel.answers import Decided, Dropped, Receipt, Steered
from quarterdeck.kernel.gate import to_decide

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
        self.hooks = Hooks(plugins)
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
        confirmed = self._confirmed(text)
        if confirmed is not None:
            self.decide(confirmed, "approved", "user", "confirmed by a prompt", True, "")
            await self.journal.settled()
            return Receipt(message_id, "answered")
        supersedes = supersede and self.turn is not None and bool(self.gates.held(()))
        if supersedes:
            self._supersede()
        elif self.turn is not None or self.prompts_wait():
            self.journal.write((ev.PromptQueued(text=text, message_id=message_id, images=images),), "user")
            if self.turn is None:
                self._next()
            await self.journal.settled()
            return Receipt(message_id, "queued", reason="when the texts before it are done")
        await self._begin(Prompt(text, message_id, images))
        return Receipt(message_id, "started")

    def _confirmed(self, text: str) -> Held | None:
        """The held call to which this very text is the yes."""
        said = text.strip()
        return next((one for one in self.gates.held() if said and one.hold.confirmation.strip() == said), None)

    async def _begin(self, prompt: Prompt) -> None:
        """Returns when the text is durable, and the plugins let it in."""
        turn = self._start(prompt)
        if turn.opened:
            await self.journal.settled()
            return
        told: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._begun = self._begun or {}
        self._begun[turn] = told
        refusal = await told
        await self.journal.settled()
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
                await self._steering_told(ref, text, "rejected", images)
                raise SteeringRefused(verdict.abort)
            text = "\n\n".join([text, *verdict.prompts])
        if self.turn is None:
            await self._steering_told(ref, text, "prompted", images)
            await self.prompt(text, images, ref)
            return Steered(ref, "prompted")
        limit = self.options.max_steering_queue
        if queue.steering(self.journal.state.queue) >= limit:
            await self._steering_told(ref, text, "rejected_full", images)
            raise QueueFull(limit)
        told = self._steering_told(ref, text, "queued", images)
        if self.turn.batch is not None:
            self.turn.batch.give_way()
        await told
        return Steered(ref, "queued")

    def _steering_told(self, ref: str, text: str, status: Any, images: tuple[Image, ...]) -> Any:
        body = ev.SteeringReceived(ref=ref, text=text, queued_at=now_ms(), status=status, images=images)
        self.journal.write((body,), "user")
        return self.journal.settled()

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
        if turn is None or turn.ending:
            self.journal.write((*dropped, ev.AgentAbort(reason=reason)), "user")
        else:
            await self.end(turn, ev.AgentAbort(reason=reason, turn_id=turn.turn_id), kill_tools, dropped)
        await self.journal.settled()
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
        self.journal.flush()
        self.turn_over(turn)

    def _cut(self, turn: Turn, reason: str, kill: KillTools) -> list[Body]:
        turn.ending = True
        said: list[Body] = []
        for child in tuple((self.children or {}).values()):
            said += child.interrupted("all" if kill == "all" else "killable", reason)
        said += turn.interrupted(kill, reason)
        if not turn.opened:
            said.append(ev.PromptDropped(text=turn.prompt.text, message_id=turn.prompt.message_id))
            self.begun(turn, reason)
        if turn.task is not None and turn.task is not _current():
            turn.task.cancel()
        return said

    async def left(self) -> None:
        """Returns when nothing that was told to end is still ending."""
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=_UNWIND_S)

    async def compact(self) -> bool:
        """In the open turn when its batch is done; without one, in a turn of its own."""
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

    # ---------------------------------------------------------------------------------------------- what people decide

    async def decided(
        self,
        gate_id: str,
        status: Literal["approved", "rejected"],
        by: str = "user",
        reason: str = "",
        auto_resume: bool = True,
        option: str = "",
    ) -> Decided:
        """A person's yes or no to a held call. Without a name it is the oldest one; with nothing held nothing is done."""
        self.alive()
        held = self._held(gate_id)
        if held is not None:
            closing = self.decide(held, status, by, reason, auto_resume, option)
            if closing is not None:
                await self.end(held.turn, closing)
            await self.journal.settled()
        return Decided(held.gate_id if held is not None else "")

    def _held(self, gate_id: str) -> Held | None:
        if not gate_id:
            return next(iter(self.gates.held()), None)
        found = self.gates.find(gate_id)
        if isinstance(found, Held):
            return found
        to_decide(self.journal.state.gates, gate_id)  # says what is wrong with the name
        return None

    def decide(
        self, held: Held, status: GateStatus, by: str, reason: str, auto_resume: bool, option: str
    ) -> ev.AgentAbort | None:
        """One batch: the decision, that the turn goes on, and the start or the refusal of the call. Or how it is to end."""
        self.gates.drop(held)
        turn, run = held.turn, held.run
        batch = turn.batch
        first: list[Body] = [held.resolved(status, by, reason), *held.told(status, option), *self.hooks.changed()]
        if not auto_resume or batch is None:
            run.status = "over"
            why = f"{held.gate.tool} was {status}, and the turn was not to go on"
            return self._not_resumed(turn, first, why)
        goes_on = status == "approved" or not self.gates.held(turn.path)  # another one may still hold the turn
        if goes_on and (self.journal.state.run.value == "idle" or turn.path):
            first.append(turn.made(ev.AgentResumed, trigger=_TRIGGERS[status]))
        if status == "approved":
            first += batch.allowed(run)
        else:
            nobody = "nobody answered in time" if status == "timeout" else f"rejected by {by or 'the user'}"
            first += batch.refused(run, f"{nobody}: {reason}" if reason else nobody)
        self.journal.write(first, "user" if by else "engine")
        batch.look()
        return None

    def _not_resumed(self, turn: Turn, first: Sequence[Body], reason: str) -> ev.AgentAbort | None:
        """The turn is not to go on. A sub-agent's end is the result of its call; the main agent's is an abort."""
        self.journal.write(first, "user")
        if not turn.path:
            return ev.AgentAbort(reason=reason, turn_id=turn.turn_id)
        if turn.task is not None:
            turn.task.cancel(reason)
        return None

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

    async def ask(
        self, turn: Turn, call_id: str, question: str, options: tuple[Option, ...], patience: float | None
    ) -> str:
        """A person's answer to a tool's question; TimeoutError."""
        asked = Asked(turn, self.gates.next_name(), self.next_id("q"))
        self.gates.add(asked)
        deadline = None if patience is None else now_ms() + round(patience * 1000)
        turn.tell(
            ev.AskUser,
            question=question,
            ref=asked.ref,
            gate_id=asked.gate_id,
            options=options,
            call_id=call_id,
            deadline=deadline,
        )
        try:
            async with asyncio.timeout(patience):
                answer = await asked.answer
        except TimeoutError:
            turn.tell(ev.UserResponded, gate_id=asked.gate_id, ref=asked.ref, status="timeout")
            raise
        except asyncio.CancelledError:
            if self.gates.find(asked.gate_id) is asked:
                turn.say(asked.withdrawn())  # the call gave way; nobody else has said it
            raise
        finally:
            self.gates.drop(asked)
        return answer if isinstance(answer, str) else str(answer)

    async def respond(self, response: Json, ref: str = "", by: str = "user") -> Decided:
        """The answer to a question; to the oldest one unless it is named."""
        self.alive()
        asked = self.gates.find(ref) if ref else next(iter(self.gates.asked()), None)
        if not isinstance(asked, Asked) or asked.answer.done():
            to_decide(self.journal.state.gates, ref)
            return Decided(ref)
        answered = asked.turn.made(ev.UserResponded, response=response, ref=asked.ref, gate_id=asked.gate_id, by=by)
        resumed = asked.turn.made(ev.AgentResumed, trigger="user_respond")
        self.gates.drop(asked)
        self.journal.write((answered, resumed), "user")
        await self.journal.settled()
        if not asked.answer.done():
            asked.answer.set_result(response)
        return Decided(asked.gate_id)

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
        told: list[Body] = [made(ev.Usage, tokens=usage, message_id=message_id, model=model)]
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
        await self.journal.settled()
        return name


_TRIGGERS = {"approved": "tool_approved", "rejected": "tool_rejected", "timeout": "tool_approval_timeout"}


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
