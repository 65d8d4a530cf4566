"""Cards: a gate stands on the call that it is about, or on a line of its own, and shows how it was decided."""

from __future__ import annotations

from quarterdeck import events as ev
from quarterdeck.events import Event
from quarterdeck.kernel import timeline as tl
from quarterdeck.kernel.gate import Decision, Gate, Gates, asked
from quarterdeck.kernel.narrate.base import entry_of, tells
from quarterdeck.kernel.state import State
from quarterdeck.kernel.timeline import Card, Timeline


@tells(ev.ApprovalRequired, ev.AskUser, ev.DialogRequired)
def gate_opened(
    timeline: Timeline, event: Event, _body: ev.ApprovalRequired | ev.AskUser | ev.DialogRequired, _: State
) -> Timeline:
    """Asked again, the card is open again."""
    gate = asked(event)
    name = _entry_of_gate(timeline, gate)
    if name not in timeline.places:
        timeline = tl.appended(timeline, entry_of(event, "system", gate.title, name))
    return tl.with_card(timeline, name, Card(gate.id, gate.kind))


@tells(ev.UserResponded)
def user_responded(timeline: Timeline, event: Event, body: ev.UserResponded, _: State) -> Timeline:
    if body.status != "answered" or body.response is None:
        return timeline
    text = body.response if isinstance(body.response, str) else tl.plain(body.response)
    return tl.appended(timeline, entry_of(event, "user", text, body.message_id))


def settle_cards(timeline: Timeline, before: Gates, after: Gates) -> Timeline:
    """Whatever closed a gate, its card shows how. Called after every event that changed the gates."""
    still_open = [gate.id for gate in after.open] if after.open else ()
    for gate in before.open:
        if gate.id not in still_open:
            timeline = tl.with_card(timeline, _entry_of_gate(timeline, gate), _decided_card(gate, after.decided))
    return timeline


def _decided_card(gate: Gate, decided: tuple[Decision, ...]) -> Card:
    """By the last decision on it. Only so many are kept, but gates that one event closed were closed alike."""
    last = decided[-1]
    if last.gate_id != gate.id:
        last = next((one for one in reversed(decided) if one.gate_id == gate.id), last)
    return Card(gate.id, gate.kind, last.status, last.by, last.rule)


def _entry_of_gate(timeline: Timeline, gate: Gate) -> str:
    """The name of the entry that a gate stands on: the call that it is about, if that was told before it."""
    own = f"gate:{gate.id}"
    if own not in timeline.places and gate.kind == "approval" and gate.call_id in timeline.places:
        return gate.call_id
    return own
