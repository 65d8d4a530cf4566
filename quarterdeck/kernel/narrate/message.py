"""What the model says: blocks that begin, grow, and are restated whole."""

from __future__ import annotations

from msgspec.structs import replace
from pyrsistent import PVector

from quarterdeck import events as ev
from quarterdeck.events import Block, Event
from quarterdeck.kernel import timeline as tl
from quarterdeck.kernel.narrate.base import named_entry, tells
from quarterdeck.kernel.narrate.tool import called_again, step_of
from quarterdeck.kernel.state import State
from quarterdeck.kernel.timeline import Entry, Kind, Timeline


def _begun(timeline: Timeline, event: Event, kind: Kind, message_id: str, block: int) -> Timeline:
    entry = named_entry(event, kind, "", tl.entry_id(message_id, block))
    return tl.begun(timeline, entry, message_id, block)


@tells(ev.MessageStart)
def message_start(timeline: Timeline, event: Event, body: ev.MessageStart, _: State) -> Timeline:
    return _begun(timeline, event, "assistant", body.message_id, body.block)


@tells(ev.ThinkingStart)
def thinking_start(timeline: Timeline, event: Event, body: ev.ThinkingStart, _: State) -> Timeline:
    return _begun(timeline, event, "thinking", body.message_id, body.block)


@tells(ev.MessageDelta)
def message_delta(timeline: Timeline, event: Event, body: ev.MessageDelta, _: State) -> Timeline:
    more = tl.with_piece(timeline, body.message_id, body.block, body.delta)
    return more if more is not None else _late_piece(timeline, event, "assistant", body)


@tells(ev.ThinkingDelta)
def thinking_delta(timeline: Timeline, event: Event, body: ev.ThinkingDelta, _: State) -> Timeline:
    more = tl.with_piece(timeline, body.message_id, body.block, body.delta)
    return more if more is not None else _late_piece(timeline, event, "thinking", body)


def _late_piece(timeline: Timeline, event: Event, kind: Kind, body: ev.MessageDelta | ev.ThinkingDelta) -> Timeline:
    """A piece whose start was never told begins its block; one of a block that is whole already is dropped."""
    if tl.entry_id(body.message_id, body.block) in timeline.places:
        return timeline
    timeline = _begun(timeline, event, kind, body.message_id, body.block)
    return tl.with_piece(timeline, body.message_id, body.block, body.delta) or timeline


@tells(ev.ResponseComplete)
def response_complete(timeline: Timeline, event: Event, body: ev.ResponseComplete, _: State) -> Timeline:
    return _restated(timeline, event, body.message_id, body.blocks)


@tells(ev.MessageAborted)
def message_aborted(timeline: Timeline, event: Event, body: ev.MessageAborted, _: State) -> Timeline:
    if body.keep:
        return _restated(timeline, event, body.message_id, body.blocks)
    return tl.withdrawn(tl.with_whole(timeline, body.message_id, timeline.entries, {}), body.message_id)


def _restated(timeline: Timeline, event: Event, message_id: str, blocks: tuple[Block, ...]) -> Timeline:
    """The message is over, and these of its blocks are told whole. What is new among them is added together."""
    entries, places, first = timeline.entries, timeline.places, ""
    new: dict[str, Entry] = {}
    for block in blocks:
        is_call = block.kind == "tool_call"
        name = (block.call_id or f"e{event.index}") if is_call else tl.entry_id(message_id, block.block)
        if name in places:
            if not is_call or name in timeline.unfinished:  # a call that is over stays as it ended
                entries = _told_again(entries, places[name], block)
        elif name in new:
            new[name] = _again(new[name], block)
        elif is_call:
            new[name] = step_of(event, name, block.name, block.args)
        elif block.text and not block.text.isspace():
            new[name] = named_entry(event, "thinking" if block.kind == "thinking" else "assistant", block.text, name)
            if block.block and not first and tl.entry_id(message_id, 0) not in new:
                first = name
    return tl.with_whole(timeline, message_id, entries, new, first)


def _told_again(entries: PVector[Entry], place: int, block: Block) -> PVector[Entry]:
    known = entries[place]
    whole = _again(known, block)
    return entries if whole is known else entries.set(place, whole)


def _again(known: Entry, block: Block) -> Entry:
    """The same entry when nothing is new. A call without a name is another one, and cannot be told."""
    if block.kind != "tool_call":
        return replace(known, text=block.text, gone=not block.text or block.text.isspace())
    return called_again(known, block.name, block.args) if block.call_id else known
