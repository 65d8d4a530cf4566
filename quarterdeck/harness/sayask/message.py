"""Read say/ask messages: one message whatever shape it has, the call that it shows, results in a request, and history.

Three shapes of message are known. They differ in names only:

| | Cline 2, Cline 1's state | Cline 1's partial messages | Kilo's `--json` |
|---|---|---|---|
| identity | `ts`, a number | `ts`, a text | `timestamp` |
| kind | `type` say or ask | `SAY`; an ask has none (protobuf leaves out the first value) | as Cline 2 |
| subtype | `say` or `ask` | in capitals, some end in `_SAY`; a followup has none | as Cline 2 |
| text | `text` | `text` | `metadata` if it is JSON, else `content` |
| complete | `partial` false or missing | `partial` missing | as Cline 2, and `isAnswered` |
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from quarterdeck.events import Block, HistoryMessage, Json
from quarterdeck.harness.base import Object, int_of, is_object, object_of, text_of
from quarterdeck.harness.lines import object_in

# ----------------------------------------------------------------------------------------------------------------------
# Messages
# ----------------------------------------------------------------------------------------------------------------------

#: Identity of a message: its time and its label.
MessageKey: TypeAlias = tuple[str, str]


class Message(Struct):
    """One say or ask message."""

    #: Time of the message as text; '' if the agent gave none.
    ts: str
    #: `say` or `ask`.
    kind: str
    #: Subtype, such as `text`.
    subtype: str
    #: Kind and subtype, such as `say:text`.
    label: str
    text: str
    partial: bool
    raw: Object
    #: The parsed text, once `data` was called: a request may be long, and several rules read it.
    parsed: Object | None = None

    @property
    def key(self) -> MessageKey:
        return self.ts, self.label

    @property
    def is_answered(self) -> bool:
        """Whether the user answered it already."""
        return self.raw.get("isAnswered") is True

    @property
    def time(self) -> int:
        """The time as a number, 0 if unknown. Later messages have greater ones."""
        return int(self.ts) if len(self.ts) < 20 and self.ts.isdecimal() else 0

    @property
    def message_id(self) -> str:
        """Id of its text in the timeline. Two messages of one time may have two texts."""
        return self.ts if self.subtype == "text" or not self.ts else f"{self.ts}-{self.subtype}"

    def data(self) -> Object:
        """Return the JSON object that the text is, else {}."""
        if self.parsed is None:
            metadata = self.raw.get("metadata")
            if is_object(metadata):
                self.parsed = metadata
            else:
                self.parsed = (object_in(self.text) if self.text[:1] == "{" else None) or {}
        return self.parsed


def message_of(raw: Object) -> Message | None:
    """Return the message that this object is, or None if it isn't one."""
    kind = raw.get("type")
    if kind != "say" and kind != "ask":
        return None
    subtype = raw.get(kind)
    return _message(raw, kind, subtype) if subtype and isinstance(subtype, str) else None


def partial_message_of(raw: Object) -> Message:
    """Read a message of Cline 1's second stream, where protobuf leaves out the first value of an enumeration."""
    if raw.get("type") is None:
        return _message(raw, "ask", _subtype_of(raw.get("ask"), "followup"))
    return _message(raw, "say", _subtype_of(raw.get("say"), "task"))


def _subtype_of(name: Any, default: str) -> str:
    return name.lower().removesuffix("_say").removesuffix("_ask") if isinstance(name, str) and name else default


def _message(raw: Object, kind: str, subtype: str) -> Message:
    time = raw.get("ts")
    if time is None:
        time = raw.get("timestamp")
    text = raw.get("text")
    if not isinstance(text, str):
        text = _kilo_text(raw, subtype)
    return Message(_time_text(time), kind, subtype, f"{kind}:{subtype}", text, raw.get("partial") is True, raw)


def _time_text(value: Any) -> str:
    """Return a time as text. Cline 1's second stream already writes it as text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) else str(int_of({"": value}, "") or "")


#: Subtypes whose text is meant for people, also if it happens to be JSON.
_PROSE = frozenset(
    {"task", "text", "reasoning", "completion_result", "user_feedback", "command_output", "error", "info"}
)


def _kilo_text(raw: Object, subtype: str) -> str:
    """Return the text of a Kilo message.

    Kilo moves every text that is JSON to `metadata`. A reply or an output that is JSON is encoded again here.
    """
    text = raw.get("content")
    if text and isinstance(text, str):
        return text
    metadata = raw.get("metadata")
    was_text = isinstance(metadata, list) or (subtype in _PROSE and isinstance(metadata, dict))
    return msgspec.json.encode(metadata).decode() if was_text else ""


# ----------------------------------------------------------------------------------------------------------------------
# Calls
# ----------------------------------------------------------------------------------------------------------------------

#: How Cline 1 marks a command that the user must allow.
_APPROVAL_MARK = "REQ_APP"


def call_name(message: Message) -> str:
    """Return the tool's own name if the message has it, else the subtype."""
    return text_of(message.data(), "tool", "toolName") or message.subtype


