"""Fold a session's own events into the conversation that the model reads.

The fold is pure, and messages are stored nowhere else. The live agent folds the events that it writes, and a resumed session
folds the events in the log. Both use `fold_conversation`, so they can't differ.

A batch of tool calls stays open until every call has a result. Texts that arrive meanwhile (interventions, steering) are
deferred until the batch is closed. Some things can't wait: a prompt, the next reply, or a request that needs the messages
now (`messages_of`). They close the batch, and calls without a result are reported to the model as interrupted. Such a call
may or may not have run, so the engine never runs it again on its own.
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

STILL_RUNNING = (
    "still running: the turn ended, and this call continues in the background. Its result won't be reported."
)
INTERRUPTED = "interrupted: this call was cut off. It isn't known whether it ran or how far it got."
#: Introduces the summary that replaces older messages.
SUMMARY = "Summary of the conversation so far:\n\n"

_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode


class Steering(Struct, frozen=True):
    """A steering text that is queued and not yet part of the conversation."""

    ref: str
    text: str
    images: tuple[Image, ...] = ()


class Conversation(Struct, frozen=True):
    """The conversation of one agent."""

    messages: tuple[Message, ...] = ()
    #: Calls of the open batch. Empty if no batch is open.
    open_calls: tuple[Call, ...] = ()
    #: Results of the open batch so far.
    results: tuple[Result, ...] = ()
    #: Parts that follow the open batch.
    deferred: tuple[Part, ...] = ()
    #: Ids of calls that outlive their turn.
    background: tuple[str, ...] = ()
    steering: tuple[Steering, ...] = ()
    #: Keys (`call_key`) of calls that a person approved and that haven't run yet. The next such call needs no approval.
    approved_calls: tuple[str, ...] = ()
    #: Index of the first message of the last turn.
    turn_start: int = 0


EMPTY = Conversation()

_Step: TypeAlias = Callable[[Conversation, Any], Conversation]
_B = TypeVar("_B", bound=Body)
_STEPS: dict[type[Body], _Step] = {}


def _on(kind: type[_B]) -> Callable[[Callable[[Conversation, _B], Conversation]], _Step]:
    """Register the step for one type of event."""

    def register(step: Callable[[Conversation, _B], Conversation]) -> _Step:
        _STEPS[kind] = step
        return step

    return register


def fold_conversation(conversation: Conversation, body: Body) -> Conversation:
    """Return the conversation after one more event of its agent."""
    step = _STEPS.get(type(body))
    return conversation if step is None else step(conversation, body)


def conversation_of(bodies: Iterable[Body], path: tuple[str, ...] = ()) -> Conversation:
    """Fold all events of a session into the conversation of the agent at `path`."""
    conversation = EMPTY
    for body in bodies:
        if body.agent_path == path:
            conversation = fold_conversation(conversation, body)
    return conversation


def messages_of(conversation: Conversation) -> tuple[Message, ...]:
    """Return the messages of the next request: every call has a result, and deferred parts are included."""
    return _close_batch(conversation).messages


def call_key(tool: str, args: Json) -> str:
    """Return a key that is equal for two calls of the same tool with the same arguments."""
    try:
        return f"{tool} {_encode_sorted(args).decode()}"
    except (TypeError, ValueError):
        return f"{tool} {args!r}"


# --------------------------------------------------------------------------------------------- prompts and steering


@_on(ev.PromptReceived)
def _on_prompt_received(conversation: Conversation, body: ev.PromptReceived) -> Conversation:
    closed = _close_batch(conversation)
    prompted = _append_user_parts(closed, _user_parts(body.text, body.images), body.message_id)
    return replace(prompted, turn_start=max(len(prompted.messages) - 1, 0))


@_on(ev.SteeringReceived)
def _on_steering_received(conversation: Conversation, body: ev.SteeringReceived) -> Conversation:
    if body.status != "queued":
        return conversation
    return replace(conversation, steering=(*conversation.steering, Steering(body.ref, body.text, body.images)))


@_on(ev.SteeringApplied)
def _on_steering_applied(conversation: Conversation, body: ev.SteeringApplied) -> Conversation:
    """Move steering texts into the conversation, in the order in which the event lists them."""
    by_ref = {steering.ref: steering for steering in conversation.steering}
    applied = [by_ref[ref] for ref in body.refs if ref in by_ref]
    parts = tuple(part for steering in applied for part in _user_parts(steering.text, steering.images))
    queued = tuple(steering for steering in conversation.steering if steering.ref not in body.refs)
    return _append_or_defer(replace(conversation, steering=queued), parts)


@_on(ev.PromptDropped)
def _on_prompt_dropped(conversation: Conversation, body: ev.PromptDropped) -> Conversation:
    queued = tuple(steering for steering in conversation.steering if steering.ref != body.message_id)
    return conversation if len(queued) == len(conversation.steering) else replace(conversation, steering=queued)


@_on(ev.Intervention)
def _on_intervention(conversation: Conversation, body: ev.Intervention) -> Conversation:
    return _append_or_defer(conversation, (Text(body.prompt),))


# ------------------------------------------------------------------------------------------------------------ replies


@_on(ev.ResponseComplete)
def _on_response_complete(conversation: Conversation, body: ev.ResponseComplete) -> Conversation:
    parts = tuple(part for block in body.blocks if (part := _part_of(block)) is not None)
    closed = _close_batch(conversation)
    if not parts:
        return closed
    message = Message("assistant", parts, body.message_id)
    return replace(closed, messages=(*closed.messages, message), open_calls=message.calls)


@_on(ev.MessageAborted)
def _on_message_aborted(conversation: Conversation, body: ev.MessageAborted) -> Conversation:
    """Keep only the text of a reply that was cut off.

    Services reject reasoning without its signature, and an incomplete call has no meaning.
    """
    parts = tuple(Text(block.text) for block in body.blocks if block.kind == "text" and block.text.strip())
    if not body.keep or not parts:
        return conversation
    closed = _close_batch(conversation)
    return replace(closed, messages=(*closed.messages, Message("assistant", parts, body.message_id)))


def _part_of(block: Block) -> Part | None:
    if block.kind == "text":
        return Text(block.text) if block.text else None
    if block.kind == "thinking":
        return Thinking(block.text, block.signature) if block.text or block.signature else None
    if block.kind == "tool_call":
        args: Any = block.args
        parsed = cast("dict[str, Json]", args) if isinstance(args, dict) else {}
        return Call(block.call_id, block.name, parsed, block.text)
    return None


# ------------------------------------------------------------------------------------------------ results of tool calls


@_on(ev.ToolExecutionEnd)
def _on_tool_execution_end(conversation: Conversation, body: ev.ToolExecutionEnd) -> Conversation:
    text = body.told or (body.result if isinstance(body.result, str) else json_text(body.result))
    return _add_result(conversation, Result(body.call_id, body.name, text, body.ok, body.images))


@_on(ev.ToolBlocked)
def _on_tool_blocked(conversation: Conversation, body: ev.ToolBlocked) -> Conversation:
    return _add_result(conversation, Result(body.call_id, body.name, f"not run: {body.reason}", False))


@_on(ev.ToolKilled)
def _on_tool_killed(conversation: Conversation, body: ev.ToolKilled) -> Conversation:
    return _add_result(
        conversation, Result(body.call_id, body.name, f"stopped before it finished: {body.reason}", False)
    )


@_on(ev.ToolSkippedForSteering)
def _on_tool_skipped(conversation: Conversation, body: ev.ToolSkippedForSteering) -> Conversation:
    return _add_result(conversation, Result(body.call_id, body.name, f"skipped: {body.reason}", False))


@_on(ev.ToolCallUnknown)
def _on_tool_call_unknown(conversation: Conversation, body: ev.ToolCallUnknown) -> Conversation:
    return _add_result(conversation, Result(body.call_id, body.name, f"there is no tool named {body.name}", False))


@_on(ev.BackgroundStarted)
def _on_background_started(conversation: Conversation, body: ev.BackgroundStarted) -> Conversation:
    """Mark a call that outlives its turn. If it ends before the batch is closed, its result still counts."""
    if all(call.call_id != body.id for call in conversation.open_calls):
        return conversation
    return replace(conversation, background=(*conversation.background, body.id))


@_on(ev.ApprovalResolved)
def _on_approval_resolved(conversation: Conversation, body: ev.ApprovalResolved) -> Conversation:
    if body.status != "approved" or body.gate is None:
        return conversation
    key = call_key(body.gate.tool, body.gate.args)
    return replace(conversation, approved_calls=(*conversation.approved_calls, key))


@_on(ev.ToolExecutionStart)
def _on_tool_execution_start(conversation: Conversation, body: ev.ToolExecutionStart) -> Conversation:
    if not conversation.approved_calls:
        return conversation
    key = call_key(body.name, body.args)
    return replace(conversation, approved_calls=tuple(other for other in conversation.approved_calls if other != key))


# ------------------------------------------------------------------------------------------------ history, compaction


@_on(ev.TurnRestored)
def _on_turn_restored(conversation: Conversation, body: ev.TurnRestored) -> Conversation:
    """Start from a history. Ignore it if the session already has messages: it is the same history, recorded again."""
    if conversation.messages or not body.history:
        return conversation
    messages = tuple(message for entry in body.history if (message := _message_of(entry)) is not None)
    return replace(conversation, messages=messages, turn_start=len(messages))


@_on(ev.CompactEnd)
def _on_compact_end(conversation: Conversation, body: ev.CompactEnd) -> Conversation:
    """Replace the first messages with their summary."""
    if not body.ok or not body.removed_count:
        return conversation
    closed = _close_batch(conversation)
    summary = Text(SUMMARY + body.summary)
    remaining = closed.messages[body.removed_count :]
    if remaining and remaining[0].role == "user":
        # Two user messages in a row would be rejected by some services, so the summary joins the first one.
        first = replace(remaining[0], parts=(summary, *remaining[0].parts))
        messages = (first, *remaining[1:])
    else:
        messages = (Message("user", (summary,)), *remaining)
    return replace(closed, messages=messages, turn_start=min(closed.turn_start, len(messages)))


def history_of(messages: Sequence[Message]) -> tuple[HistoryMessage, ...]:
    """Convert messages to the form that a `turn_restored` event holds."""
    return tuple(
        HistoryMessage(
            message_id=message.message_id or f"h{number}",
            role=message.role,
            blocks=tuple(_block_of(part, index) for index, part in enumerate(message.parts)),
        )
        for number, message in enumerate(messages)
    )


def _block_of(part: Part, number: int) -> Block:
    if isinstance(part, Text):
        return Block(block=number, text=part.text)
    if isinstance(part, Thinking):
        return Block(block=number, kind="thinking", text=part.text, signature=part.signature)
    if isinstance(part, Picture):
        return Block(block=number, images=(part.image,))
    if isinstance(part, Call):
        return Block(
            block=number, kind="tool_call", call_id=part.call_id, name=part.name, args=part.args, text=part.broken
        )
    return Block(
        block=number,
        kind="tool_result",
        call_id=part.call_id,
        name=part.name,
        text=part.text,
        ok=part.ok,
        images=part.images,
    )


def _message_of(entry: HistoryMessage) -> Message | None:
    if entry.role not in ("user", "assistant", "tool"):
        return None
    parts = tuple(part for block in entry.blocks for part in _parts_of_history(block))
    return Message(entry.role, parts, entry.message_id) if parts else None


def _parts_of_history(block: Block) -> tuple[Part, ...]:
    if block.kind == "tool_result":
        return (Result(block.call_id, block.name, block.text, block.ok, block.images),)
    part = _part_of(block)
    pictures = tuple(Picture(image) for image in block.images)
    return pictures if part is None else (part, *pictures)


# ------------------------------------------------------------------------------------------------- steps they share


def _user_parts(text: str, images: Sequence[Image]) -> tuple[Part, ...]:
    texts: tuple[Part, ...] = (Text(text),) if text else ()
    return (*texts, *(Picture(image) for image in images))


def _append_or_defer(conversation: Conversation, parts: tuple[Part, ...]) -> Conversation:
    """Append user parts now, or after the open batch if there is one."""
    if conversation.open_calls:
        return replace(conversation, deferred=(*conversation.deferred, *parts))
    return _append_user_parts(conversation, parts, "")


def _append_user_parts(conversation: Conversation, parts: tuple[Part, ...], message_id: str) -> Conversation:
    """Append parts of the user, joining them to a user message that comes last.

    Services require that messages of the user and of the model alternate.
    """
    if not parts:
        return conversation
    if conversation.messages and conversation.messages[-1].role == "user":
        last = conversation.messages[-1]
        joined = replace(last, parts=(*last.parts, *parts), message_id=message_id or last.message_id)
        return replace(conversation, messages=(*conversation.messages[:-1], joined))
    return replace(conversation, messages=(*conversation.messages, Message("user", parts, message_id)))


def _add_result(conversation: Conversation, result: Result) -> Conversation:
    """Add the result of an open call, and close the batch with the last one.

    A result that arrives after the batch was closed is ignored: the model has already read that the call was interrupted.
    """
    if all(call.call_id != result.call_id for call in conversation.open_calls):
        return conversation
    others = tuple(other for other in conversation.results if other.call_id != result.call_id)
    updated = replace(conversation, results=(*others, result))
    return _close_batch(updated) if len(updated.results) == len(updated.open_calls) else updated


def _close_batch(conversation: Conversation) -> Conversation:
    """Append the results of the open batch, in the order of its calls, and then the deferred parts."""
    if not conversation.open_calls:
        return conversation
    by_call = {result.call_id: result for result in conversation.results}
    results = tuple(
        by_call.get(call.call_id) or _missing_result(conversation, call) for call in conversation.open_calls
    )
    messages = (*conversation.messages, Message("tool", results))
    closed = replace(conversation, messages=messages, open_calls=(), results=(), deferred=(), background=())
    return _append_user_parts(closed, conversation.deferred, "")


def _missing_result(conversation: Conversation, call: Call) -> Result:
    text = STILL_RUNNING if call.call_id in conversation.background else INTERRUPTED
    return Result(call.call_id, call.name, text, False)


def json_text(value: Json) -> str:
    """Return a result that isn't text as JSON text."""
    if value is None:
        return ""
    try:
        return _encode(value).decode()
    except (TypeError, ValueError):
        return str(value)
