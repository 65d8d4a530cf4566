"""Maintain the conversation (seed 004): one flat list of entries, found by id.

Finished entries are in a persistent vector, so a snapshot shares it instead of copying it, and an event costs the same
with ten entries as with ten thousand. An entry whose text is still growing is in the vector too; its pieces are collected
in `open` and moved into the entry when the text is complete. Entries are never matched by their text or by "the active
tool", except for agents that give no id at all.

Entries are never removed from the vector, because the positions of the others must not change. A withdrawn entry is
marked `gone` and left out of every window. An entry that only reports an intermediate state (a retry, a stalled stream)
is marked `passing`: the next entry replaces it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Literal, TypeAlias, cast

import msgspec
from immutables import Map
from msgspec import Struct
from msgspec.structs import replace
from pyrsistent import PVector, pvector

from quarterdeck.events import Image, Json
from quarterdeck.kernel.gate import Decision
from quarterdeck.kernel.rope import Rope, grown, text_of

# ------------------------------------------------------------------------------------------------- shapes

Kind: TypeAlias = Literal["user", "assistant", "thinking", "tool", "error", "system", "bash"]
KINDS: tuple[Kind, ...] = ("user", "assistant", "thinking", "tool", "error", "system", "bash")
ToolPhase: TypeAlias = Literal["calling", "running", "done", "error"]
TOOL_PHASES: tuple[ToolPhase, ...] = ("calling", "running", "done", "error")

#: Kinds of entries that represent something that runs.
_RUNNABLE = ("tool", "bash")
#: Kinds of entries that a message of the model consists of.
_SPOKEN = ("assistant", "thinking")

ARGS_PREVIEW = 200
RESULT_PREVIEW = 4000
#: The result of a call that was interrupted.
INTERRUPTED = "interrupted"


class ToolStep(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """A tool call as shown in the timeline."""

    tool_name: str
    tool_args: str
    phase: ToolPhase
    result: str | None = None


class BashResult(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """The user's own shell command. It has no exit code while it runs, or if it was interrupted."""

    command: str
    output: str
    exit_code: int | None = None
    running: bool = False


