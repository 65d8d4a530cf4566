"""Record every command of the tester and its answer, for comparison with the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from quarterdeck import events as ev
from tests.crash.life import Gone, Refused


class Deed:
    """One command with its idempotency key. It was acknowledged, refused, or its outcome is unknown."""

    def __init__(self, session: str, method: str, key: str, fields: dict[str, Any]) -> None:
        self.session = session
        self.method = method
        self.key = key
        self.fields = fields
        self.answer: Any = None
        self.is_done = False
        self.is_refused = False
        self.future: Future[Any] | None = None

    def __repr__(self) -> str:
        return f"{self.method} {self.key} {self.fields}"

    @property
    def is_open(self) -> bool:
        """Return whether the outcome is unknown."""
        return not self.is_done and not self.is_refused

    def settle(self) -> None:
        """Read the answer if it has arrived. Fail if it differs from an earlier answer."""
        if self.future is None or not self.future.done():
            return
        future, self.future = self.future, None
        try:
            answer = future.result()
        except Refused as refused:
            if refused.error["code"] == "deck_closed":
                # A closed deck doesn't look at the command, but an earlier attempt may have been accepted.
                return
            assert not self.is_done, f"done once and then refused: {self}"
            self.is_refused = True
        except Gone:
            pass
        else:
            assert not self.is_done or answer == self.answer, f"{self.answer} and then {answer}: {self}"
            self.answer, self.is_done = answer, True
            if self.method == "create":
                self.session = answer

    def effects(self, bodies: Sequence[ev.Body], answer: Any) -> int:
        """Count how often the log shows the effect of this command."""
        return _EFFECTS.get(self.method, _by_receipt)(self, bodies, answer)


def _by_receipt(deed: Deed, bodies: Sequence[ev.Body], answer: Any) -> int:
    return sum(isinstance(one, ev.CommandReceipt) and one.client_id == deed.key for one in bodies)


def _text(deed: Deed, bodies: Sequence[ev.Body], answer: Any) -> int:
    """Count a message by its text, because the texts of a voyage are unique."""
    text = deed.fields["text"]
    queued = sum(isinstance(one, ev.PromptQueued) and one.text == text for one in bodies)
    steered = sum(
        isinstance(one, ev.SteeringReceived) and one.text == text and one.status == "queued" for one in bodies
    )
    answered = sum(isinstance(one, ev.UserResponded) and one.response == text for one in bodies)
    return queued + steered + answered


def _name(deed: Deed, bodies: Sequence[ev.Body], answer: Any) -> int:
    return sum(isinstance(one, ev.SessionRenamed) and one.name == deed.fields["name"] for one in bodies)


def _mark(deed: Deed, bodies: Sequence[ev.Body], answer: Any) -> int:
    return sum(
        isinstance(one, ev.SessionMarked) and one.snoozed_until == deed.fields["snoozed_until"] for one in bodies
    )


def _decision(deed: Deed, bodies: Sequence[ev.Body], answer: Any) -> int:
    """Count the decisions of a gate. It is decided at most once, so of several commands only one has a receipt."""
    gate = deed.fields["gate_id"]
    kinds = ev.ApprovalResolved | ev.UserResponded
    decided = sum(isinstance(one, kinds) and one.gate_id == gate and one.by == "user" for one in bodies)
    return _by_receipt(deed, bodies, answer) if decided == 1 else (2 if decided else 0)


_EFFECTS: dict[str, Any] = {
    "prompt": _text,
    "steer": _text,
    "rename": _name,
    "mark": _mark,
    "approve": _decision,
    "reject": _decision,
    "respond": _decision,
}


class Ledger:
    """All commands to one home, over all runs of its deck."""

    def __init__(self, evidence: Path) -> None:
        self.deeds: list[Deed] = []
        self.evidence = evidence
        self._deleted: dict[str, bool] = {}
        self._again: Counter[str] = Counter()

    def settle(self) -> None:
        for deed in self.deeds:
            deed.settle()

    def unknown(self) -> list[Deed]:
        return [deed for deed in self.deeds if deed.is_open]

    def deleting(self, session: str) -> None:
        """Note that a deletion was sent, so the session may be missing from now on."""
        self._deleted.setdefault(session, False)

    def deleted(self, session: str) -> None:
        """Note that a deletion was acknowledged, so the session must be missing."""
        self._deleted[session] = True

    def kept(self, session: str) -> None:
        """Note that a deletion was refused, so the session must still exist."""
        self._deleted.pop(session, None)

    def may_be_gone(self, session: str) -> bool:
        return session in self._deleted

    def is_gone(self, session: str) -> bool:
        return self._deleted.get(session, False)

    # --- executed messages

    def executed(self) -> Counter[str]:
        if not self.evidence.exists():
            return Counter()
        return Counter(self.evidence.read_text().split())

    def sent_again(self, token: str) -> None:
        """Allow one more execution of this message, because a user resent it."""
        self._again[token] += 1

    def allowed(self, token: str) -> int:
        return 1 + self._again[token]
