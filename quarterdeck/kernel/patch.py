"""What changed between two views, as a client that mirrors them must be told.

Views are immutable and share what did not change, so the difference is found by identity: a delta costs what its pieces
cost, however long the conversation and the text are. Any two views of a session can be compared, so a reader that is
slow is simply told of more at once. Applying the changes to a mirror of the first view gives the second.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType

from quarterdeck.kernel.rope import Rope, text_of
from quarterdeck.kernel.summary import Details, Summary, details, summary
from quarterdeck.kernel.timeline import Entry, Growing, Timeline, window
from quarterdeck.kernel.view import View

#: How many entries a mirror holds unless it asks for more or fewer.
WINDOW = 200

Op: TypeAlias = Literal["add", "set", "append", "move", "remove"]


class Change(Struct, frozen=True, omit_defaults=True, gc=False):
    """One step. `after` names the entry that a new one follows; without it the new one is the first."""

    op: Op
    id: str
    field: str | UnsetType = UNSET
    value: Any = UNSET
    after: str | UnsetType | None = UNSET


def shown(view: View) -> dict[str, Any]:
    """Everything that a client sees of a view, but the timeline, by field."""
    return {**_fields(summary(view)), **_fields(details(view))}


def _fields(struct: Summary | Details) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def summary_changes(before: View, after: View) -> list[Change]:
    """What changed in the row of the list."""
    if before.state is after.state:
        return []
    return _set(after.state.profile.id, _fields(summary(before)), _fields(summary(after)))


def view_changes(before: View, after: View) -> list[Change]:
    """What changed in the whole view; `index` goes with the message that carries the changes."""
    if before.state is after.state:
        return []
    return _set(after.state.profile.id, shown(before), shown(after))


def _set(name: str, old: dict[str, Any], new: dict[str, Any]) -> list[Change]:
    return [
        Change("set", name, field, value) for field, value in new.items() if field != "index" and old[field] != value
    ]


def timeline_changes(before: Timeline, after: Timeline, limit: int = WINDOW) -> list[Change]:
    """What changed in the last `limit` entries."""
    if before is after:
        return []
    grown = _only_grown(before, after, limit)
    return grown if grown is not None else _rewritten(before, after, limit)


# --- texts that grew, which is what nearly always happened


def _only_grown(before: Timeline, after: Timeline, limit: int) -> list[Change] | None:
    """The pieces that came since; None when something else changed too, or where a mirror may not hold the text."""
    same = before.entries is after.entries and before.unfinished == after.unfinished
    if not same or before.decided is not after.decided or before.streaming != after.streaming:
        return None
    if len(before.open) != len(after.open):
        return None
    changes: list[Change] = []
    for old, new in zip(before.open, after.open, strict=True):
        piece = _piece(old, new)
        entry = after.entries[new.place]
        is_held = new.place >= len(after.entries) - limit and not entry.gone
        if piece is None or entry.tool_step is not None or not is_held:
            return None
        if piece:
            field = "bashResult.output" if entry.bash_result is not None else "text"
            changes.append(Change("append", entry.id, field, piece))
    return changes


def _piece(old: Growing, new: Growing) -> str | None:
    """What a text gained; None when it is another text."""
    if old.place != new.place or old.message_id != new.message_id:
        return None
    if not old.rope and new.rope:
        return None  # the first piece takes the place of what the entry held
    return _since(old.rope, new.rope)


def _since(old: Rope, new: Rope) -> str | None:
    """The text between two ropes of which the second grew out of the first. What they share they share as objects."""
    shared = 0
    while shared < len(old) and shared < len(new) and old[shared] is new[shared]:
        shared += 1
    before, after = text_of(old[shared:]), text_of(new[shared:])
    return after[len(before) :] if after.startswith(before) else None


# --- everything else


def _rewritten(before: Timeline, after: Timeline, limit: int) -> list[Change]:
    old = {entry.id: entry for entry in window(before, limit)}
    new = {entry.id: entry for entry in window(after, limit)}
    changes = [Change("remove", name) for name in old if name not in new]
    last: str | None = None
    for name, entry in new.items():
        known = old.get(name)
        if known is None:
            changes.append(Change("add", name, value=entry, after=last))
        elif known is not entry:
            changes += _entry_changes(known, entry)
        last = name
    return changes


def _entry_changes(old: Entry, new: Entry) -> list[Change]:
    if old.text != new.text and new.text.startswith(old.text) and old.text:
        grown = Change("append", new.id, "text", new.text[len(old.text) :])
        return [grown, *_field_changes(old, new, ("text",))]
    return _field_changes(old, new, ())


def _field_changes(old: Entry, new: Entry, skipped: tuple[str, ...]) -> list[Change]:
    return [
        Change("set", new.id, told, getattr(new, name))
        for name, told in zip(Entry.__struct_fields__, Entry.__struct_encode_fields__, strict=True)
        if name not in skipped and getattr(old, name) != getattr(new, name)
    ]


def applied(entries: list[dict[str, Any]], changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A mirror of the timeline after these changes, as plain JSON. What a client does, here for clients in Python."""
    mirror = [dict(entry) for entry in entries]
    for change in changes:
        _apply(mirror, change)
    return mirror


def _apply(mirror: list[dict[str, Any]], change: dict[str, Any]) -> None:
    name, op = change["id"], change["op"]
    if op == "add":
        places = {entry["id"]: place for place, entry in enumerate(mirror)}
        after = change.get("after")
        mirror.insert(0 if after is None else places[after] + 1, dict(change["value"]))
        return
    place = next(place for place, entry in enumerate(mirror) if entry["id"] == name)
    if op == "remove":
        del mirror[place]
    elif op == "set":
        _set_field(mirror[place], change["field"], change["value"])
    else:
        _append(mirror[place], change["field"], change["value"])


def _set_field(entry: dict[str, Any], field: str, value: Any) -> None:
    if value == DEFAULTS.get(field, UNSET):
        entry.pop(field, None)
    else:
        entry[field] = value


def _append(entry: dict[str, Any], field: str, piece: str) -> None:
    *path, last = field.split(".")
    for name in path:
        entry[name] = dict(entry[name])
        entry = entry[name]
    entry[last] = entry.get(last, "") + piece


#: Fields of an entry that JSON leaves out when they have these values.
DEFAULTS: dict[str, Any] = {
    told: msgspec.to_builtins(default)
    for told, default in zip(Entry.__struct_encode_fields__[3:], Entry.__struct_defaults__, strict=True)
}
