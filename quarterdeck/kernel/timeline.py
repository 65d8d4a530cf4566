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

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, TypeAlias, cast

import msgspec
from immutables import Map
from msgspec import Struct
from msgspec.structs import replace
from pyrsistent import PVector, pvector

from quarterdeck.events import Image, Json
from quarterdeck.kernel.gate import Decision
from quarterdeck.kernel.rope import Rope, grown, text_of

Kind: TypeAlias = Literal["user", "assistant", "thinking", "tool", "error", "system", "bash"]
KINDS: tuple[Kind, ...] = ("user", "assistant", "thinking", "tool", "error", "system", "bash")
ToolPhase: TypeAlias = Literal["calling", "running", "done", "error"]
TOOL_PHASES: tuple[ToolPhase, ...] = ("calling", "running", "done", "error")

#: Kinds of entries that stand for something that runs.
_RUNNABLE = ("tool", "bash")
#: Kinds of entries that a message is made of.
_SPOKEN = ("assistant", "thinking")

ARGS_PREVIEW = 200
RESULT_PREVIEW = 4000
#: The result of a call that was cut off.
INTERRUPTED = "interrupted"


class ToolStep(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """A tool call as it is shown."""

    tool_name: str
    tool_args: str
    phase: ToolPhase
    result: str | None = None


class BashResult(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """The user's own shell command; no exit code while it runs or when it was ended from outside."""

    command: str
    output: str
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
    """004's UiMessage: id, kind and text always. `path` names the sub-agent that it belongs to."""

    id: str
    kind: Kind
    text: str
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


#: id → where its entry stands, for entries that may be told more about: not for plain lines. A message that does not
#: begin with block 0 is here too, as `message_id:`.
Places: TypeAlias = Map[str, int]


class Timeline(Struct, frozen=True, gc=False):
    """The whole conversation.

    `unfinished` names the entries of calls and shell commands that have no end yet, and it has the last word: whatever
    cuts them off empties it and touches no entry. In the same way `decided` has the last word on cards: by gate id, how
    a gate was decided whose card in its entry still says that it is open.
    """

    entries: PVector[Entry] = pvector()
    places: Places = Map()
    open: tuple[Growing, ...] = ()
    streaming: bool = False
    unfinished: tuple[str, ...] = ()
    decided: Map[str, Decision] = Map()


EMPTY = Timeline()


def entry_id(message_id: str, block: int) -> str:
    """The id of a message's block."""
    return f"{message_id}:{block}"


def line_id(index: int) -> str:
    """The id of what has no name of its own: that of the event that told it."""
    return f"{_LINE}{index}"


def own_id(name: str) -> str:
    """An agent's name for something. One that looks like ours is told apart, so no agent can name a thing like a line."""
    if _LINE not in name:  # that is nearly all of them, and dearer to see by their beginning
        return name
    return f"agent-{name}" if name.startswith(_LINE) and name[len(_LINE) :].isdecimal() else name


_LINE = "entry-"


def find(timeline: Timeline, identifier: str) -> Entry | None:
    """The entry of this id, if there is one."""
    if identifier not in timeline.places:
        return None
    entry = timeline.entries[timeline.places[identifier]]
    return entry if identifier in timeline.unfinished or entry.kind not in _RUNNABLE else _ended(entry)


def appended(timeline: Timeline, entry: Entry) -> Timeline:
    """With one more entry; an id that is there already adds nothing."""
    if entry.id in timeline.places:
        return timeline
    entries, places = _added(timeline.entries, timeline.places, entry)
    return Timeline(entries, places, timeline.open, timeline.streaming, timeline.unfinished, timeline.decided)


def _added(entries: PVector[Entry], places: Places, entry: Entry) -> tuple[PVector[Entry], Places]:
    """The entries and places with a new one, which stands last: at the end, or in place of what was only passing."""
    last = len(entries) - 1
    if last >= 0 and entries[last].passing:
        return entries.set(last, entry), _without(places, entries[last].id).set(entry.id, last)
    return entries.append(entry), places.set(entry.id, last + 1)


def _without(places: Places, name: str) -> Places:
    return places.delete(name) if name in places else places


def with_line(timeline: Timeline, line: Entry) -> Timeline:
    """With one more entry that nothing will ever refer to. It needs no name among the places, and that is dear."""
    entries, places = _with_line(timeline.entries, timeline.places, line)
    return Timeline(entries, places, timeline.open, timeline.streaming, timeline.unfinished, timeline.decided)


def _with_line(entries: PVector[Entry], places: Places, line: Entry) -> tuple[PVector[Entry], Places]:
    last = len(entries) - 1
    if last >= 0 and entries[last].passing:
        return entries.set(last, line), _without(places, entries[last].id)
    return entries.append(line), places


def changed(timeline: Timeline, entry: Entry) -> Timeline:
    """With this entry in the place of the one with the same id, or added."""
    place = timeline.places.get(entry.id)
    if place is None:
        return appended(timeline, entry)
    entries = timeline.entries.set(place, entry)
    return Timeline(entries, timeline.places, timeline.open, timeline.streaming, timeline.unfinished, timeline.decided)


def with_unfinished(timeline: Timeline, entry: Entry) -> Timeline:
    """With one more entry, of something that will end; one that is there already runs again."""
    entries, places = timeline.entries, timeline.places
    if entry.id not in places:
        entries, places = _added(entries, places, entry)
    unfinished = (*timeline.unfinished, entry.id)
    return Timeline(entries, places, timeline.open, timeline.streaming, unfinished, timeline.decided)


def finished(timeline: Timeline, entry: Entry) -> Timeline:
    """With this entry, which ends what had begun under its id; the pieces that came meanwhile are told in it."""
    name, entries, places = entry.id, timeline.entries, timeline.places
    if name in places:
        entries = entries.set(places[name], entry)
    else:
        entries, places = _added(entries, places, entry)
    left = timeline.unfinished
    if name in left:
        left = () if len(left) == 1 else tuple([one for one in left if one != name])
    growing = _others(timeline.open, name) if timeline.open else ()
    return Timeline(entries, places, growing, timeline.streaming, left, timeline.decided)


def _others(blocks: tuple[Growing, ...], message_id: str) -> tuple[Growing, ...]:
    """The blocks that do not belong to this message or call; mostly that is all of them."""
    for one in blocks:
        if one.message_id == message_id:
            return () if len(blocks) == 1 else tuple([other for other in blocks if other.message_id != message_id])
    return blocks


def begun(timeline: Timeline, entry: Entry, message_id: str, block: int) -> Timeline:
    """With an entry whose text will grow. Begun twice it is begun once."""
    for one in timeline.open:
        if one.message_id == message_id and one.block == block:
            return timeline
    entries, places = timeline.entries, timeline.places
    if entry.id in places:
        place = places[entry.id]
    else:
        entries, places = _added(entries, places, entry)
        place = len(entries) - 1
        if block:
            places = _with_first(places, places, message_id, place)
    blocks = (*timeline.open, Growing(message_id, block, place))
    return Timeline(entries, places, blocks, timeline.streaming, timeline.unfinished, timeline.decided)


def with_whole(
    timeline: Timeline, message_id: str, entries: PVector[Entry], new: Mapping[str, Entry], first: str = ""
) -> Timeline:
    """This message is over: with these entries, which tell blocks and calls of it whole, and with new ones of both.

    Blocks that are not told whole are as whole as they will ever be. `first` is the new block that the message begins
    with, where that is not block 0.
    """
    places, growing, unfinished = timeline.places, timeline.open, timeline.unfinished
    for one in growing:
        if one.message_id == message_id:
            growing = _others(growing, message_id)
            if entries[one.place] is timeline.entries[one.place]:
                entries = _with_texts(entries, (one,))
    if new:
        # the names are written together: each by itself would copy the same way to its place again
        place, names = len(entries), places.mutate()
        if place and entries[place - 1].passing:
            place -= 1
            names.pop(entries[place].id, None)
            replacing, *more = new.values()
            entries = entries.set(place, replacing).extend(more)
        else:
            entries = entries.extend(new.values())
        for name, entry in new.items():
            names[name] = place
            place += 1
            if entry.kind == "tool":
                unfinished += (name,)
        places = names.finish()
        if first:
            places = _with_first(timeline.places, places, message_id, places[first])
    return Timeline(entries, places, growing, timeline.streaming, unfinished, timeline.decided)


def _with_first(before: Places, places: Places, message_id: str, place: int) -> Places:
    """A message begins where its block 0 stands, unless another block came first: then that is noted."""
    name = _beginning(message_id)
    return places if name in before or entry_id(message_id, 0) in before else places.set(name, place)


def _beginning(message_id: str) -> str:
    return f"{message_id}:"


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
                timeline.decided,
            )
    return None


def settled_all(timeline: Timeline, streaming: bool) -> Timeline:
    """Every open block is whole: a turn begins or ends."""
    entries = _with_texts(timeline.entries, timeline.open) if timeline.open else timeline.entries
    return Timeline(entries, timeline.places, (), streaming, timeline.unfinished, timeline.decided)


def cut_off(timeline: Timeline, line: Entry | None = None) -> Timeline:
    """Nothing goes on: open blocks are as whole as they will ever be, what is unfinished was interrupted.

    `line` says why.
    """
    entries, places = timeline.entries, timeline.places
    if timeline.open:
        entries = _with_texts(entries, timeline.open)
    if line is not None:
        entries, places = _with_line(entries, places, line)
    return Timeline(entries, places, (), False, (), timeline.decided)


def interrupted(timeline: Timeline, outliving: Collection[str]) -> Timeline:
    """The turn is cut off. The user's own commands go on, and so do the calls that outlive it."""
    entries, places, left = timeline.entries, timeline.places, timeline.unfinished
    if timeline.open:
        entries = _with_texts(entries, timeline.open)
    if left:
        left = tuple([name for name in left if name in outliving or entries[places[name]].kind == "bash"])
    return Timeline(entries, places, (), False, left, timeline.decided)


def _ended(entry: Entry) -> Entry:
    """The entry of a call or command that is not among the unfinished: if it seems to run, it was interrupted."""
    step, bash = entry.tool_step, entry.bash_result
    if step is not None and step.phase not in ("done", "error"):
        return replace(entry, tool_step=ToolStep(step.tool_name, step.tool_args, "error", INTERRUPTED))
    if bash is not None and bash.running:
        return replace(entry, bash_result=BashResult(bash.command, bash.output))
    return entry


def shells(timeline: Timeline) -> tuple[str, ...]:
    """The user's own commands that still run."""
    return tuple([name for name in timeline.unfinished if timeline.entries[timeline.places[name]].bash_result])


def _with_texts(entries: PVector[Entry], blocks: Iterable[Growing]) -> PVector[Entry]:
    """These blocks are whole: their texts move into their entries. A block that stayed empty leaves no entry."""
    for one in blocks:
        place, rope = one.place, one.rope
        entry = entries[place]
        if entry.kind not in _SPOKEN:
            entries = entries.set(place, _with_text(entry, text_of(rope))) if rope else entries
        elif rope:
            entries = entries.set(place, replace(entry, text="".join(rope)))
        elif entry.text == "":
            entries = entries.set(place, replace(entry, gone=True))
    return entries


def withdrawn(timeline: Timeline, message_id: str) -> Timeline:
    """Without what this message said, also where the turn's end made it whole already: its pieces may be dropped."""
    entries, places = timeline.entries, timeline.places
    first = places.get(_beginning(message_id), places.get(entry_id(message_id, 0)))
    if first is None:
        return timeline
    for place in range(first, len(entries)):
        entry = entries[place]
        if entry.kind in _SPOKEN and entry.id.rpartition(":")[0] == message_id:
            entries = entries.set(place, replace(entry, gone=True))
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
    if entry.kind in _RUNNABLE and entry.id not in timeline.unfinished:
        entry = _ended(entry)
    return entry if entry.card is None else replace(entry, card=_card_now(timeline, entry.card))


def _card_now(timeline: Timeline, card: Card) -> Card:
    how = timeline.decided.get(card.gate_id)
    return card if how is None else Card(card.gate_id, card.kind, how.status, how.by, how.rule)


def with_card(timeline: Timeline, name: str, card: Card) -> Timeline:
    """With this card on the entry of this name."""
    place = timeline.places[name]
    return changed(timeline, replace(timeline.entries[place], card=card))


def undecided(timeline: Timeline, gate_id: str) -> Timeline:
    """A gate that is asked again is open again."""
    if gate_id not in timeline.decided:
        return timeline
    return replace(timeline, decided=timeline.decided.delete(gate_id))


def turns(entries: Iterable[Entry]) -> list[list[Entry]]:
    """004's grouping, made when it is drawn: each user entry begins a turn."""
    grouped: list[list[Entry]] = []
    for entry in entries:
        if entry.kind == "user" or not grouped:
            grouped.append([])
        grouped[-1].append(entry)
    return grouped


#: A checker learns nothing from a comparison with this, so it asks for no `cast`, which is a call at run time.
_DICT: Any = dict


def args_preview(args: Json) -> str:
    """A call's arguments in one line."""
    if args is None:
        return ""
    if type(args) is _DICT:
        for value in args.values():
            if type(value) is str and len(value) > ARGS_PREVIEW:
                # a file's whole content must not be encoded for the sake of one line
                args = {name: one[:ARGS_PREVIEW] if isinstance(one, str) else one for name, one in args.items()}
                break
    text = args if isinstance(args, str) else plain(args)
    return text if len(text) <= ARGS_PREVIEW else text[: ARGS_PREVIEW - 1] + "…"


def result_preview(result: Json) -> str | None:
    """A result as text: a string as it is, a list of parts joined, anything else as JSON."""
    if result is None:
        return None
    text = result if isinstance(result, str) else _joined(result)
    return text if len(text) <= RESULT_PREVIEW else text[: RESULT_PREVIEW - 1] + "…"


def _joined(result: Json) -> str:
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
    """JSON of anything. What cannot be JSON (a lone surrogate, a set) is shown as Python shows it, if it can be shown."""
    try:
        return _encode(value).decode()
    except _UNFIT:
        pass
    try:
        return ascii(value)
    except _UNFIT:
        return f"<{type(value).__name__}>"


_encode = msgspec.json.Encoder().encode
_UNFIT = (TypeError, ValueError, RecursionError)


def _with_text(entry: Entry, text: str) -> Entry:
    if entry.tool_step is not None:
        return replace(entry, tool_step=replace(entry.tool_step, result=result_preview(text)))
    if entry.bash_result is not None:
        return replace(entry, bash_result=replace(entry.bash_result, output=text))
    return replace(entry, text=text)
