"""Run one turn of the agent: from a prompt to the event that closes the turn.

    begin ─▶ merge steering ─▶ request, reply ─▶ calls? ── yes ──▶ run the batch ─┐
                  ▲                               │ no                           │
                  │      plugins or the user       ▼                             │
                  ├────────── add a text ◀──── finish? ──▶ end                   │
                  └──────────────────────────────────────────────────────────────┘

The turn writes events and holds no state of its own about what the agent is doing: the kernel folds that from the events.
The work of a sub-agent is a turn with a path. `runtime.py` starts turns and ends them from outside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.engine.batch import Batch, KillTools, TurnAborted
from quarterdeck.engine.compaction import compact_conversation, count_removable
from quarterdeck.engine.conversation import Conversation, messages_of
from quarterdeck.engine.hooks import PluginContext, Verdict
from quarterdeck.engine.model import (
    Message,
    ModelError,
    ModelStalled,
    Part,
    Picture,
    Request,
    Result,
    SelectedModel,
    Text,
    stall_timeout,
)
from quarterdeck.engine.reply import Reply
from quarterdeck.engine.tools.base import Tool
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Body, Image, Json, TokenUsage

if TYPE_CHECKING:
    from quarterdeck.engine.runtime import AgentRuntime

#: Length of a result in `agent_end`. The whole result is in the event that ended its call.
_EXCERPT = 200
#: Notices for replies that ended early.
_STOP_NOTICES = {
    "length": "the reply was cut off at the token limit",
    "refused": "the model refused to continue",
}
#: Seconds that a turn waits for cancelled tasks of the turn before it.
_UNWIND_S = 10.0
#: Seconds that an abort waits for `after_turn` hooks. `agent_abort` must be published within 100 ms.
_CANCEL_HOOKS_S = 0.05


class Prompt(Struct, frozen=True):
    """The text that begins a turn."""

    text: str
    message_id: str
    images: tuple[Image, ...] = ()
    source: Literal["user", "agent"] = "user"


class TurnResult(Struct, frozen=True):
    """How a turn ended."""

    #: `completed`, `aborted`, or the kind of its failure.
    kind: str
    #: The text of all its replies.
    text: str
    #: Why it didn't complete.
    message: str = ""


class Turn:
    """One turn of the main agent, or the whole work of a sub-agent."""

    def __init__(
        self,
        runtime: AgentRuntime,
        prompt: Prompt,
        path: tuple[str, ...] = (),
        *,
        model: SelectedModel | None = None,
        tools: Mapping[str, Tool] | None = None,
        system_prompt: str | None = None,
        max_turns: int | None = None,
    ) -> None:
        options = runtime.options
        self.runtime = runtime
        self.prompt = prompt
        self.path = path
        self.turn_id = runtime.next_id("t")
        self.model = model or runtime.model
        self.system_prompt = options.system_prompt if system_prompt is None else system_prompt
        self._tools = tools
        self._max_requests = options.max_turns if max_turns is None else max_turns
        #: The task that runs this turn, set by the code that creates it.
        self.task: asyncio.Task[Any] | None = None
        #: The batch of tool calls that is running.
        self.batch: Batch | None = None
        #: Number of requests so far.
        self.rounds = 0
        #: Text of each reply.
        self.texts: list[str] = []
        #: Tokens of all its requests, including those of sub-agents.
        self.usage: TokenUsage | None = None
        #: Whether `agent_start` was written.
        self.has_begun = False
        #: Whether the turn is ended from outside (`cancel`). The caller that cancels it writes the closing event.
        self.is_cancelled = False
        #: Resolved once the plugins have decided on the prompt: None, or the reason why it was refused.
        self.admission: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._reply: Reply | None = None
        self._outcome = "aborted"
        self._failure = ""
        self._compaction_requested = False
        self._is_compacting = False
        self._cancel_hooks: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------------------------------- events and queries

    def body(self, kind: Callable[..., Body], /, **fields: Any) -> Body:
        """Build an event of this turn without writing it."""
        return kind(turn_id=self.turn_id, agent_path=self.path, **fields)

    def record(self, kind: Callable[..., Body], /, **fields: Any) -> None:
        """Write one event of this turn."""
        self.runtime.journal.write((self.body(kind, **fields),))

    def write(self, *bodies: Body) -> None:
        """Write events as one batch."""
        if bodies:
            self.runtime.journal.write(bodies)

    @property
    def conversation(self) -> Conversation:
        return self.runtime.journal.conversations[self.path]

    def messages(self) -> tuple[Message, ...]:
        return messages_of(self.conversation)

    @property
    def text(self) -> str:
        """The text of all replies so far."""
        return "\n\n".join(self.texts)

    @property
    def result(self) -> TurnResult:
        return TurnResult("aborted" if self.is_cancelled else self._outcome, self.text, self._failure)

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The tools of this agent. A sub-agent has its own; the main agent uses those that are attached now."""
        return self.runtime.tools if self._tools is None else self._tools

    def has_steering(self) -> bool:
        return not self.path and bool(self.runtime.steering_refs())

    async def run_hook(self, hook: str, *args: Any, collect: list[Body] | None = None) -> Verdict:
        """Run a hook of all plugins, and apply a model switch, an abort and added texts.

        With `collect`, an added text is appended to that list instead of being written.

        Raises:
            TurnAborted: a plugin ended the turn. An abort of `before_prompt` is returned instead: no turn has begun.
        """
        verdict = await self.runtime.hooks.run(hook, PluginContext(self.runtime, self), *args)
        if verdict.switch is not None:
            self.runtime.switch_model_for_plugin(verdict.switch, self)
        if hook == "before_prompt":
            return verdict
        if verdict.abort is not None:
            raise TurnAborted(verdict.abort, verdict.outcome)
        if verdict.prompts:
            intervention = self.body(ev.Intervention, prompt=verdict.prompt)
            if collect is None:
                self.write(intervention)
            else:
                collect.append(intervention)
        return verdict

    # ------------------------------------------------------------------------------------------------- the beginning

    def begin(self, prompts: Sequence[str] = ()) -> None:
        """Write the prompt, the start of the turn, and the texts that plugins add to the prompt."""
        received = self.body(
            ev.PromptReceived,
            text=self.prompt.text,
            message_id=self.prompt.message_id,
            images=self.prompt.images,
            source=self.prompt.source,
        )
        interventions = [self.body(ev.Intervention, prompt="\n\n".join(prompts))] if prompts else []
        origin = "user" if self.prompt.source == "user" else "engine"
        self.has_begun = True
        self.runtime.journal.write((received, self.body(ev.AgentStart), *interventions), origin)

    def begin_without_prompt(self) -> None:
        """Begin a turn that only compacts the conversation."""
        self.has_begun = True
        self.runtime.journal.write((self.body(ev.AgentStart),), "user")

    async def run(self, after: set[asyncio.Task[Any]], work: Callable[[], Awaitable[object]] | None = None) -> None:
        """Run the turn and write the event that closes it, unless the turn is cancelled from outside.

        Args:
            after: tasks of earlier turns that must end first.
            work: what to do instead of `run_rounds`.
        """
        closing: list[Body]
        try:
            if after:
                await asyncio.wait(after, timeout=_UNWIND_S)
            if not self.has_begun and not await self._admit():
                return
            # The prompt must be durable before the model reads it.
            await self.runtime.journal.flush()
            await (work or self.run_rounds)()
            self._outcome = "completed"
            closing = [self._end_event("completed")]
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self.is_cancelled or task is None or task.cancelling():
                raise
            # Not this task but something that it awaited was cancelled, so no other code closes the turn.
            closing = self._fail("internal", "an operation that the turn was waiting for was cancelled")
        except TurnAborted as error:
            self._failure = error.reason
            closing = [*self.interrupt("killable", error.reason), self.body(ev.AgentAbort, reason=error.reason)]
        except ModelError as error:
            kind = "api" if error.kind == "overflow" else error.kind
            closing = self._fail(kind, error.message, error.resets_at)
        except Exception as error:
            closing = self._fail("internal", describe_error(error))
        if not self.path and not self.is_cancelled:
            await self._run_after_turn(closing[-1])
        if not self.is_cancelled:
            self.write(*closing)
            self.runtime.finish_turn(self)

    async def _admit(self) -> bool:
        """Run the `before_prompt` hooks, then begin the turn or reject the prompt. Return whether the turn began."""
        prompt = self.prompt
        verdict = await self.run_hook("before_prompt", prompt.text)
        if self.is_cancelled:
            return False
        refusal = verdict.abort if verdict.abort is not None else verdict.skip
        if refusal is None:
            self.begin(verdict.prompts)
            self._resolve_admission(None)
            return True
        self.write(ev.PromptRejected(reason=refusal, text=prompt.text, message_id=prompt.message_id))
        self._resolve_admission(refusal)
        self.runtime.finish_turn(self)
        return False

    def _resolve_admission(self, refusal: str | None) -> None:
        # The future is cancelled if the caller of `prompt` gave up waiting.
        if not self.admission.done():
            self.admission.set_result(refusal)

    # ------------------------------------------------------------------------------------------------------ the loop

    async def run_rounds(self) -> None:
        """Send requests until a reply has no calls and neither plugins nor the user add a text.

        Raises:
            ModelError: a request failed for good, or the turn took too many requests.
            TurnAborted: a plugin ended the turn.
        """
        while True:
            self._merge_steering()
            if self.rounds >= self._max_requests:
                message = f"the turn took {self.rounds} requests and isn't finished"
                raise ModelError("turn_limit", message, "Send another prompt to continue.")
            self.rounds += 1
            if self._is_context_full():
                await self.compact("auto")
            messages = await self._messages_to_send()
            reply = None if messages is None else await self._request(messages)
            if reply is None:
                return
            message = await self._record_reply(reply)
            if message.calls:
                await self._run_calls(message)
            elif not await self._continues(message):
                return

    def _merge_steering(self) -> None:
        refs = () if self.path else self.runtime.steering_refs()
        if refs:
            self.record(ev.SteeringApplied, refs=refs, count=len(refs))

    async def _run_calls(self, message: Message) -> None:
        self.record(ev.ToolCalls, count=len(message.calls))
        self.batch = Batch(self, message.calls)
        results = await self.batch.run()
        self.batch = None
        await self.run_hook("after_tool_batch", results)
        await self._compact_if_requested()

    async def _continues(self, message: Message) -> bool:
        """Return whether there is something to answer after a reply without calls."""
        await self.run_hook("before_finish")
        await self._compact_if_requested()
        if self.has_steering():
            self.record(ev.AgentResumed, trigger="steering")
            return True
        # A text that a plugin added since the reply is now the last message. An empty reply isn't part of the
        # conversation, so the last message is then the one that got no answer, and asking again could go on forever.
        last = self.messages()[-1:]
        return bool(last) and last[0].role == "user" and bool(message.parts)

    # ------------------------------------------------------------------------------------------- one request, one reply

    async def _messages_to_send(self) -> Sequence[Message] | None:
        """Run the `before_request` hooks and return the messages to send, or None if a plugin skips the request."""
        verdict = await self.run_hook("before_request", list(self.messages()))
        if verdict.skip is not None:
            return None
        # Read the messages again: hooks may have added texts to the conversation.
        return self.messages() if verdict.messages is None else verdict.messages

    async def _request(self, messages: Sequence[Message]) -> Reply | None:
        """Send a request until there is a reply, with retries and at most one compaction.

        Returns None if a plugin skips the request after the compaction.

        Raises:
            ModelError: the request failed for good.
        """
        attempt, has_compacted = 0, False
        while True:
            reply = self._reply = Reply(self.runtime.next_id("m"), self.turn_id, self.path)
            try:
                await self._stream(messages, reply)
                return reply
            except ModelError as error:
                self._reply = None
                discarded = [reply.abort(keep=False)] if reply.has_events else []
                if error.kind != "overflow":
                    attempt += 1
                    await self._wait_for_retry(error, attempt, discarded)
                    continue
                self.write(*discarded, self.body(ev.ContextOverflow, reason=error.message))
                if has_compacted or not await self.compact("auto"):
                    raise ModelError("api", error.message, error.hint) from error
                has_compacted = True
                compacted_messages = await self._messages_to_send()
                if compacted_messages is None:
                    return None
                messages = compacted_messages

    async def _stream(self, messages: Sequence[Message], reply: Reply) -> None:
        """Send one request and write the events of its reply while it arrives."""
        options, model = self.runtime.options, self.model
        request = Request(
            model=model.name,
            messages=messages,
            system=self.system_prompt,
            tools=[tool.spec for tool in self.tools.values()],
            max_tokens=options.max_tokens,
            response_format=options.response_format if not self.path else None,
            thinking=options.thinking,
            options=model.options,
        )
        self.record(ev.RequestStart, model=model.full_name, messages=len(messages))
        stream = model.provider.stream(request)
        try:
            async with stall_timeout(options.stall_after) as note_progress:
                async for chunks in stream:
                    note_progress()
                    self.write(*reply.feed(chunks))
                    if reply.finished is not None:
                        return
        finally:
            await stream.aclose()
        raise ModelError("network", "the stream ended before the reply was complete", "Try again.", is_transient=True)

    async def _wait_for_retry(self, error: ModelError, attempt: int, discarded: Sequence[Body]) -> None:
        """Write what went wrong and wait until the next attempt.

        Raises:
            ModelError: the error again, if there is no next attempt.
        """
        policy = self.runtime.options.retry
        bodies: list[Body] = [*discarded]
        if isinstance(error, ModelStalled):
            bodies.append(self.body(ev.StreamStalled, elapsed_s=error.elapsed_s))
        elif error.is_transient:
            bodies.append(self.body(ev.StreamError, reason=error.message))
        if not error.is_transient or not policy.may_retry(attempt, error.retry_after):
            self.write(*bodies)
            raise error
        delay = policy.delay(attempt, error.retry_after)
        retry = self.body(ev.Retry, attempt=attempt, delay_ms=round(delay * 1000), reason=error.message)
        self.write(*bodies, retry)
        await asyncio.sleep(delay)

    async def _record_reply(self, reply: Reply) -> Message:
        """Write the finished reply, count its tokens and run the `after_response` hooks.

        Returns the reply as a message. If a plugin skips its calls, they are blocked and missing from it.
        """
        finished, complete = reply.finished, reply.complete()
        assert finished is not None
        self._reply = None
        bodies: list[Body] = [complete]
        if finished.usage is not None:
            bodies += self.runtime.count_usage(finished.usage, self.model.full_name, self, reply.message_id)
        if finished.stop_reason in _STOP_NOTICES:
            text = _STOP_NOTICES[finished.stop_reason]
            bodies.append(self.body(ev.Notice, level="warning", text=text, source="model"))
        self.write(*bodies)
        message = self._last_reply(reply.message_id)
        if message.text:
            self.texts.append(message.text)
        verdict = await self.run_hook("after_response", message)
        if verdict.skip is None or not message.calls:
            return message
        self.write(
            *(
                self.body(ev.ToolBlocked, name=call.name, call_id=call.call_id, reason=verdict.skip)
                for call in message.calls
            )
        )
        return replace(message, parts=tuple(part for part in message.parts if part not in message.calls))

    def _last_reply(self, message_id: str) -> Message:
        """Return the last reply from the conversation. An empty reply isn't part of the conversation."""
        messages = self.conversation.messages
        if messages and messages[-1].role == "assistant" and messages[-1].message_id == message_id:
            return messages[-1]
        return Message("assistant", (), message_id)

    def add_usage(self, usage: TokenUsage) -> None:
        """Add tokens to the turn. If the cost of one part is unknown, the cost of the sum is unknown."""
        total = self.usage
        if total is None:
            self.usage = usage
            return
        is_cost_known = total.cost_usd is not None and usage.cost_usd is not None
        self.usage = TokenUsage(
            input=total.input + usage.input,
            output=total.output + usage.output,
            cache_read=total.cache_read + usage.cache_read,
            cache_write=total.cache_write + usage.cache_write,
            cost_usd=(total.cost_usd or 0) + (usage.cost_usd or 0) if is_cost_known else None,
        )

    # ---------------------------------------------------------------------------------------------------- compaction

    def request_compaction(self) -> int:
        """Compact the conversation after the current batch, or at the end of the turn.

        Returns how many messages that would remove now.
        """
        self._compaction_requested = True
        return count_removable(self.messages(), self.runtime.options.keep_messages)

    async def _compact_if_requested(self) -> None:
        if self._compaction_requested:
            self._compaction_requested = False
            await self.compact("manual")

    async def compact(self, trigger: Literal["manual", "auto"]) -> bool:
        """Compact the conversation now and return whether it is shorter."""
        self._is_compacting = True
        try:
            return await compact_conversation(self, trigger)
        finally:
            self._is_compacting = False

    def _is_context_full(self) -> bool:
        options = self.runtime.options
        limit = options.context_limit
        return limit is not None and self.runtime.context_tokens(self.path) >= limit * options.compact_at

    # ------------------------------------------------------------------------------------------------------- the end

    def cancel(self, reason: str | None, kill: KillTools) -> list[Body]:
        """End the turn from outside: cancel its task and return the events for everything that is cut off.

        The caller writes these events and then the event that closes the turn.
        """
        self.is_cancelled = True
        self._failure = reason or ""
        bodies = self.interrupt(kill, reason or "aborted")
        if not self.has_begun:
            bodies.append(ev.PromptDropped(text=self.prompt.text, message_id=self.prompt.message_id))
            self._resolve_admission(reason or "aborted")
        # A plugin or a tool of this turn may be the one that aborts it. Its task ends by itself.
        if self.task is not None and self.task is not current_task():
            self.task.cancel()
        return bodies

    def interrupt(self, kill: KillTools, reason: str) -> list[Body]:
        """Stop the reply, the gates, the calls and the compaction that are open, and return the events for that."""
        bodies: list[Body] = []
        if self._reply is not None and self._reply.has_events:
            bodies.append(self._reply.abort(keep=True))
        self._reply = None
        bodies += self.runtime.approvals.withdraw_all(self.path, reason)
        if self.batch is not None:
            bodies += self.batch.interrupt(kill, reason)
        if self._is_compacting:
            bodies.append(self.body(ev.CompactEnd, ok=False))
        return bodies

    def unwinding(self) -> set[asyncio.Task[Any]]:
        """Return the tasks of this turn that must end before the next turn sends a request."""
        tasks: set[asyncio.Task[Any]] = set(self.batch.unwinding) if self.batch is not None else set()
        if self.task is not None and not self.task.done():
            tasks.add(self.task)
        return tasks

    async def run_cancel_hooks(self, closing: Body) -> None:
        """Run the `after_turn` hooks of a cancelled turn. Hooks that take too long continue in the background."""
        self._cancel_hooks = asyncio.create_task(self._run_after_turn(closing))
        await asyncio.wait((self._cancel_hooks,), timeout=_CANCEL_HOOKS_S)

    async def _run_after_turn(self, closing: Body) -> None:
        outcome = closing.outcome if isinstance(closing, ev.AgentEnd) else "aborted"
        payload = {"outcome": outcome, "turn_id": self.turn_id, "rounds": self.rounds, "text": self.text}
        await self.runtime.hooks.run("after_turn", PluginContext(self.runtime, self), payload)

    def _fail(self, kind: str, message: str, resets_at: int | None = None) -> list[Body]:
        """Return the events that close a failed turn."""
        self._outcome, self._failure = kind, message
        return [
            *self.interrupt("all", "the turn failed"),
            self.body(ev.TurnFailed, kind=kind, message=message, resets_at=resets_at),
            self._end_event("failed"),
        ]

    def _end_event(self, outcome: Literal["completed", "failed"]) -> Body:
        conversation = self.conversation
        messages = [_shorten(message) for message in messages_of(conversation)[conversation.turn_start :]]
        # Encode and decode, so that subscribers get the same plain values as readers of the log.
        encoded: list[Json] = msgspec.json.decode(msgspec.json.encode(messages))
        return self.body(ev.AgentEnd, outcome=outcome, usage=self.usage, messages=tuple(encoded))


def _shorten(message: Message) -> Message:
    return replace(message, parts=tuple(_shorten_part(part) for part in message.parts))


def _shorten_part(part: Part) -> Part:
    if isinstance(part, Picture):
        return Text("(an image)")
    if isinstance(part, Result) and (len(part.text) > _EXCERPT or part.images):
        return replace(part, text=part.text[:_EXCERPT] + "…", images=())
    return part


def describe_error(error: BaseException) -> str:
    return error.message if isinstance(error, QuarterdeckError) else f"{type(error).__name__}: {error}"


def current_task() -> asyncio.Task[Any] | None:
    """Return the current task, or None in a callback that runs outside of any event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
