"""What was said and done (seed 004): one flat list of entries, keyed by ids.

Finished entries stand in a persistent vector, so that a snapshot is shared and not copied and an event costs the same at
ten and at ten thousand entries. A text that is still growing keeps its place in the vector; its pieces are gathered
beside it (`open`) and put in when it is whole. Nothing is ever matched by text or by "the active tool", except where an
agent gives no id at all.

An entry is never taken out of the vector, because places must not move: one that is withdrawn becomes `gone` and is left
out of every window. What is only on its way to something else (a retry, a stalled stream) is `passing`: the next entry
takes its place.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias, cast

import msgspec
from immutables import Map
from msgspec import Struct
from msgspec.structs import replace
from pyrsistent import PVector, pvector

from quarterdeck.events import Image, Json
from quarterdeck.kernel.rope import Rope, grown, text_of

Kind: TypeAlias = Literal["user", "assistant", "thinking", "tool", "error", "system", "bash"]
KINDS: tuple[Kind, ...] = ("user", "assistant", "thinking", "tool", "error", "system", "bash")
ToolPhase: TypeAlias = Literal["calling", "running", "done", "error"]
TOOL_PHASES: tuple[ToolPhase, ...] = ("calling", "running", "done", "error")

ARGS_PREVIEW = 200
RESULT_PREVIEW = 4000


class ToolStep(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """A tool call as it is shown."""

    tool_name: str
    tool_args: str
    phase: ToolPhase
    result: str | None = None


class BashResult(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """The user's own shell command; no exit code while it runs or when it was ended from outside."""

    command: str
    output: str = ""
    exit_code: int | None = None
    running: bool = False


