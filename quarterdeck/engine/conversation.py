"""The conversation as the model reads it: a pure fold of the session's own events.

Messages are stored nowhere else. The live loop folds what it says, a resumed session folds what the log holds, and both
use `folded`, so that they cannot differ.

A batch of calls stands open until every call has its result. What is said meanwhile (interventions, steering) waits behind
it. When something comes that cannot wait (a prompt, the next reply), or a request is made (`messages_of`), the calls that
have no result are told to the model as interrupted: they may have run or not, and are never run again unasked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.engine.model import Call, Message, Part, Picture, Result, Text, Thinking
from quarterdeck.events import Block, Body, HistoryMessage, Image, Json

STILL_RUNNING = "still running: the turn was ended and this call goes on without it; its result will not be told"
INTERRUPTED = "interrupted: this call was cut off; whether it ran, and how far, is not known"
#: How a summary of what was left out is introduced.
SUMMARY = "Summary of the conversation so far:\n\n"

_encode = msgspec.json.Encoder().encode
_sorted = msgspec.json.Encoder(order="sorted").encode


class Steering(Struct, frozen=True):
    """A steering text that was taken and is not yet merged."""

    ref: str
    text: str
    images: tuple[Image, ...] = ()


class Conversation(Struct, frozen=True):
    """What was said. `calls` is the open batch, `results` what is known of it, `later` what waits behind it, `background`
    which of the calls go on without their turn.

    `passes` are calls that a person allowed and that have not run yet (X-035): the next one like it is not asked about.
    `turn_from` is where the messages of the last turn begin.
    """

    messages: tuple[Message, ...] = ()
    calls: tuple[Call, ...] = ()
    results: tuple[Result, ...] = ()
    later: tuple[Part, ...] = ()
    background: tuple[str, ...] = ()
    steering: tuple[Steering, ...] = ()
    passes: tuple[str, ...] = ()
    turn_from: int = 0


EMPTY = Conversation()

_Step: TypeAlias = Callable[[Conversation, Any], Conversation]
_B = TypeVar("_B", bound=Body)
_STEPS: dict[type[Body], _Step] = {}


def _on(*kinds: type[_B]) -> Callable[[Callable[[Conversation, _B], Conversation]], _Step]:
    def register(step: Callable[[Conversation, _B], Conversation]) -> _Step:
        for kind in kinds:
            _STEPS[kind] = step
        return step

    return register


def folded(conversation: Conversation, body: Body) -> Conversation:
    """The conversation after one more event of its agent."""
    step = _STEPS.get(type(body))
    return conversation if step is None else step(conversation, body)


def folded_all(bodies: Iterable[Body], path: tuple[str, ...] = ()) -> Conversation:
    """The conversation of the agent at this path, from all events of its session."""
    conversation = EMPTY
    for body in bodies:
        if body.agent_path == path:
            conversation = folded(conversation, body)
    return conversation


def messages_of(conversation: Conversation) -> tuple[Message, ...]:
    """What the next request holds: every call has its result, and what waited is said."""
    return _closed(conversation).messages


def family(tool: str, args: Json) -> str:
    """The same call again has the same name."""
    try:
        return f"{tool} {_sorted(args).decode()}"
    except (TypeError, ValueError):
        return f"{tool} {args!r}"


# --------------------------------------------------------------------------------------------------- what people say


@_on(ev.PromptReceived)
def _prompted(conversation: Conversation, body: ev.PromptReceived) -> Conversation:
    closed = _closed(conversation)
    said = _with_parts(closed, _user_parts(body.text, body.images), body.message_id)
    return replace(said, turn_from=max(len(said.messages) - 1, 0))


@_on(ev.SteeringReceived)
def _steering_received(conversation: Conversation, body: ev.SteeringReceived) -> Conversation:
    if body.status != "queued":
        return conversation
    return replace(conversation, steering=(*conversation.steering, Steering(body.ref, body.text, body.images)))


@_on(ev.SteeringApplied)
def _steering_applied(conversation: Conversation, body: ev.SteeringApplied) -> Conversation:
    """In the order in which they were applied."""
    by_ref = {one.ref: one for one in conversation.steering}
    parts = [part for ref in body.refs if ref in by_ref for part in _user_parts(by_ref[ref].text, by_ref[ref].images)]
    left = tuple(one for one in conversation.steering if one.ref not in body.refs)
    return _said(replace(conversation, steering=left), tuple(parts))


@_on(ev.PromptDropped)
def _dropped(conversation: Conversation, body: ev.PromptDropped) -> Conversation:
    left = tuple(one for one in conversation.steering if one.ref != body.message_id)
    return conversation if len(left) == len(conversation.steering) else replace(conversation, steering=left)


@_on(ev.Intervention)
def _intervened(conversation: Conversation, body: ev.Intervention) -> Conversation:
    return _said(conversation, (Text(body.prompt),))


# ------------------------------------------------------------------------------------------------ what the model says


@_on(ev.ResponseComplete)
def _answered(conversation: Conversation, body: ev.ResponseComplete) -> Conversation:
    parts = tuple(part for block in body.blocks if (part := _part(block)) is not None)
    closed = _closed(conversation)
    if not parts:
        return closed
    message = Message("assistant", parts, body.message_id)
    return replace(closed, messages=(*closed.messages, message), calls=message.calls)


@_on(ev.MessageAborted)
def _cut_off(conversation: Conversation, body: ev.MessageAborted) -> Conversation:
    """What stays is what was said: reasoning without its end would be refused, half a call means nothing."""
    parts = tuple(Text(block.text) for block in body.blocks if block.kind == "text" and block.text.strip())
    if not body.keep or not parts:
        return conversation
    closed = _closed(conversation)
    return replace(closed, messages=(*closed.messages, Message("assistant", parts, body.message_id)))


def _part(block: Block) -> Part | None:
    if block.kind == "text":
        return Text(block.text) if block.text else None
    if block.kind == "thinking":
        return Thinking(block.text, block.signature) if block.text or block.signature else None
    if block.kind == "tool_call":
        args: Any = block.args
        known = cast("dict[str, Json]", args) if isinstance(args, dict) else {}
        return Call(block.call_id, block.name, known, block.text)
    return None


# -------------------------------------------------------------------------------------------------- what the tools gave


@_on(ev.ToolExecutionEnd)
def _ended(conversation: Conversation, body: ev.ToolExecutionEnd) -> Conversation:
    text = body.told or (body.result if isinstance(body.result, str) else plain(body.result))
    return _resulted(conversation, Result(body.call_id, body.name, text, body.ok, body.images))


@_on(ev.ToolBlocked)
def _blocked(conversation: Conversation, body: ev.ToolBlocked) -> Conversation:
    return _resulted(conversation, Result(body.call_id, body.name, f"not run: {body.reason}", False))


@_on(ev.ToolKilled)
def _killed(conversation: Conversation, body: ev.ToolKilled) -> Conversation:
    return _resulted(conversation, Result(body.call_id, body.name, f"ended before it was done: {body.reason}", False))


@_on(ev.ToolSkippedForSteering)
def _skipped(conversation: Conversation, body: ev.ToolSkippedForSteering) -> Conversation:
    return _resulted(conversation, Result(body.call_id, body.name, f"skipped: {body.reason}", False))


@_on(ev.ToolCallUnknown)
def _unknown(conversation: Conversation, body: ev.ToolCallUnknown) -> Conversation:
    return _resulted(conversation, Result(body.call_id, body.name, f"there is no tool {body.name}", False))


@_on(ev.BackgroundStarted)
def _detached(conversation: Conversation, body: ev.BackgroundStarted) -> Conversation:
    """A call that goes on without its turn; if it ends before anything else is said, its result is told after all."""
    if all(call.call_id != body.id for call in conversation.calls):
        return conversation
    return replace(conversation, background=(*conversation.background, body.id))


@_on(ev.ApprovalResolved)
def _allowed(conversation: Conversation, body: ev.ApprovalResolved) -> Conversation:
    if body.status != "approved" or body.gate is None:
        return conversation
    return replace(conversation, passes=(*conversation.passes, family(body.gate.tool, body.gate.args)))


@_on(ev.ToolExecutionStart)
def _started(conversation: Conversation, body: ev.ToolExecutionStart) -> Conversation:
    if not conversation.passes:
        return conversation
    name = family(body.name, body.args)
    return replace(conversation, passes=tuple(one for one in conversation.passes if one != name))


# ------------------------------------------------------------------------------------------------ history, compaction


@_on(ev.TurnRestored)
def _restored(conversation: Conversation, body: ev.TurnRestored) -> Conversation:
    """A history to start from. One that is told again, of a session that has messages, is the same one."""
    if conversation.messages or not body.history:
        return conversation
    messages = tuple(message for one in body.history if (message := _from_history(one)) is not None)
    return replace(conversation, messages=messages, turn_from=len(messages))


@_on(ev.CompactEnd)
def _compacted(conversation: Conversation, body: ev.CompactEnd) -> Conversation:
    """The first messages give way to their summary."""
    if not body.ok or not body.removed_count:
        return conversation
    closed = _closed(conversation)
    summary = Text(SUMMARY + body.summary)
    first, *rest = closed.messages[body.removed_count :] or (None,)
    if first is not None and first.role == "user":
        messages = (replace(first, parts=(summary, *first.parts)), *rest)
    else:
        messages = (Message("user", (summary,)), *closed.messages[body.removed_count :])
    return replace(
        closed, messages=cast("tuple[Message, ...]", messages), turn_from=min(closed.turn_from, len(messages))
    )


def history_of(messages: Sequence[Message]) -> tuple[HistoryMessage, ...]:
    """Messages as an event can hold them."""
    return tuple(
        HistoryMessage(message_id=one.message_id or f"h{place}", role=one.role, blocks=_blocks(one))
        for place, one in enumerate(messages)
    )


def _blocks(message: Message) -> tuple[Block, ...]:
    return tuple(_block(part, place) for place, part in enumerate(message.parts))


def _block(part: Part, place: int) -> Block:
    if isinstance(part, Text):
        return Block(block=place, text=part.text)
    if isinstance(part, Thinking):
        return Block(block=place, kind="thinking", text=part.text, signature=part.signature)
    if isinstance(part, Picture):
        return Block(block=place, images=(part.image,))
    if isinstance(part, Call):
        return Block(
            block=place, kind="tool_call", call_id=part.call_id, name=part.name, args=part.args, text=part.broken
        )
    return Block(
        block=place,
        kind="tool_result",
        call_id=part.call_id,
        name=part.name,
        text=part.text,
        ok=part.ok,
        images=part.images,
    )


def _from_history(one: HistoryMessage) -> Message | None:
    if one.role not in ("user", "assistant", "tool"):
        return None
    parts = tuple(part for block in one.blocks for part in _restored_parts(block))
    return Message(one.role, parts, one.message_id) if parts else None


def _restored_parts(block: Block) -> tuple[Part, ...]:
    if block.kind == "tool_result":
        return (Result(block.call_id, block.name, block.text, block.ok, block.images),)
    part = _part(block)
    pictures = tuple(Picture(image) for image in block.images)
    return pictures if part is None else (part, *pictures)


# ------------------------------------------------------------------------------------------------------------- pieces


def _user_parts(text: str, images: Sequence[Image]) -> tuple[Part, ...]:
    said: tuple[Part, ...] = (Text(text),) if text else ()
    return (*said, *(Picture(image) for image in images))


def _said(conversation: Conversation, parts: tuple[Part, ...]) -> Conversation:
    """Said to the model now, or behind the batch that is open."""
    if conversation.calls:
        return replace(conversation, later=(*conversation.later, *parts))
    return _with_parts(conversation, parts, "")


def _with_parts(conversation: Conversation, parts: tuple[Part, ...], message_id: str) -> Conversation:
    """What follows a text of the user is part of it: models want their own words and ours to take turns."""
    if not parts:
        return conversation
    *before, last = conversation.messages or (None,)
    if last is not None and last.role == "user":
        joined = replace(last, parts=(*last.parts, *parts), message_id=message_id or last.message_id)
        return replace(conversation, messages=(*before, joined))
    return replace(conversation, messages=(*conversation.messages, Message("user", parts, message_id)))


def _resulted(conversation: Conversation, result: Result) -> Conversation:
    """With the result of an open call; one that comes too late was told as interrupted already."""
    if all(call.call_id != result.call_id for call in conversation.calls):
        return conversation
    others = tuple(one for one in conversation.results if one.call_id != result.call_id)
    after = replace(conversation, results=(*others, result))
    return _closed(after) if len(after.results) == len(after.calls) else after


def _closed(conversation: Conversation) -> Conversation:
    """With the open batch behind it."""
    if not conversation.calls:
        return conversation
    known = {one.call_id: one for one in conversation.results}
    results = tuple(known.get(call.call_id) or _without(conversation, call) for call in conversation.calls)
    messages = (*conversation.messages, Message("tool", results))
    done = replace(conversation, messages=messages, calls=(), results=(), later=(), background=())
    return _with_parts(done, conversation.later, "")


def _without(conversation: Conversation, call: Call) -> Result:
    """What is told of a call that has no result."""
    said = STILL_RUNNING if call.call_id in conversation.background else INTERRUPTED
    return Result(call.call_id, call.name, said, False)


def plain(value: Json) -> str:
    """A result that is no text, as text."""
    if value is None:
        return ""
    try:
        return _encode(value).decode()
    except (TypeError, ValueError):
        return str(value)
