"""Turn typed lines into answers to an open gate. No I/O: lines go in, requests come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from quarterdeck.kernel.summary import GateShown

_YES = frozenset({"y", "yes"})
_NO = frozenset({"n", "no"})
_ALWAYS = frozenset({"a", "always"})

#: Events that close a gate.
GATE_CLOSED = frozenset({"approval_resolved", "user_responded", "dialog_resolved"})
#: Events after which another gate may be the first open one.
GATE_CHANGED = GATE_CLOSED | {"approval_required", "ask_user", "dialog_required"}


def is_decision(line: str) -> bool:
    """Return whether a line can only be meant for an approval. One that comes too late isn't a message."""
    return line.strip().lower() in _YES | _NO | _ALWAYS


class Reply(NamedTuple):
    """A request that decides a gate: a method of the session, and its arguments."""

    verb: str
    arguments: dict[str, Any]


class InvalidReply(NamedTuple):
    """The line was meant as an answer and isn't a valid one."""

    reason: str


class GatePrompt:
    """One open gate. Several questions at once are answered one after the other."""

    def __init__(
        self, gate_id: str, kind: str, questions: Sequence[Mapping[str, Any]] = (), method: str = "input"
    ) -> None:
        self.gate_id = gate_id
        self.kind = kind
        self.method = method
        self._questions = list(questions) or [{}]
        self._answers: list[Any] = []
        #: Lines that were typed for the answered questions.
        self.typed: list[str] = []
        #: A number outside the options that was refused once.
        self._refused_number = ""

    @property
    def question(self) -> str:
        """The question to print now. Empty if there is only one, which the gate's event has printed already."""
        return str(self._questions[len(self._answers)].get("text", "")) if len(self._questions) > 1 else ""

    @property
    def options(self) -> Sequence[Mapping[str, Any]]:
        return self._questions[len(self._answers)].get("options") or ()

    @property
    def invitation(self) -> str:
        """The text in front of the cursor."""
        if self.kind == "approval":
            return "  [y]es, [n]o, [a]lways in this session: "
        if self.kind == "dialog" and self.method == "confirm":
            return "  [y]es, [n]o: "
        if not self.options:
            return "  your answer: "
        return f"  {'' if self._needs_option else 'your answer, or '}a number from 1 to {len(self.options)}: "

    @property
    def _needs_option(self) -> bool:
        """Whether only one of the options is a valid answer."""
        return self.method == "select" and bool(self.options)

    def take(self, line: str) -> Reply | InvalidReply | None:
        """Return the request that this line makes. None if it isn't an answer, or if more questions are open."""
        text = line.strip()
        if self.kind == "approval":
            return self._parse_approval(text)
        if self.kind == "dialog" and self.method == "confirm":
            return self._parse_confirmation(text)
        if not text:
            return None
        choice = self._parse_choice(text)
        if isinstance(choice, InvalidReply):
            return choice
        self._answers.append(choice)
        self.typed.append(text)
        self._refused_number = ""
        if len(self._answers) < len(self._questions):
            return None
        answer = self._answers if len(self._questions) > 1 else self._answers[0]
        return Reply("respond", {"gate_id": self.gate_id, "answer": answer})

    @property
    def is_partly_answered(self) -> bool:
        return bool(self._answers)

    def _parse_approval(self, text: str) -> Reply | None:
        word, _, rest = text.partition(" ")
        if word.lower() in _NO:
            # A user at a terminal wants the turn to continue without the call (design.md section 9).
            reason = {"reason": rest.strip()} if rest.strip() else {}
            return Reply("reject", {"gate_id": self.gate_id, "auto_resume": True, **reason})
        if rest:
            return None
        if word.lower() in _YES:
            return Reply("approve", {"gate_id": self.gate_id})
        if word.lower() in _ALWAYS:
            return Reply("approve", {"gate_id": self.gate_id, "always": "session"})
        return None

    def _parse_confirmation(self, text: str) -> Reply | None:
        word = text.lower()
        if word not in _YES | _NO:
            return None
        return Reply("respond", {"gate_id": self.gate_id, "answer": word in _YES})

    def _parse_choice(self, text: str) -> str | InvalidReply:
        """Return an option by its number or label, or the text itself where free text is allowed.

        A number outside the options is more likely a slip than an answer, so it is refused once and taken if repeated.
        """
        if not self.options:
            return text
        if text.isdecimal() and 1 <= int(text) <= len(self.options):
            return str(self.options[int(text) - 1]["id"])
        matches = [str(option["id"]) for option in self.options if text in (option["id"], option.get("label"))]
        if matches:
            return matches[0]
        last = len(self.options)
        if self._needs_option:
            return InvalidReply(f"not sent: {text}: it isn't one of the options. Type a number from 1 to {last}.")
        if text.isdecimal() and text != self._refused_number:
            self._refused_number = text
            return InvalidReply(
                f"not sent: there is no option {text}, only 1 to {last}. Type {text} again to answer with it."
            )
        return text

    def http_instructions(self, session_id: str) -> str:
        """Describe how to answer without a terminal."""
        path = f"POST /sessions/{session_id}"
        if self.kind == "approval":
            return f'{path}/approve or /reject with {{"gate_id": "{self.gate_id}"}}'
        return f'{path}/respond with {{"gate_id": "{self.gate_id}", "answer": …}}'


def prompt_for(gate: GateShown) -> GatePrompt:
    """Return the prompt for a gate of a session's view."""
    payload: dict[str, Any] = gate.payload or {}
    questions: list[dict[str, Any]] = payload.get("questions") or [{"text": gate.title, "options": gate.options or ()}]
    return GatePrompt(gate.id, gate.kind, questions, payload.get("method", "input"))