class Card(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """A gate as it stands in the timeline: open, or how it was decided."""

    gate_id: str
    kind: str
    status: str = "open"
    by: str = ""
    rule: str = ""


class Entry(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """004's UiMessage. `path` names the sub-agent that it belongs to."""

    id: str
    kind: Kind
    text: str = ""
    tool_step: ToolStep | None = None
    bash_result: BashResult | None = None
    images: tuple[Image, ...] = ()
    card: Card | None = None
    turn_id: str | None = None
    path: tuple[str, ...] = ()
    at: int = 0
    passing: bool = False
    gone: bool = False


class Growing(Struct, frozen=True, gc=False):
    """A block, or a call's output, that is still being streamed; `place` is where its entry stands."""

    message_id: str
    block: int
    place: int
    rope: Rope = ()


class Timeline(Struct, frozen=True, gc=False):
    """The whole conversation.

    `unfinished` names the tool entries that have no end yet. `cards` holds the gates by the entry that they stand on:
    beside the entries, because a decision is rarely the only thing that an event changes in them.
    """

    entries: PVector[Entry] = pvector()
    places: Map[str, int] = Map()
    open: tuple[Growing, ...] = ()
    streaming: bool = False
    unfinished: tuple[str, ...] = ()
    cards: Map[str, Card] = Map()


EMPTY = Timeline()


def entry_id(message_id: str, block: int) -> str:
    """The id of a message's block."""
    return f"{message_id}:{block}"


def find(timeline: Timeline, identifier: str) -> Entry | None:
    """The entry of this id, if there is one."""
    place = timeline.places.get(identifier)
    return None if place is None else timeline.entries[place]


def appended(timeline: Timeline, entry: Entry) -> Timeline:
    """With one more entry; an id that is there already adds nothing."""
    entries, places = timeline.entries, timeline.places
    if entry.id in places:
        return timeline
    place = len(entries)
    if place and entries[place - 1].passing:
        place -= 1
        entries, places = entries.set(place, entry), places.delete(entries[place].id)
    else:
        entries = entries.append(entry)
    return Timeline(
        entries, places.set(entry.id, place), timeline.open, timeline.streaming, timeline.unfinished, timeline.cards
    )


def changed(timeline: Timeline, entry: Entry) -> Timeline:
    """With this entry in the place of the one with the same id, or added."""
    place = timeline.places.get(entry.id)
    if place is None:
        return appended(timeline, entry)
    entries = timeline.entries.set(place, entry)
    return Timeline(entries, timeline.places, timeline.open, timeline.streaming, timeline.unfinished, timeline.cards)


def with_unfinished(timeline: Timeline, entry: Entry) -> Timeline:
    """With one more entry, of something that will end."""
    more = appended(timeline, entry)
    return Timeline(more.entries, more.places, more.open, more.streaming, (*more.unfinished, entry.id), more.cards)


def finished(timeline: Timeline, entry: Entry) -> Timeline:
    """With this entry, which ends what had begun under its id; the pieces that came meanwhile are told in it."""
    more = changed(timeline, entry)
    blocks = more.open and tuple(one for one in more.open if one.message_id != entry.id)
    left = more.unfinished and tuple(one for one in more.unfinished if one != entry.id)
    return Timeline(more.entries, more.places, blocks, more.streaming, left, more.cards)


def begun(timeline: Timeline, entry: Entry, message_id: str, block: int) -> Timeline:
    """With an entry whose text will grow. Begun twice it is begun once."""
    if any(one.message_id == message_id and one.block == block for one in timeline.open):
        return timeline
    timeline = appended(timeline, entry)
    place = timeline.places[entry.id]
    return replace(timeline, open=(*timeline.open, Growing(message_id, block, place)))


def with_piece(timeline: Timeline, message_id: str, block: int, piece: str) -> Timeline | None:
    """With more text in an open block; None when no such block is open."""
    blocks = timeline.open
    for at, one in enumerate(blocks):
        if one.message_id == message_id and one.block == block:
            more = Growing(message_id, block, one.place, grown(one.rope, piece))
            return Timeline(
                timeline.entries,
                timeline.places,
                (more,) if len(blocks) == 1 else (*blocks[:at], more, *blocks[at + 1 :]),
                timeline.streaming,
                timeline.unfinished,
                timeline.cards,
            )
    return None


def settled(timeline: Timeline, blocks: tuple[Growing, ...]) -> Timeline:
    """These blocks are whole: their texts move into their entries. A block that stayed empty leaves no entry."""
    if not blocks:
        return timeline
    left = () if blocks is timeline.open else tuple(one for one in timeline.open if one not in blocks)
    entries = _with_texts(timeline.entries, blocks)
    return Timeline(entries, timeline.places, left, timeline.streaming, timeline.unfinished, timeline.cards)


def settled_all(timeline: Timeline, streaming: bool) -> Timeline:
    """Every open block is whole: a turn begins or ends."""
    entries = _with_texts(timeline.entries, timeline.open) if timeline.open else timeline.entries
    return Timeline(entries, timeline.places, (), streaming, timeline.unfinished, timeline.cards)


def cut_off(timeline: Timeline) -> Timeline:
    """Nothing goes on: open blocks are as whole as they will ever be, unfinished calls were interrupted."""
    entries = _with_texts(timeline.entries, timeline.open) if timeline.open else timeline.entries
    for name in timeline.unfinished:
        place = timeline.places[name]
        entry = entries[place]
        if entry.tool_step is not None:
            step = ToolStep(entry.tool_step.tool_name, entry.tool_step.tool_args, "error", "interrupted")
            entries = entries.set(place, replace(entry, tool_step=step))
    return Timeline(entries, timeline.places, cards=timeline.cards)


def _with_texts(entries: PVector[Entry], blocks: tuple[Growing, ...]) -> PVector[Entry]:
    for one in blocks:
        entry = entries[one.place]
        if one.rope:
            entries = entries.set(one.place, _with_text(entry, text_of(one.rope)))
        elif entry.text == "" and entry.kind in ("assistant", "thinking"):
            entries = entries.set(one.place, replace(entry, gone=True))
    return entries


def blocks_of(timeline: Timeline, message_id: str) -> tuple[Growing, ...]:
    """The open blocks of one message, or the open output of one call."""
    return tuple(one for one in timeline.open if one.message_id == message_id)


def withdrawn(timeline: Timeline, blocks: Iterable[Growing]) -> Timeline:
    """Without the entries of these blocks."""
    entries = timeline.entries
    for one in blocks:
        entries = entries.set(one.place, replace(entries[one.place], gone=True))
    return replace(timeline, entries=entries)


def window(timeline: Timeline, limit: int | None = None, before: int | None = None) -> list[Entry]:
    """Entries as they are now, oldest first: the last `limit` ahead of the place `before`."""
    growing = {one.place: one for one in timeline.open if one.rope}
    end = len(timeline.entries) if before is None else max(0, min(before, len(timeline.entries)))
    shown: list[Entry] = []
    for place in range(end - 1, -1, -1):
        if limit is not None and len(shown) >= limit:
            break
        entry = timeline.entries[place]
        if not entry.gone:
            shown.append(_as_it_is(timeline, entry, growing.get(place)))
    shown.reverse()
    return shown


def _as_it_is(timeline: Timeline, entry: Entry, growing: Growing | None) -> Entry:
    """The entry with the text that came so far, and with its card."""
    if growing is not None:
        entry = _with_text(entry, text_of(growing.rope))
    card = timeline.cards.get(entry.id)
    return entry if card is None else replace(entry, card=card)


def with_card(timeline: Timeline, name: str, card: Card) -> Timeline:
    """With this card on the entry of this name."""
    cards = timeline.cards.set(name, card)
    return Timeline(timeline.entries, timeline.places, timeline.open, timeline.streaming, timeline.unfinished, cards)


def turns(entries: Iterable[Entry]) -> list[list[Entry]]:
    """004's grouping, made when it is drawn: each user entry begins a turn."""
    grouped: list[list[Entry]] = []
    for entry in entries:
        if entry.kind == "user" or not grouped:
            grouped.append([])
        grouped[-1].append(entry)
    return grouped


def args_preview(args: Json) -> str:
    """A call's arguments in one line."""
    if args is None:
        return ""
    text = args if isinstance(args, str) else plain(_shortened(args))
    return text if len(text) <= ARGS_PREVIEW else text[: ARGS_PREVIEW - 1] + "…"


def _shortened(args: Json) -> Json:
    """A file's whole content among the arguments must not be encoded for the sake of one line."""
    if not isinstance(args, dict):
        return args
    named = cast("dict[str, Json]", args)
    return {
        name: value[:ARGS_PREVIEW] if isinstance(value, str) and len(value) > ARGS_PREVIEW else value
        for name, value in named.items()
    }


def result_preview(result: Json) -> str | None:
    """A result as text: a string as it is, a list of parts joined, anything else as JSON."""
    if result is None:
        return None
    text = _joined(result)
    return text if len(text) <= RESULT_PREVIEW else text[: RESULT_PREVIEW - 1] + "…"


def _joined(result: Json) -> str:
    if isinstance(result, str):
        return result
    parts = cast("dict[str, Json]", result).get("content", result) if isinstance(result, dict) else result
    if isinstance(parts, list | tuple) and parts:
        texts = [_text_of_part(part) for part in cast("list[Json]", parts)]
        if None not in texts:
            return "\n".join(text for text in texts if text is not None)
    return plain(result)


def _text_of_part(part: Json) -> str | None:
    if isinstance(part, dict):
        part = cast("dict[str, Json]", part).get("text")
    return part if isinstance(part, str) else None


def plain(value: Json) -> str:
    """JSON of anything. What cannot be JSON (a lone surrogate, a set) is shown as Python shows it."""
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        return ascii(value)


def _with_text(entry: Entry, text: str) -> Entry:
    if entry.tool_step is not None:
        return replace(entry, tool_step=replace(entry.tool_step, result=result_preview(text)))
    if entry.bash_result is not None:
        return replace(entry, bash_result=replace(entry.bash_result, output=text))
    return replace(entry, text=text)
