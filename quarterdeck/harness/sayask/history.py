"""What a resumed task sends first: its whole past, as if it happened now.

The past comes in one burst, every message of it whole and every request with what it used, and ends with the offer to
resume. New work begins with a prompt alone, then a request without figures. So the first messages of a task are held for
a moment, until one of the two shows.
"""

from __future__ import annotations

from quarterdeck.events import Block, HistoryMessage
from quarterdeck.harness.base import int_of
from quarterdeck.harness.sayask.message import Message, call_args, call_name

#: How long the first messages of a task are held while nothing says what they are.
HOLD_S = 0.25
#: The same once a request with figures looked like the past.
HOLD_PAST_S = 2.0

_CALLS = frozenset({"tool", "command", "use_mcp_server", "browser_action", "browser_action_launch"})
_USERS = frozenset({"task", "user_feedback"})
_SPOKEN = frozenset({"text", "reasoning", "completion_result"})


def is_past(message: Message) -> bool:
    """A request that comes with its figures was made before."""
    if message.what != "api_req_started":
        return False
    data = message.data()
    return "cancelReason" in data or int_of(data, "tokensIn") > 0 or int_of(data, "tokensOut") > 0


def history_of(held: list[Message]) -> tuple[HistoryMessage, ...]:
    """The held messages as history. A text before the first request is the prompt."""
    told: list[HistoryMessage] = []
    requested = False
    for message in held:
        requested = requested or message.what == "api_req_started"
        one = _history_message(message, requested)
        if one is not None:
            told.append(one)
    return tuple(told)


def _history_message(message: Message, requested: bool) -> HistoryMessage | None:
    if message.kind == "say" and (message.what in _USERS or (message.what == "text" and not requested)):
        return HistoryMessage(message_id=message.ts, role="user", blocks=(Block(text=message.text),))
    if message.kind == "say" and message.what in _SPOKEN:
        block = Block(kind="thinking" if message.what == "reasoning" else "text", text=message.text)
        return HistoryMessage(message_id=message.name, role="assistant", blocks=(block,))
    if message.what in _CALLS:
        data = message.data()
        name, call_id = call_name(message, data), f"call-{message.ts}"
        call = Block(kind="tool_call", call_id=call_id, name=name, args=call_args(message, data))
        result = Block(block=1, kind="tool_result", call_id=call_id, name=name)
        return HistoryMessage(message_id=message.ts, role="assistant", blocks=(call, result))
    return None
