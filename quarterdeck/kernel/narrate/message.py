"""What the model says: blocks that begin, grow, and are restated whole."""

from __future__ import annotations

from quarterdeck import events as ev
from quarterdeck.events import Block, Event
from quarterdeck.kernel import timeline as tl
from quarterdeck.kernel.narrate.base import entry_of, tells
from quarterdeck.kernel.narrate.tool import announced, step_of
from quarterdeck.kernel.state import State
from quarterdeck.kernel.timeline import Entry, Kind, Timeline


def _begun(timeline: Timeline, event: Event, kind: Kind, message_id: str, block: int) -> Timeline:
    entry = entry_of(event, kind, "", tl.entry_id(message_id, block))
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
    timeline = tl.settled(timeline, tl.blocks_of(timeline, body.message_id))
    return tl.withdrawn(timeline, body.message_id)


def _restated(timeline: Timeline, event: Event, message_id: str, blocks: tuple[Block, ...]) -> Timeline:
    """The message is over, and these of its blocks are told whole. What is new among them is added together."""
    if timeline.open:
        timeline = _settled(timeline, message_id, blocks)
    places = timeline.places
    new: dict[str, Entry] = {}
    for block in blocks:
        is_call = block.kind == "tool_call"
        name = block.call_id if is_call else tl.entry_id(message_id, block.block)
        if name in places:
            timeline = _told_again(timeline, event, message_id, block)
        elif not name or name in new or (block.block and not is_call and tl.entry_id(message_id, 0) not in new):
            # no name, a name twice, or a message that may begin in its middle
            timeline = _told_again(tl.with_new(timeline, new.values()), event, message_id, block)
            places, new = timeline.places, {}
        elif is_call:
            new[name] = step_of(event, name, block.name, block.args)
        elif block.text and not block.text.isspace():
            new[name] = entry_of(event, "thinking" if block.kind == "thinking" else "assistant", block.text, name)
    return tl.with_new(timeline, new.values()) if new else timeline


def _settled(timeline: Timeline, message_id: str, blocks: tuple[Block, ...]) -> Timeline:
    """Pieces that are about to be restated are not told before."""
    growing = tl.blocks_of(timeline, message_id)
    if not growing:
        return timeline
    return tl.settled(timeline, growing, [block.block for block in blocks if block.kind != "tool_call"])


def _told_again(timeline: Timeline, event: Event, message_id: str, block: Block) -> Timeline:
    """With a block that may be known."""
    if block.kind == "tool_call":
        return announced(timeline, event, block.call_id, block.name, block.args)
    name = tl.entry_id(message_id, block.block)
    blank = not block.text.strip()
    if name in timeline.places:
        return tl.reworded(timeline, name, block.text, blank)
    if blank:
        return timeline
    kind: Kind = "thinking" if block.kind == "thinking" else "assistant"
    return tl.with_block(timeline, entry_of(event, kind, block.text, name), message_id, block.block)
