"""The turn loop: prompt → request → reply → tools → request … until the model has nothing more to do.

    begin ─▶ merge steering ─▶ request, reply ─▶ calls? ── yes ──▶ run the batch ─┐
                  ▲                               │ no                           │
                  │        plugins or the user     ▼                             │
                  ├──────────── say more ◀──── finish? ──▶ end                   │
                  └──────────────────────────────────────────────────────────────┘

It says what it does as events, and the run's state is the kernel's fold of those. A sub-agent is the same loop with a path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.engine.batch import Batch, KillTools, TurnAborted
from quarterdeck.engine.compaction import compacted, cut_at
from quarterdeck.engine.context import PluginContext
from quarterdeck.engine.conversation import Conversation, messages_of
from quarterdeck.engine.hooks import Verdict
from quarterdeck.engine.message import Message, Part, Picture, Result, Text
from quarterdeck.engine.model import Model, ModelError, ToolSpec
from quarterdeck.engine.reply import Reply
from quarterdeck.engine.request import replied
from quarterdeck.engine.tools.base import Tool
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Body, Image, Json, TokenUsage

if TYPE_CHECKING:
    from quarterdeck.engine.runtime import Core

#: Of a result in agent_end; the whole stands in its own event.
_EXCERPT = 200
#: Ends of a reply that a person should know of.
_CUT_SHORT = {
    "length": "the reply was cut off at the limit of tokens",
    "refused": "the model refused to go on",
}
#: How long the next turn waits for what the last one left dying.
_UNWIND_S = 10.0


class Prompt:
    """The text that begins a turn."""

    __slots__ = ("images", "message_id", "source", "text")

    def __init__(
        self, text: str, message_id: str, images: tuple[Image, ...] = (), source: Literal["user", "agent"] = "user"
    ) -> None:
        self.text = text
        self.message_id = message_id
        self.images = images
        self.source: Literal["user", "agent"] = source


class Turn:
    """One turn of the main agent, or the whole work of a sub-agent."""

    def __init__(
        self,
        core: Core,
        prompt: Prompt,
        path: tuple[str, ...] = (),
        *,
        model: tuple[Model, str, str] | None = None,
        tools: Mapping[str, Tool] | None = None,
        system_prompt: str | None = None,
        max_turns: int | None = None,
    ) -> None:
        self.core = core
        self.prompt = prompt
        self.path = path
        self.turn_id = core.next_id("t")
        self.model, self.own_model_name, self.model_name = model or (core.model, core.own_model_name, core.model_name)
        self.provider_opts = core.provider_opts
        self.system_prompt = core.options.system_prompt if system_prompt is None else system_prompt
        self._tools = tools
        self._max_turns = core.options.max_turns if max_turns is None else max_turns
        self.task: asyncio.Task[Any] | None = None
        self.reply: Reply | None = None
        self.batch: Batch | None = None
        self.texts: list[str] = []
        self.usage: TokenUsage | None = None
        #: prompt_received and agent_start were said.
        self.opened = False
        #: Somebody outside ends it, and says so.
        self.ending = False
        self.rounds = 0
        self.last_word: asyncio.Task[None] | None = None
        #: How it ended: completed, aborted, or the kind of its failure; and what is to be said of that.
        self.outcome = "aborted"
        self.why = ""
        self._wants_compaction = False
        self._compacting = False

    # --- what it says

    def made(self, kind: Callable[..., Body], /, **fields: Any) -> Body:
        """A body of this turn."""
        return kind(turn_id=self.turn_id, agent_path=self.path, **fields)

    def tell(self, kind: Callable[..., Body], /, **fields: Any) -> None:
        self.core.journal.write((self.made(kind, **fields),))

    def say(self, *bodies: Body) -> None:
        if bodies:
            self.core.journal.write(bodies)

    @property
    def conversation(self) -> Conversation:
        return self.core.journal.conversations[self.path]

    def messages(self) -> tuple[Message, ...]:
        return messages_of(self.conversation)

    @property
    def text(self) -> str:
        """What it said so far."""
        return "\n\n".join(self.texts)

    @property
    def tools(self) -> Mapping[str, Tool]:
        """A sub-agent has its own; the main agent those that are attached now."""
        return self.core.tools if self._tools is None else self._tools

    def specs(self) -> list[ToolSpec]:
        return [tool.spec for tool in self.tools.values()]

    def has_steering(self) -> bool:
        return not self.path and self.core.steering_waits()

    async def hook(self, name: str, *args: Any, said: list[Body] | None = None) -> Verdict:
        """Asks the plugins; what they say to the model is said, and an abort ends the turn here."""
        verdict = await self.core.hooks.ask(name, PluginContext(self.core, self), *args)
        if verdict.switch is not None:
            self.core.plugin_switches(verdict.switch, self)
        if verdict.abort is not None and name != "before_prompt":
            raise TurnAborted(verdict.abort, verdict.outcome)
        if verdict.prompts and name != "before_prompt":
            intervention = self.made(ev.Intervention, prompt=verdict.prompt)
            if said is None:
                self.say(intervention)
            else:
                said.append(intervention)
        return verdict

    # --- the loop

    def open(self, prompts: Sequence[str] = ()) -> None:
        """The turn begins: what it is about, that it runs, and what plugins add."""
        prompt = self.prompt
        received = self.made(
            ev.PromptReceived,
            text=prompt.text,
            message_id=prompt.message_id,
            images=prompt.images,
            source=prompt.source,
        )
        added = [self.made(ev.Intervention, prompt="\n\n".join(prompts))] if prompts else []
        self.opened = True
        self.core.journal.write(
            (received, self.made(ev.AgentStart), *added), "user" if prompt.source == "user" else "engine"
        )

    async def run(self, after: set[asyncio.Task[Any]], work: Callable[[], Awaitable[object]] | None = None) -> None:
        """From the prompt to the event that closes the turn. Only somebody who ends it from outside closes it for it."""
        closing: list[Body]
        try:
            if after:
                await asyncio.wait(after, timeout=_UNWIND_S)
            if not self.opened and not await self._may_begin():
                return
            await self.core.journal.flush()
            await (work or self.rounds_of_work)()
            self.outcome = "completed"
            closing = [self._end("completed")]
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self.ending or task is None or task.cancelling():
                raise
            # something that it waited for was cancelled, and not the turn: nobody else would close it
            closing = self._failed("internal", "something that the turn waited for was cancelled")
        except TurnAborted as error:
            closing = self._aborted(error.reason)
        except ModelError as error:
            kind = "api" if error.kind == "overflow" else error.kind
            closing = self._failed(kind, error.message, error.resets_at)
        except Exception as error:
            said = error.message if isinstance(error, QuarterdeckError) else f"{type(error).__name__}: {error}"
            closing = self._failed("internal", said)
        await self._after_turn(closing[-1])
        if not self.ending:
            self.say(*closing)
            self.core.turn_over(self)

    async def _may_begin(self) -> bool:
        """Whether the plugins let the prompt in; what they say of it is told either way."""
        prompt = self.prompt
        verdict = await self.hook("before_prompt", prompt.text)
        if self.ending:
            return False
        refusal = verdict.abort if verdict.abort is not None else verdict.skip
        if refusal is None:
            self.open(verdict.prompts)
            self.core.begun(self, None)
            return True
        rejected = ev.PromptRejected(reason=refusal, text=prompt.text, message_id=prompt.message_id)
        self.say(rejected)
        self.core.begun(self, refusal)
        self.core.turn_over(self)
        return False

    async def rounds_of_work(self) -> None:
        """Request after request, until one is answered without calls and nobody has more to say."""
        while True:
            self._merge_steering()
            if self.rounds >= self._max_turns:
                raise ModelError(
                    "turn_limit", f"the turn took {self.rounds} requests and is not done", "Prompt it again."
                )
            self.rounds += 1
            reply = await self._ask()
            if reply is None:
                return
            message = await self._taken(reply)
            if message.calls:
                await self._work(message)
            elif not await self._goes_on(message):
                return

    def _merge_steering(self) -> None:
        refs = () if self.path else self.core.steering_refs()
        if refs:
            self.tell(ev.SteeringApplied, refs=refs, count=len(refs))

    async def _ask(self) -> Reply | None:
        """One request; None when a plugin leaves it out."""
        if self._is_full():
            await self.compact("auto")
        messages = await self.to_send()
        return None if messages is None else await replied(self, messages)

    async def to_send(self) -> Sequence[Message] | None:
        """The conversation as the plugins let it out; None when one leaves the request out."""
        messages = self.messages()
        if not self.core.hooks.has("before_request"):
            return messages
        before = len(self.conversation.messages)
        verdict = await self.hook("before_request", list(messages))
        if verdict.skip is not None:
            return None
        added = self.messages() if verdict.prompts or len(self.conversation.messages) != before else messages
        return verdict.messages if verdict.messages is not None else added

    async def _taken(self, reply: Reply) -> Message:
        """The reply is whole: told, counted, and shown to the plugins. Calls that one of them drops do not run."""
        finished, complete = reply.finished, reply.complete()
        assert finished is not None
        self.reply = None
        bodies: list[Body] = [complete]
        if finished.usage is not None:
            bodies += self.core.counted(finished.usage, self.model_name, self, reply.message_id)
        if finished.stop_reason in _CUT_SHORT:
            bodies.append(self.made(ev.Notice, level="warning", text=_CUT_SHORT[finished.stop_reason], source="model"))
        self.say(*bodies)
        message = _message_of(self.conversation, complete)
        if message.text:
            self.texts.append(message.text)
        if self.core.hooks.has("after_response"):
            verdict = await self.hook("after_response", message)
            if verdict.skip is not None and message.calls:
                self.say(
                    *(
                        self.made(ev.ToolBlocked, name=call.name, call_id=call.call_id, reason=verdict.skip)
                        for call in message.calls
                    )
                )
                return replace(message, parts=tuple(part for part in message.parts if part not in message.calls))
        return message

    async def _work(self, message: Message) -> None:
        """The calls of a reply."""
        self.tell(ev.ToolCalls, count=len(message.calls))
        self.batch = Batch(self, message.calls)
        results = await self.batch.run()
        self.batch = None
        if self.core.hooks.has("after_tool_batch"):
            await self.hook("after_tool_batch", results)
        await self._compact_if_wanted()

    async def _compact_if_wanted(self) -> None:
        if self._wants_compaction:
            self._wants_compaction = False
            await self.compact("manual")

    async def _goes_on(self, message: Message) -> bool:
        """Nothing is left to do, unless somebody has something to add."""
        if self.core.hooks.has("before_finish"):
            await self.hook("before_finish")
        await self._compact_if_wanted()
        if self.has_steering():
            self.tell(ev.AgentResumed, trigger="steering")
            return True
        # whoever intervened since the reply stands behind it now, and wants an answer
        last = self.messages()[-1:]
        return bool(last) and last[0].role == "user" and bool(message.parts)

    def add_usage(self, usage: TokenUsage) -> None:
        """A sum with an unknown cost in it has no known cost."""
        if self.usage is None:
            self.usage = usage
            return
        one, known = self.usage, self.usage.cost_usd is not None and usage.cost_usd is not None
        self.usage = TokenUsage(
            input=one.input + usage.input,
            output=one.output + usage.output,
            cache_read=one.cache_read + usage.cache_read,
            cache_write=one.cache_write + usage.cache_write,
            cost_usd=(one.cost_usd or 0) + (usage.cost_usd or 0) if known else None,
        )

    # --- shortening

    def want_compaction(self) -> int:
        self._wants_compaction = True
        return cut_at(self.messages(), self.core.options.keep_messages)

    async def compact(self, trigger: Literal["manual", "auto"]) -> bool:
        self._compacting = True
        try:
            return await compacted(self, trigger)
        finally:
            self._compacting = False

    def _is_full(self) -> bool:
        limit = self.core.options.context_limit
        return limit is not None and self.core.context_tokens(self.path) >= limit * self.core.options.compact_at

    # --- how it ends

    def _end(self, outcome: Literal["completed", "failed"]) -> Body:
        return self.made(ev.AgentEnd, outcome=outcome, usage=self.usage, messages=self._told())

    def _told(self) -> tuple[Json, ...]:
        """The messages of this turn. Results are cut short: each stands whole in its own event."""
        conversation = self.conversation
        messages = [_shortened(one) for one in messages_of(conversation)[conversation.turn_from :]]
        # as it will be read back from a log
        return tuple(msgspec.json.decode(msgspec.json.encode(messages)))

    def _failed(self, kind: str, message: str, resets_at: int | None = None) -> list[Body]:
        self.outcome, self.why = kind, message
        return [
            *self.interrupted("all", "the turn failed"),
            self.made(ev.TurnFailed, kind=kind, message=message, resets_at=resets_at),
            self._end("failed"),
        ]

    def _aborted(self, reason: str) -> list[Body]:
        self.why = reason
        return [*self.interrupted("killable", reason), self.made(ev.AgentAbort, reason=reason)]

    def interrupted(self, kill: KillTools, reason: str) -> list[Body]:
        """What must be said of everything that is cut off, and whoever works on it is told to end."""
        bodies: list[Body] = []
        if self.reply is not None and self.reply.said:
            bodies.append(self.reply.aborted(True))
        self.reply = None
        for gate in self.core.gates.held(self.path):
            self.core.gates.drop(gate)
            bodies.append(gate.resolved("withdrawn", reason=reason))
        for question in self.core.gates.asked(self.path):
            self.core.gates.drop(question)
            bodies.append(question.withdrawn())
        if self.batch is not None:
            bodies += self.batch.interrupted(kill, reason)
        if self._compacting:
            bodies.append(self.made(ev.CompactEnd, ok=False))
        return bodies

    def left(self) -> set[asyncio.Task[Any]]:
        """What still runs of it and must end before the next turn's first request."""
        tasks: set[asyncio.Task[Any]] = set(self.batch.dying) if self.batch is not None else set()
        if self.task is not None and not self.task.done():
            tasks.add(self.task)
        return tasks

    async def _after_turn(self, closing: Body) -> None:
        if not self.path and not self.ending and self.core.hooks.has("after_turn"):
            await self.after_turn(closing)

    async def after_turn(self, closing: Body) -> None:
        """The plugins' last word before idle."""
        outcome = closing.outcome if isinstance(closing, ev.AgentEnd) else "aborted"
        payload = {"outcome": outcome, "turn_id": self.turn_id, "rounds": self.rounds, "text": self.text}
        await self.core.hooks.ask("after_turn", PluginContext(self.core, self), payload)


def _message_of(conversation: Conversation, complete: ev.ResponseComplete) -> Message:
    """The reply as the conversation holds it; an empty one it does not hold."""
    last = conversation.messages[-1] if conversation.messages else None
    if last is not None and last.role == "assistant" and last.message_id == complete.message_id:
        return last
    return Message("assistant", (), complete.message_id)


def _shortened(message: Message) -> Message:
    return replace(message, parts=tuple(_excerpt(part) for part in message.parts))


def _excerpt(part: Part) -> Part:
    if isinstance(part, Picture):
        return Text("(an image)")
    if isinstance(part, Result) and (len(part.text) > _EXCERPT or part.images):
        return replace(part, text=part.text[:_EXCERPT] + "…", images=())
    return part