class Card(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """A gate in the timeline: open, or how it was decided."""

    gate_id: str
    kind: str
    status: str = "open"
    by: str = ""
    rule: str = ""


class Entry(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """One entry: 004's UiMessage. `path` names the sub-agent that it belongs to."""

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
    #: The next entry replaces this one.
    passing: bool = False
    #: Withdrawn: not part of any window.
    gone: bool = False


class Growing(Struct, frozen=True, gc=False):
    """A block of a message, or a call's output, that is still streaming. `position` is that of its entry."""

    message_id: str
    block: int
    position: int
    rope: Rope = ()


Entries: TypeAlias = PVector[Entry]
#: The position of each entry that later events may refer to, by id. Plain lines aren't included. If a message doesn't
#: start with block 0, its first entry is also listed as `message_id:`.
Positions: TypeAlias = Map[str, int]


class Timeline(Struct, frozen=True, gc=False):
    """The whole conversation.

    Use `window` to read entries: two fields override what the vector contains, so that an event which interrupts many
    entries doesn't have to rewrite each of them.
    """

    entries: Entries = pvector()
    positions: Positions = Map()
    open: tuple[Growing, ...] = ()
    streaming: bool = False
    #: Ids of calls and shell commands that haven't ended. An entry that looks running but isn't listed here was
    #: interrupted.
    unfinished: tuple[str, ...] = ()
    #: Decisions on gates whose card in the vector still says that they are open, by gate id.
    decided: Map[str, Decision] = Map()


EMPTY = Timeline()


# ---------------------------------------------------------------------------------------------------- ids

_LINE_PREFIX = "entry-"


def entry_id(message_id: str, block: int) -> str:
    """Return the id of a message's block."""
    return f"{message_id}:{block}"


def line_id(index: int) -> str:
    """Return the id of an entry without an id of its own: that of the event which created it."""
    return f"{_LINE_PREFIX}{index}"


def own_id(agent_id: str) -> str:
    """Convert an agent's id to an entry id, so that no agent can choose the id of one of our lines."""
    is_line_id = agent_id.startswith(_LINE_PREFIX) and agent_id[len(_LINE_PREFIX) :].isdecimal()
    return f"agent-{agent_id}" if is_line_id else agent_id


def _first_block_id(message_id: str) -> str:
    return f"{message_id}:"


# ---------------------------------------------------------------------------------------- adding entries


def appended(timeline: Timeline, entry: Entry) -> Timeline:
    """Add an entry, unless its id exists."""
    if entry.id in timeline.positions:
        return timeline
    entries, positions = _with_entry(timeline.entries, timeline.positions, entry)
    return replace(timeline, entries=entries, positions=positions)


def with_line(timeline: Timeline, line: Entry) -> Timeline:
    """Add an entry that no later event refers to. Its position isn't recorded."""
    entries, positions = _with_line(timeline.entries, timeline.positions, line)
    return replace(timeline, entries=entries, positions=positions)


def changed(timeline: Timeline, entry: Entry) -> Timeline:
    """Replace the entry with the same id, or add it."""
    position = timeline.positions.get(entry.id)
    if position is None:
        return appended(timeline, entry)
    return replace(timeline, entries=timeline.entries.set(position, entry))


def with_unfinished(timeline: Timeline, entry: Entry) -> Timeline:
    """Add an entry for something that will end. If its id exists, it runs again."""
    return replace(appended(timeline, entry), unfinished=(*timeline.unfinished, entry.id))


def finished(timeline: Timeline, entry: Entry) -> Timeline:
    """Replace or add the entry of something that has ended. It contains the pieces that were collected meanwhile."""
    unfinished = tuple(entry_id for entry_id in timeline.unfinished if entry_id != entry.id)
    growing = tuple(block for block in timeline.open if block.message_id != entry.id)
    return replace(changed(timeline, entry), open=growing, unfinished=unfinished)


def _with_entry(entries: Entries, positions: Positions, entry: Entry) -> tuple[Entries, Positions]:
    """Add an entry and record its position, which is always the last one."""
    entries, positions = _with_line(entries, positions, entry)
    return entries, positions.set(entry.id, len(entries) - 1)


def _with_line(entries: Entries, positions: Positions, line: Entry) -> tuple[Entries, Positions]:
    """Add an entry at the end, or in the position of a last entry that was only passing."""
    last = len(entries) - 1
    if last < 0 or not entries[last].passing:
        return entries.append(line), positions
    replaced_id = entries[last].id
    if replaced_id in positions:
        positions = positions.delete(replaced_id)
    return entries.set(last, line), positions


# ---------------------------------------------------------------------------------------- growing texts


def begun(timeline: Timeline, entry: Entry, message_id: str, block: int) -> Timeline:
    """Add an entry whose text will grow. If the block is open already, nothing changes."""
    if any(growing.message_id == message_id and growing.block == block for growing in timeline.open):
        return timeline
    entries, positions = timeline.entries, timeline.positions
    if entry.id not in positions:
        entries, positions = _with_entry(entries, positions, entry)
        if block:
            positions = _with_first_block(timeline.positions, positions, message_id, positions[entry.id])
    growing = Growing(message_id, block, positions[entry.id])
    return replace(timeline, entries=entries, positions=positions, open=(*timeline.open, growing))


def with_piece(timeline: Timeline, message_id: str, block: int, piece: str) -> Timeline | None:
    """Append text to an open block. Return None if no such block is open."""
    for number, growing in enumerate(timeline.open):
        if growing.message_id == message_id and growing.block == block:
            longer = Growing(message_id, block, growing.position, grown(growing.rope, piece))
            return replace(timeline, open=(*timeline.open[:number], longer, *timeline.open[number + 1 :]))
    return None


def with_whole(
    timeline: Timeline, message_id: str, entries: Entries, new: Mapping[str, Entry], first: str = ""
) -> Timeline:
    """Complete a message.

    `entries` is the timeline's vector in which the caller has restated blocks and calls of the message; `new` are entries
    to add. Open blocks of the message that weren't restated are complete as they are. `first` is the id of the new block
    that the message starts with, if that isn't block 0.
    """
    for growing in timeline.open:
        was_restated = entries[growing.position] is not timeline.entries[growing.position]
        if growing.message_id == message_id and not was_restated:
            entries = _with_texts(entries, (growing,))
    positions, unfinished = timeline.positions, timeline.unfinished
    for entry in new.values():
        entries, positions = _with_entry(entries, positions, entry)
        if entry.kind == "tool":
            unfinished = (*unfinished, entry.id)
    if first:
        positions = _with_first_block(timeline.positions, positions, message_id, positions[first])
    return replace(
        timeline,
        entries=entries,
        positions=positions,
        open=tuple(growing for growing in timeline.open if growing.message_id != message_id),
        unfinished=unfinished,
    )


def _with_first_block(before: Positions, positions: Positions, message_id: str, position: int) -> Positions:
    """Record where a message starts, if that isn't its block 0 and wasn't recorded before."""
    first_id = _first_block_id(message_id)
    return positions if first_id in before or entry_id(message_id, 0) in before else positions.set(first_id, position)


def _with_texts(entries: Entries, blocks: Iterable[Growing]) -> Entries:
    """Move the collected text of these blocks into their entries. The entry of an empty block is withdrawn."""
    for growing in blocks:
        entry = entries[growing.position]
        if growing.rope:
            entries = entries.set(growing.position, _with_text(entry, text_of(growing.rope)))
        elif entry.kind in _SPOKEN and entry.text == "":
            entries = entries.set(growing.position, replace(entry, gone=True))
    return entries


def _with_text(entry: Entry, text: str) -> Entry:
    """Put the collected text where an entry of this kind shows it."""
    if entry.tool_step is not None:
        return replace(entry, tool_step=replace(entry.tool_step, result=result_preview(text)))
    if entry.bash_result is not None:
        return replace(entry, bash_result=replace(entry.bash_result, output=text))
    return replace(entry, text=text)


# -------------------------------------------------------------------------- completing and interrupting


def with_blocks_completed(timeline: Timeline, streaming: bool) -> Timeline:
    """Complete every open block, when a turn starts or ends."""
    return replace(timeline, entries=_with_texts(timeline.entries, timeline.open), open=(), streaming=streaming)


def cut_off(timeline: Timeline, line: Entry | None = None) -> Timeline:
    """Complete every open block and interrupt every unfinished entry, because the agent is gone. `line` says why."""
    timeline = replace(with_blocks_completed(timeline, False), unfinished=())
    return timeline if line is None else with_line(timeline, line)


def interrupted(timeline: Timeline, outliving: Collection[str]) -> Timeline:
    """Interrupt the turn. The user's own commands continue, and so do the calls that outlive the turn."""
    running = shells(timeline)
    unfinished = tuple(name for name in timeline.unfinished if name in outliving or name in running)
    return replace(with_blocks_completed(timeline, False), unfinished=unfinished)


def withdrawn(timeline: Timeline, message_id: str) -> Timeline:
    """Withdraw the entries of a message, also if the end of the turn completed them already.

    Their deltas may be dropped from the log, so a fold of the remaining events must not show them.
    """
    entries, positions = timeline.entries, timeline.positions
    first = positions.get(_first_block_id(message_id), positions.get(entry_id(message_id, 0)))
    if first is None:
        return timeline
    for position in range(first, len(entries)):
        entry = entries[position]
        if entry.kind in _SPOKEN and entry.id.rpartition(":")[0] == message_id:
            entries = entries.set(position, replace(entry, gone=True))
    return replace(timeline, entries=entries)


# ------------------------------------------------------------------------------------------------- cards


def with_card(timeline: Timeline, identifier: str, card: Card) -> Timeline:
    """Put a card on an existing entry."""
    return changed(timeline, replace(timeline.entries[timeline.positions[identifier]], card=card))


def undecided(timeline: Timeline, gate_id: str) -> Timeline:
    """Reopen the card of a gate that is asked again."""
    if gate_id not in timeline.decided:
        return timeline
    return replace(timeline, decided=timeline.decided.delete(gate_id))


# ------------------------------------------------------------------------------------------------ reading


def find(timeline: Timeline, identifier: str) -> Entry | None:
    """Return the entry with this id."""
    position = timeline.positions.get(identifier)
    return None if position is None else _with_end(timeline, timeline.entries[position])


def shells(timeline: Timeline) -> tuple[str, ...]:
    """Return the ids of the user's own commands that still run."""
    return tuple(name for name in timeline.unfinished if timeline.entries[timeline.positions[name]].kind == "bash")


def window(timeline: Timeline, limit: int | None = None, before: int | None = None) -> list[Entry]:
    """Return entries as they are now, oldest first: the last `limit` ones before the position `before`."""
    growing = {block.position: block for block in timeline.open if block.rope}
    end = len(timeline.entries) if before is None else max(0, min(before, len(timeline.entries)))
    entries: list[Entry] = []
    for position in range(end - 1, -1, -1):
        if limit is not None and len(entries) >= limit:
            break
        entry = timeline.entries[position]
        if not entry.gone:
            entries.append(_current(timeline, entry, growing.get(position)))
    entries.reverse()
    return entries


def turns(entries: Iterable[Entry]) -> list[list[Entry]]:
    """Group entries by turn, as 004 draws them: each user entry starts a turn."""
    groups: list[list[Entry]] = []
    for entry in entries:
        if entry.kind == "user" or not groups:
            groups.append([])
        groups[-1].append(entry)
    return groups


def _current(timeline: Timeline, entry: Entry, growing: Growing | None) -> Entry:
    """Return an entry with the text collected so far, its end, and the decision on its gate."""
    if growing is not None:
        entry = _with_text(entry, text_of(growing.rope))
    entry = _with_end(timeline, entry)
    if entry.card is None:
        return entry
    decision = timeline.decided.get(entry.card.gate_id)
    if decision is None:
        return entry
    card = Card(entry.card.gate_id, entry.card.kind, decision.status, decision.by, decision.rule)
    return replace(entry, card=card)


def _with_end(timeline: Timeline, entry: Entry) -> Entry:
    """Mark a call or command as interrupted if it looks running but isn't among the unfinished."""
    if entry.kind not in _RUNNABLE or entry.id in timeline.unfinished:
        return entry
    step, bash = entry.tool_step, entry.bash_result
    if step is not None and step.phase not in ("done", "error"):
        return replace(entry, tool_step=ToolStep(step.tool_name, step.tool_args, "error", INTERRUPTED))
    if bash is not None and bash.running:
        return replace(entry, bash_result=BashResult(bash.command, bash.output))
    return entry


# ----------------------------------------------------------------------------------------------- previews


def args_preview(args: Json) -> str:
    """Show a call's arguments in one line."""
    if args is None:
        return ""
    if isinstance(args, dict):
        # Shorten long strings first: a file's whole content must not be encoded for one line.
        arguments = cast("dict[str, Json]", args).items()
        args = {name: value[:ARGS_PREVIEW] if isinstance(value, str) else value for name, value in arguments}
    text = args if isinstance(args, str) else json_text(args)
    return text if len(text) <= ARGS_PREVIEW else text[: ARGS_PREVIEW - 1] + "…"


def result_preview(result: Json) -> str | None:
    """Show a result as text: a string unchanged, the texts of a list of parts joined, anything else as JSON."""
    if result is None:
        return None
    text = result if isinstance(result, str) else _joined_parts(result)
    return text if len(text) <= RESULT_PREVIEW else text[: RESULT_PREVIEW - 1] + "…"


def _joined_parts(result: Json) -> str:
    parts = cast("dict[str, Json]", result).get("content", result) if isinstance(result, dict) else result
    if isinstance(parts, list | tuple) and parts:
        texts = [_text_of_part(part) for part in cast("list[Json]", parts)]
        if None not in texts:
            return "\n".join(text for text in texts if text is not None)
    return json_text(result)


def _text_of_part(part: Json) -> str | None:
    if isinstance(part, dict):
        part = cast("dict[str, Json]", part).get("text")
    return part if isinstance(part, str) else None


_encode = msgspec.json.Encoder().encode
_ENCODE_ERRORS = (TypeError, ValueError, RecursionError)


def json_text(value: Json) -> str:
    """Encode a value as JSON. What JSON can't represent (a lone surrogate, a set) is shown as Python shows it."""
    try:
        return _encode(value).decode()
    except _ENCODE_ERRORS:
        pass
    try:
        return ascii(value)
    except _ENCODE_ERRORS:
        return f"<{type(value).__name__}>"
