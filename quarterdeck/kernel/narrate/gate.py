"""Cards: a gate stands on the call that it is about, or on a line of its own, and shows how it was decided."""

from __future__ import annotations

from quarterdeck import events as ev
from quarterdeck.events import Event
from quarterdeck.kernel import timeline as tl
from quarterdeck.kernel.gate import Gates, id_of, lately, title_of
from quarterdeck.kernel.narrate.base import entry_of, tells
from quarterdeck.kernel.state import State
from quarterdeck.kernel.timeline import Card, Timeline


@tells(ev.ApprovalRequired)
def approval_required(timeline: Timeline, event: Event, body: ev.ApprovalRequired, _: State) -> Timeline:
    """The card stands on the call, if that was told before it."""
    request = body.gate
    card = Card(id_of(event, request.gate_id, request.ref), "approval")
    own = f"gate:{card.gate_id}"
    name = request.call_id if own not in timeline.places and request.call_id in timeline.places else own
    return _opened(timeline, event, name, title_of(request), card)


@tells(ev.AskUser)
def ask_user(timeline: Timeline, event: Event, body: ev.AskUser, _: State) -> Timeline:
    card = Card(id_of(event, body.gate_id, body.ref), "question")
    return _opened(timeline, event, f"gate:{card.gate_id}", body.question, card)


@tells(ev.DialogRequired)
def dialog_required(timeline: Timeline, event: Event, body: ev.DialogRequired, _: State) -> Timeline:
    card = Card(id_of(event, body.gate_id, body.ref), "dialog")
    return _opened(timeline, event, f"gate:{card.gate_id}", body.title, card)


def _opened(timeline: Timeline, event: Event, name: str, title: str, card: Card) -> Timeline:
    """Asked again, the card is open again."""
    if name in timeline.places:
        timeline = tl.with_card(timeline, name, card)
    else:
        timeline = tl.appended(timeline, entry_of(event, "system", title, name, None, None, (), card))
    return tl.undecided(timeline, card.gate_id)


@tells(ev.UserResponded)
def user_responded(timeline: Timeline, event: Event, body: ev.UserResponded, _: State) -> Timeline:
    if body.status != "answered" or body.response is None:
        return timeline
    text = body.response if isinstance(body.response, str) else tl.plain(body.response)
    return tl.appended(timeline, entry_of(event, "user", text, body.message_id))


def settle_cards(timeline: Timeline, before: Gates, after: Gates) -> Timeline:
    """Whatever closed a gate, its card shows how. Called after every event that opened or closed one."""
    if after.decided is before.decided:
        return timeline
    how = after.decided[-1]
    if len(before.open) - len(after.open) == 1:
        decided = timeline.decided.set(how.gate_id, how)
    else:
        # only so many decisions are kept, but gates that one event closed were closed alike
        known, still_open = {one.gate_id: one for one in lately(after)}, [gate.id for gate in after.open]
        closed = [gate.id for gate in before.open if gate.id not in still_open]
        decided = timeline.decided.update({name: known.get(name, how) for name in closed})
    return Timeline(timeline.entries, timeline.places, timeline.open, timeline.streaming, timeline.unfinished, decided)
