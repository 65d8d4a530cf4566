"""What a session asks and how a typed line answers it. Pure: lines in, requests out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_YES = frozenset({"y", "yes"})
_NO = frozenset({"n", "no"})
_ALWAYS = frozenset({"a", "always"})


def is_decision(line: str) -> bool:
    """Whether it can only be meant for an approval: a late one is no message."""
    return line.strip().lower() in _YES | _NO | _ALWAYS


class Reply(NamedTuple):
    """A request that decides a gate; `verb` is the last part of its path."""

    verb: str
    body: dict[str, Any]


class Again(NamedTuple):
    """It was meant as an answer, and cannot be one; `why` says so."""

    why: str


class Asked:
    """One open gate. Several questions at once are answered one after the other."""

    def __init__(
        self, gate_id: str, kind: str, questions: Sequence[Mapping[str, Any]] = (), method: str = "input"
    ) -> None:
        self.gate_id = gate_id
        self.kind = kind
        self.method = method
        self._questions = list(questions) or [{}]
        self._answers: list[Any] = []
        #: What was typed for them.
        self.typed: list[str] = []
        #: A number that is no option's, and was said to be none.
        self._doubted = ""

    @property
    def question(self) -> str:
        """What is asked now; empty when it is on the screen already."""
        return str(self._questions[len(self._answers)].get("text", "")) if len(self._questions) > 1 else ""

    @property
    def options(self) -> Sequence[Mapping[str, Any]]:
        return self._questions[len(self._answers)].get("options") or ()

    @property
    def invitation(self) -> str:
        if self.kind == "approval":
            return "  [y]es, [n]o, [a]lways in this session: "
        if self.kind == "dialog" and self.method == "confirm":
            return "  [y]es, [n]o: "
        if not self.options:
            return "  your answer: "
        return f"  {'' if self._is_choice else 'your answer, or '}a number from 1 to {len(self.options)}: "

    @property
    def _is_choice(self) -> bool:
        """Nothing but an option will do."""
        return self.method == "select" and bool(self.options)

    def take(self, line: str) -> Reply | Again | None:
        """The request that this line makes. None when it is no answer to what is asked, or when more is asked."""
        text = line.strip()
        if self.kind == "approval":
            return self._approval(text)
        if self.kind == "dialog" and self.method == "confirm":
            return self._confirmed(text)
        if not text:
            return None
        chosen = self._chosen(text)
        if isinstance(chosen, Again):
            return chosen
        self._answers.append(chosen)
        self.typed.append(text)
        self._doubted = ""
        if len(self._answers) < len(self._questions):
            return None
        answer = self._answers if len(self._questions) > 1 else self._answers[0]
        return Reply("respond", {"gate_id": self.gate_id, "answer": answer})

    @property
    def has_part(self) -> bool:
        """Some of several questions are answered."""
        return bool(self._answers)

    def _approval(self, text: str) -> Reply | None:
        word, _, rest = text.partition(" ")
        if word.lower() in _NO:
            # a person at a terminal wants it to go on without the call (design 9)
            reason = {"reason": rest.strip()} if rest.strip() else {}
            return Reply("reject", {"gate_id": self.gate_id, "auto_resume": True, **reason})
        if rest:
            return None
        if word.lower() in _YES:
            return Reply("approve", {"gate_id": self.gate_id})
        if word.lower() in _ALWAYS:
            return Reply("approve", {"gate_id": self.gate_id, "always": "session"})
        return None

    def _confirmed(self, text: str) -> Reply | None:
        word = text.lower()
        if word not in _YES | _NO:
            return None
        return Reply("respond", {"gate_id": self.gate_id, "answer": word in _YES})

    def _chosen(self, text: str) -> str | Again:
        """A number is an option, and so are its words; anything else is the answer itself, where there may be one.

        A number that is no option's is more likely a slip than an answer, which it can be nevertheless: typed again, it is.
        """
        if not self.options:
            return text
        if text.isdecimal() and 1 <= int(text) <= len(self.options):
            return str(self.options[int(text) - 1]["id"])
        named = [str(one["id"]) for one in self.options if text in (one["id"], one.get("label"))]
        if named:
            return named[0]
        last = len(self.options)
        if self._is_choice:
            return Again(f"not sent: {text}: it is none of the options; type a number from 1 to {last}")
        if text.isdecimal() and text != self._doubted:
            self._doubted = text
            return Again(f"not sent: there is no option {text}, only 1 to {last}; type {text} again to answer with it")
        return text

    def by_request(self, session_id: str) -> str:
        """How it is answered without a terminal."""
        where = f"POST /sessions/{session_id}"
        if self.kind == "approval":
            return f'{where}/approve or /reject with {{"gate_id": "{self.gate_id}"}}'
        return f'{where}/respond with {{"gate_id": "{self.gate_id}", "answer": …}}'


def asked_of(shown: Mapping[str, Any]) -> Asked:
    """A gate as a view shows it."""
    payload: dict[str, Any] = shown.get("payload") or {}
    several: list[dict[str, Any]] = payload.get("questions") or [
        {"text": shown["title"], "options": shown.get("options") or ()}
    ]
    return Asked(shown["id"], shown["kind"], several, payload.get("method", "input"))


#: Events that close a gate.
DECIDED = frozenset({"approval_resolved", "user_responded", "dialog_resolved"})
#: Events after which something else may be asked than before.
TURNING = DECIDED | {"approval_required", "ask_user", "dialog_required"}
