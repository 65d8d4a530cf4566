"""Check the log after any kill. Read the file itself instead of asking the deck, and fold its events again."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

from quarterdeck import events as ev
from quarterdeck.events import Event
from quarterdeck.kernel.state import State
from quarterdeck.kernel.view import View, fold_all
from quarterdeck.log.base import CatalogueRow
from quarterdeck.log.rows import catalogue_row, decode_snapshot
from quarterdeck.log.sqlite.reader import StoreReader
from tests.crash.ledger import Deed, Ledger

_ON_ITS_WAY = ("sending", "delivered")
_LIVE_PHASES = ("creating", "streaming", "waiting_approval", "waiting_input")


class Kept:
    """One session as it is stored in the file."""

    def __init__(self, row: CatalogueRow, last_index: int, view: bytes, view_index: int, events: list[Event]) -> None:
        self.row = row
        self.last_index = last_index
        self.view = view
        self.view_index = view_index
        self.events = events
        self.bodies = [one.body for one in events]
        self.folded: View = fold_all(events)

    @property
    def state(self) -> State:
        return self.folded.state


class Audit:
    """Collect everything that is wrong with a home, as text. An empty list means that it is sound."""

    def __init__(self, home: Path, ledger: Ledger) -> None:
        self._ledger = ledger
        self.findings: list[str] = []
        self.sessions, self.all_events = _read(home / "quarterdeck.db")

    def at_rest(self, states: dict[str, Any] | None, published: list[tuple[str, int, str]]) -> list[str]:
        """Check a home without running agents: its deck has just opened and shows these states, or has closed."""
        self.lasting()
        self._published(published)
        for name, kept in self.sessions.items():
            self._rests(name, kept.state)
            if states is not None:
                self._agrees(name, kept, states.get(name))
        for name in (states or {}).keys() - self.sessions.keys():
            self._say(name, "is in the list and not in the log")
        return self.findings

    def lasting(self) -> list[str]:
        """Check the rules that hold at any time."""
        self._stream()
        for name, kept in self.sessions.items():
            self._order(name, kept)
            self._projections(name, kept)
            self._receipts(name, kept)
            self._texts(name, kept)
        self._deeds()
        self._gates()
        self._executions()
        return self.findings

    def _say(self, session: str, what: str) -> None:
        self.findings.append(f"{session}: {what}")

    # --- the log itself

    def _stream(self) -> None:
        cursors = [one.cursor for one in self.all_events]
        if any(a >= b for a, b in pairwise(cursors)):
            self._say("all", "cursors do not rise")
        of_sessions = sum(len(kept.events) for kept in self.sessions.values())
        gone = sum(isinstance(one.body, ev.SessionDeleted) for one in self.all_events)
        if of_sessions + gone != len(self.all_events):
            self._say("all", f"{len(self.all_events)} events over all, {of_sessions} in the sessions, {gone} deletions")

    def _order(self, name: str, kept: Kept) -> None:
        indexes = [one.index for one in kept.events]
        if any(a >= b for a, b in pairwise(indexes)):
            self._say(name, f"indexes do not rise: {indexes}")
        if any(a.at > b.at for a, b in pairwise(kept.events)):
            self._say(name, "times go back")
        if indexes and indexes[-1] != kept.last_index:
            self._say(name, f"the newest event is {indexes[-1]}, the catalogue says {kept.last_index}")
        opened = sum(isinstance(one, ev.SessionOpened) for one in kept.bodies)
        if opened != 1:
            self._say(name, f"opened {opened} times")

    def _projections(self, name: str, kept: Kept) -> None:
        if kept.row != catalogue_row(kept.folded.state):
            self._say(name, f"the row is not the fold: {kept.row} and {catalogue_row(kept.folded.state)}")
        then = fold_all([one for one in kept.events if one.index <= kept.view_index])
        if decode_snapshot(kept.view) != then.state:
            self._say(name, f"the stored view of {kept.view_index} is not the fold")

    # --- acknowledged commands

    def _receipts(self, name: str, kept: Kept) -> None:
        counts = Counter(one.client_id for one in kept.bodies if isinstance(one, ev.CommandReceipt))
        for key, count in counts.items():
            if count > 1:
                self._say(name, f"{count} receipts for {key}")

    def _deeds(self) -> None:
        for deed in self._ledger.deeds:
            kept = self.sessions.get(deed.session)
            if self._ledger.is_gone(deed.session) and kept is not None:
                self._say(deed.session, "was deleted and is there again")
            if self._ledger.may_be_gone(deed.session) and kept is None:
                continue
            if kept is None:
                if deed.is_done:
                    self._say(deed.session, f"the session of {deed} is not there")
                continue
            self._deed(deed, kept)

    def _deed(self, deed: Deed, kept: Kept) -> None:
        found = [one for one in kept.bodies if isinstance(one, ev.CommandReceipt) and one.client_id == deed.key]
        if deed.is_done and not found:
            self._say(deed.session, f"acknowledged and lost: {deed}")
        if deed.is_refused and found:
            self._say(deed.session, f"refused and written: {deed}")
        if deed.is_done and found and deed.method != "create" and found[0].answer != deed.answer:
            self._say(deed.session, f"answered {deed.answer}, written {found[0].answer}: {deed}")
        effects = deed.effects(kept.bodies, found[0].answer if found else None)
        if effects != len(found):
            self._say(deed.session, f"{len(found)} receipts and {effects} effects of {deed}")

    def _texts(self, name: str, kept: Kept) -> None:
        """Check that every message is still queued, or that an event reports its delivery or removal."""
        waits = {one.id for one in kept.state.queue}
        went: set[str] = set()
        for body in kept.bodies:
            if isinstance(body, ev.PromptReceived | ev.PromptDropped | ev.PromptRejected):
                went.add(body.message_id)
            elif isinstance(body, ev.SteeringApplied):
                went.update(body.refs)
        for body in kept.bodies:
            if isinstance(body, ev.PromptQueued | ev.SteeringReceived):
                item = body.message_id if isinstance(body, ev.PromptQueued) else body.ref
                if item not in waits and item not in went:
                    self._say(name, f"a text is nowhere: {body}")

    def _published(self, published: list[tuple[str, int, str]]) -> None:
        there = {(one.session_id, one.index): one.type for one in self.all_events}
        for session, index, kind in published:
            if session in self.sessions and there.get((session, index)) != kind:
                self._say(session, f"{kind} was published as {index}, the log has {there.get((session, index))}")

    def _gates(self) -> None:
        """Check that a gate id is never reused for another question."""
        meant: dict[str, tuple[str, str]] = {}
        for event in self.all_events:
            gate = _asked(event.body)
            if gate is None or not gate[0]:
                continue
            this = (event.session_id, gate[1])
            if meant.setdefault(gate[0], this) != this:
                self._say(event.session_id, f"gate {gate[0]} was given twice")

    def _executions(self) -> None:
        for token, count in self._ledger.executed().items():
            if count > self._ledger.allowed(token):
                self._say("all", f"the text {token} ran {count} times")

    # --- the claimed states

    def _rests(self, name: str, state: State) -> None:
        claims = {one: getattr(state, one).value for one in ("lifecycle", "process", "run", "phase")}
        lives = state.lifecycle.value == "active" or state.process.value != "none" or state.run.value != "idle"
        if lives or state.phase.value in _LIVE_PHASES or state.turn.is_open or state.background:
            self._say(name, f"claims to live: {claims}")
        if state.gates.open:
            self._say(name, f"gates are open: {state.gates.open}")
        on_their_way = [item for item in state.queue if item.receipt in _ON_ITS_WAY]
        if on_their_way:
            self._say(name, f"texts are on their way to nobody: {on_their_way}")

    def _agrees(self, name: str, kept: Kept, shown: Any) -> None:
        """Check that the deck shows the state that the file has."""
        if shown is None:
            self._say(name, "is not in the list")
            return
        state = kept.state
        owners = {one: getattr(state, one).value for one in ("lifecycle", "process", "run", "phase")}
        wanted = {
            **owners,
            "open": [one.id for one in state.gates.open],
            "stale": [one.id for one in state.gates.stale],
            "queue": [[one.id, one.receipt] for one in state.queue],
        }
        different = {key: (shown[key], value) for key, value in wanted.items() if shown[key] != value}
        if different:
            self._say(name, f"the deck shows other than the log says: {different}")


def _asked(body: ev.Body) -> tuple[str, str] | None:
    if isinstance(body, ev.ApprovalRequired):
        return body.gate.gate_id, body.gate.ref
    if isinstance(body, ev.AskUser):
        return body.gate_id, body.ref
    return None


def _read(path: Path) -> tuple[dict[str, Kept], list[Event]]:
    reader = StoreReader(path)
    try:
        stored = reader.sessions()
        kept = {
            row.session_id: Kept(row, *rest, reader.read(row.session_id, 0, 1_000_000, None)) for row, *rest in stored
        }
        return kept, reader.read_all(0, 1_000_000, None)
    finally:
        reader.close()


def shown(findings: list[str]) -> str:
    return "\n".join(findings[:20])
