"""What the tester asked for and what it was told: the other side of every promise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from quarterdeck import events as ev
from tests.crash.life import Gone, Refused


class Deed:
    """One command with the key of its caller. It was acknowledged, refused, or nobody knows."""

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
        """Nobody knows what became of it."""
        return not self.is_done and not self.is_refused

    def settle(self) -> None:
        """Takes the answer in, if there is one. An answer may not change."""
        if self.future is None or not self.future.done():
            return
        future, self.future = self.future, None
        try:
            answer = future.result()
        except Refused as refused:
            if refused.error["code"] == "deck_closed":
                return  # nobody looked at it; an earlier try may have been taken
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
        """How often the log says that what was wanted happened."""
        return _EFFECTS.get(self.method, _by_receipt)(self, bodies, answer)


def _by_receipt(deed: Deed, bodies: Sequence[ev.Body], answer: Any) -> int:
    return sum(isinstance(one, ev.CommandReceipt) and one.client_id == deed.key for one in bodies)


def _text(deed: Deed, bodies: Sequence[ev.Body], answer: Any) -> int:
    """Each text of ours is the only one of its kind, so it is counted by what it says."""
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
    """A gate is decided by a person at most once. Several may have wanted to; only one has a receipt."""
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
    """All deeds of one home, over all lives of its deck."""

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
        """From here on it may be gone."""
        self._deleted.setdefault(session, False)

    def deleted(self, session: str) -> None:
        """It is."""
        self._deleted[session] = True

    def kept(self, session: str) -> None:
        """It was refused, so it is there as before."""
        self._deleted.pop(session, None)

    def may_be_gone(self, session: str) -> bool:
        return session in self._deleted

    def is_gone(self, session: str) -> bool:
        return self._deleted.get(session, False)

    # --- what ran

    def executed(self) -> Counter[str]:
        if not self.evidence.exists():
            return Counter()
        return Counter(self.evidence.read_text().split())

    def sent_again(self, token: str) -> None:
        """A person wanted it."""
        self._again[token] += 1

    def allowed(self, token: str) -> int:
        return 1 + self._again[token]
