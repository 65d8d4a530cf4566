"""What the model says: blocks that begin, grow, and are restated whole."""

from __future__ import annotations

from quarterdeck import events as ev
from quarterdeck.events import Block, Event
from quarterdeck.kernel import timeline as tl
from quarterdeck.kernel.narrate.base import entry_of, tells
from quarterdeck.kernel.narrate.tool import announced
from quarterdeck.kernel.state import State
from quarterdeck.kernel.timeline import Kind, Timeline


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
    """The message is over, and these of its blocks are told whole."""
    growing = tl.blocks_of(timeline, message_id)
    if growing:
        texts = [block.block for block in blocks if block.kind != "tool_call"]
        timeline = tl.settled(timeline, growing, texts)
    for block in blocks:
        if block.kind == "tool_call":
            timeline = announced(timeline, event, block.call_id, block.name, block.args)
        else:
            timeline = _text_restated(timeline, event, message_id, block)
    return timeline


def _text_restated(timeline: Timeline, event: Event, message_id: str, block: Block) -> Timeline:
    name = tl.entry_id(message_id, block.block)
    blank = not block.text.strip()
    if name in timeline.places:
        return tl.reworded(timeline, name, block.text, blank)
    if blank:
        return timeline
    kind: Kind = "thinking" if block.kind == "thinking" else "assistant"
    return tl.with_block(timeline, entry_of(event, kind, block.text, name), message_id, block.block)