def call_args(message: Message) -> Json:
    """Return the arguments as the agent shows them."""
    data = message.data()
    if message.subtype == "command":
        return {"command": message.text.removesuffix(_APPROVAL_MARK) or text_of(data, "command")}
    if message.subtype == "use_mcp_server":
        return object_of(data, "arguments") or object_in(text_of(data, "arguments")) or data
    if data:
        return {name: value for name, value in data.items() if name != "tool"}
    return {"text": message.text} if message.text else None


# ----------------------------------------------------------------------------------------------------------------------
# Results of calls, which only the next request shows
# ----------------------------------------------------------------------------------------------------------------------


class CallResult(Struct, frozen=True):
    """How a call ended, as the next request reports it to the model."""

    ok: bool
    denied: bool
    text: str


#: A result begins with the call in brackets, at the start of a line, and this.
_RESULT_MARK = "] Result:"
#: What Cline and its forks write after a result, for the model only.
_AFTER_RESULT = ("\n\n\n# task_progress", "\n\n# task_progress", "\n\n# Reminder", "<environment_details>")
_DENIED = ("The user denied this operation", "The user rejected this operation")
_FAILED = "The tool execution failed"
#: A call that failed while it was streamed has this second, meaningless result.
_NO_RESULT = "(tool did not return anything)"


def results_in(request: str) -> list[CallResult]:
    """Return the results in a request, in the order of their calls."""
    results = [_result(section) for section in _result_sections(request)]
    return [result for result in results if result.text != _NO_RESULT] or results


def _result_sections(request: str) -> list[str]:
    """Return the text after each `[call] Result:`, up to the next one.

    Search for the mark instead of matching every line: a request may be megabytes of something else.
    """
    sections: list[str] = []
    section_start = -1
    mark = request.find(_RESULT_MARK)
    while mark >= 0:
        line_start = request.rfind("\n", 0, mark) + 1
        line_end = request.find("\n", mark)
        if line_end < 0:
            line_end = len(request)
        if request[line_start] == "[":
            if section_start >= 0:
                sections.append(request[section_start:line_start])
            section_start = request.rfind(_RESULT_MARK, line_start, line_end) + len(_RESULT_MARK)
        mark = request.find(_RESULT_MARK, line_end)
    if section_start >= 0:
        sections.append(request[section_start:])
    return sections


def _result(section: str) -> CallResult:
    for mark in _AFTER_RESULT:
        section = section.partition(mark)[0]
    text = section.strip()
    denied = text.startswith(_DENIED)
    return CallResult(not denied and not text.startswith(_FAILED), denied, text)


# ----------------------------------------------------------------------------------------------------------------------
# History of a resumed task
# ----------------------------------------------------------------------------------------------------------------------

_CALL_SUBTYPES = frozenset({"tool", "command", "use_mcp_server", "browser_action", "browser_action_launch"})
_USER_SUBTYPES = frozenset({"task", "user_feedback"})
_REPLY_SUBTYPES = frozenset({"text", "reasoning", "completion_result"})


def is_past_request(message: Message) -> bool:
    """Return whether this is a request that already has its usage, so it was made before."""
    if message.subtype != "api_req_started":
        return False
    data = message.data()
    return "cancelReason" in data or int_of(data, "tokensIn") > 0 or int_of(data, "tokensOut") > 0


def history_of(messages: list[Message]) -> tuple[HistoryMessage, ...]:
    """Return messages as history. A text before the first request is the prompt."""
    history: list[HistoryMessage] = []
    has_request = False
    for message in messages:
        has_request = has_request or message.subtype == "api_req_started"
        entry = _history_message(message, has_request)
        if entry is not None:
            history.append(entry)
    return tuple(history)


def _history_message(message: Message, has_request: bool) -> HistoryMessage | None:
    is_prompt = message.subtype in _USER_SUBTYPES or (message.subtype == "text" and not has_request)
    if message.kind == "say" and is_prompt:
        return HistoryMessage(message_id=message.ts, role="user", blocks=(Block(text=message.text),))
    if message.kind == "say" and message.subtype in _REPLY_SUBTYPES:
        block = Block(kind="thinking" if message.subtype == "reasoning" else "text", text=message.text)
        return HistoryMessage(message_id=message.message_id, role="assistant", blocks=(block,))
    if message.subtype in _CALL_SUBTYPES:
        name, call_id = call_name(message), f"call-{message.ts}"
        call = Block(kind="tool_call", call_id=call_id, name=name, args=call_args(message))
        result = Block(block=1, kind="tool_result", call_id=call_id, name=name)
        return HistoryMessage(message_id=message.ts, role="assistant", blocks=(call, result))
    return None
