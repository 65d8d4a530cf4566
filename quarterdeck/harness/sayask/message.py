"""One message of the say/ask vocabulary, whatever shape it came in.

Three shapes are known, and they differ in names only:

| | Cline 2, Cline 1's state | Cline 1's partial messages | Kilo's `--json` |
|---|---|---|---|
| identity | `ts`, a number | `ts`, a text | `timestamp` |
| kind | `type` say or ask | `SAY`; an ask has none (protobuf leaves out the first value) | as Cline 2 |
| what | `say` or `ask` | in capitals, some end in `_SAY`; a followup has none | as Cline 2 |
| text | `text` | `text` | `metadata` if it is JSON, else `content` |
| whole | `partial` false or missing | `partial` missing | as Cline 2, and `isAnswered` |
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from quarterdeck.events import Json
from quarterdeck.harness.base import Object, int_of, is_object, object_of, text_of
from quarterdeck.harness.lines import object_in

#: What makes two messages the same one: time, and say or ask with what.
Key: TypeAlias = tuple[str, str]


class Message(Struct, gc=False):
    """`kind` is say or ask, `what` its subtype, `label` both (`say:text`). `ts` is empty when the agent gave no time.

    `parsed` keeps what its text says once somebody asked: a request may be long, and several rules look into it.
    """

    ts: str
    kind: str
    what: str
    label: str
    text: str
    partial: bool
    raw: Object
    key: Key
    parsed: Object | None = None

    @property
    def answered(self) -> bool:
        """Whether a person has answered it already."""
        return self.raw.get("isAnswered") is True

    @property
    def age(self) -> int:
        """The time as a number: later messages have greater ones."""
        return int(self.ts) if len(self.ts) < 20 and self.ts.isdecimal() else 0

    @property
    def name(self) -> str:
        """What its text is called in the timeline: two messages of one time may say two things."""
        return self.ts if self.what == "text" or not self.ts else f"{self.ts}-{self.what}"

    def data(self) -> Object:
        """What the text says, if it is a JSON object."""
        found: Any = self.parsed
        if found is None:
            found = self.raw.get("metadata")
            if not is_object(found):
                found = (object_in(self.text) if self.text[:1] == "{" else None) or {}
            self.parsed = found
        return found


def message_of(raw: Object) -> Message | None:
    """The message that this object is; None when it is none."""
    kind = raw.get("type")
    if kind != "say" and kind != "ask":
        return None
    what = raw.get(kind)
    return _message(raw, kind, what) if what and isinstance(what, str) else None


def partial_message_of(raw: Object) -> Message:
    """The same for Cline 1's second stream, where the first value of an enumeration is left out."""
    if raw.get("type") is None:
        return _message(raw, "ask", _plain_name(raw.get("ask"), "followup"))
    return _message(raw, "say", _plain_name(raw.get("say"), "task"))


def _plain_name(name: Any, default: str) -> str:
    return name.lower().removesuffix("_say").removesuffix("_ask") if isinstance(name, str) and name else default


def _message(raw: Object, kind: str, what: str) -> Message:
    time = raw.get("ts")
    if time is None:
        time = raw.get("timestamp")
    ts = str(time) if type(time) is int else _time(time)  # a flag is a number in Python, and no time
    text = raw.get("text")
    if not isinstance(text, str):
        text = _words(raw, what)
    label = f"{kind}:{what}"
    return Message(ts, kind, what, label, text, raw.get("partial") is True, raw, (ts, label))


#: Words for people, also when they happen to be JSON.
_SPOKEN = frozenset(
    {"task", "text", "reasoning", "completion_result", "user_feedback", "command_output", "error", "info"}
)


def _words(raw: Object, what: str) -> str:
    """Kilo's text. It moves every one that is JSON to `metadata`: a reply or an output that is JSON is written out again."""
    text = raw.get("content")
    if text and isinstance(text, str):
        return text
    metadata = raw.get("metadata")
    moved = isinstance(metadata, list) or (what in _SPOKEN and isinstance(metadata, dict))
    return msgspec.json.encode(metadata).decode() if moved else ""


def _time(value: Any) -> str:
    """A time that is not a whole number: Cline 1's second stream writes it as text."""
    return value if isinstance(value, str) else str(int_of({"": value}, "") or "")


# --- what calls are about


def call_name(message: Message, data: Object) -> str:
    """The tool's own name where the message has one, else the vocabulary's word."""
    return text_of(data, "tool", "toolName") or message.what


def call_args(message: Message, data: Object) -> Json:
    """The arguments as the agent shows them."""
    if message.what == "command":
        return {"command": message.text.removesuffix(APPROVAL_MARK) or text_of(data, "command")}
    if message.what == "use_mcp_server":
        return object_of(data, "arguments") or object_in(text_of(data, "arguments")) or data
    if data:
        return {name: value for name, value in data.items() if name != "tool"}
    return {"text": message.text} if message.text else None


#: How Cline 1 marks a command that a person must allow.
APPROVAL_MARK = "REQ_APP"


class Result(Struct, frozen=True, gc=False):
    """How a call ended, as the next request tells the model."""

    ok: bool
    denied: bool
    text: str


#: A result begins with the call in brackets, at a line's beginning, and this.
_RESULT = "] Result:"
#: What Cline and its kin write after a result, for the model only.
_AFTER_RESULT = ("\n\n\n# task_progress", "\n\n# task_progress", "\n\n# Reminder", "<environment_details>")
_DENIED = ("The user denied this operation", "The user rejected this operation")
_FAILED = "The tool execution failed"
#: A call that failed while it was streamed has a second result, which says nothing.
_EMPTY = "(tool did not return anything)"


def results_in(request: str) -> list[Result]:
    """The results in a request, in the order of their calls."""
    if _RESULT not in request:
        return []
    results = [_result(part) for part in _parts(request)]
    return [one for one in results if one.text != _EMPTY] or results


def _parts(request: str) -> list[str]:
    """What stands after each call in brackets. A pattern would try every line of a text that is mostly something else."""
    parts: list[str] = []
    begins, at = -1, request.find(_RESULT)
    while at >= 0:
        line, end = request.rfind("\n", 0, at) + 1, request.find("\n", at)
        end = end if end >= 0 else len(request)
        if request[line] == "[":
            if begins >= 0:
                parts.append(request[begins:line])
            begins = request.rfind(_RESULT, line, end) + len(_RESULT)
        at = request.find(_RESULT, end)
    return parts if begins < 0 else [*parts, request[begins:]]


def _result(part: str) -> Result:
    for mark in _AFTER_RESULT:
        part = part.partition(mark)[0]
    text = part.strip()
    denied = text.startswith(_DENIED)
    return Result(not denied and not text.startswith(_FAILED), denied, text)
