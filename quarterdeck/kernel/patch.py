"""Compute what changed between two views, for clients that mirror them.

Views are immutable and share the parts that didn't change, so differences are found by identity. An event changes few
parts of the state; only the fields that are derived from them are computed and compared. A text delta costs as much as
its pieces, however long the conversation and the text are.

Any two views of a session can be compared, so a slow client simply receives a larger difference. Applying the changes to
a mirror of the first view gives the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from quarterdeck.kernel.rope import Rope, text_of
from quarterdeck.kernel.state import State
from quarterdeck.kernel.summary import SUMMARY_FIELDS, VIEW_FIELDS, Field
from quarterdeck.kernel.timeline import Entry, Growing, Timeline, window
from quarterdeck.kernel.view import View

#: How many timeline entries a mirror holds by default.
WINDOW = 200

Op: TypeAlias = Literal["add", "set", "append", "move", "remove"]


class Change(Struct, frozen=True, omit_defaults=True, gc=False):
    """One step. A new entry is inserted after the entry `after`, or first if `after` is missing or null."""

    op: Op
    id: str
    field: str | UnsetType = UNSET
    value: Any = UNSET
    after: str | UnsetType | None = UNSET


# ----------------------------------------------------------------------------------- summary and details


def summary_changes(before: View, after: View) -> list[Change]:
    """Return what changed in the session's row of the list."""
    return field_changes(SUMMARY_FIELDS, before.state, after.state)


def view_changes(before: View, after: View) -> list[Change]:
    """Return what changed in the summary and the details. The caller sends `index` itself."""
    return field_changes(VIEW_FIELDS, before.state, after.state)


def field_changes(fields: Mapping[str, Field], old: State, new: State) -> list[Change]:
    """Return the fields that differ between two states. Fields whose parts are the same objects are not computed."""
    if old is new:
        return []
    changed_parts = {name for name in State.__struct_fields__ if getattr(old, name) is not getattr(new, name)}
    changes: list[Change] = []
    for name, field in fields.items():
        if not changed_parts.isdisjoint(field.parts):
            value = field.value(new)
            if value != field.value(old):
                changes.append(Change("set", new.profile.id, name, value))
    return changes


# ----------------------------------------------------------------------------------------------- timeline


def timeline_changes(before: Timeline, after: Timeline, limit: int = WINDOW) -> list[Change]:
    """Return what changed in the last `limit` entries."""
    if before is after:
        return []
    appended = _appended_text(before, after, limit)
    return appended if appended is not None else _entry_changes(before, after, limit)


def _appended_text(before: Timeline, after: Timeline, limit: int) -> list[Change] | None:
    """Return the text that was appended, or None if anything else changed or a mirror may not hold the text's entry.

    This is the most frequent case by far: one delta of a streaming text.
    """
    is_same_otherwise = (
        before.entries is after.entries
        and before.unfinished == after.unfinished
        and before.decided is after.decided
        and before.streaming == after.streaming
        and len(before.open) == len(after.open)
    )
    if not is_same_otherwise:
        return None
    changes: list[Change] = []
    for old, new in zip(before.open, after.open, strict=True):
        piece = _appended_piece(old, new)
        entry = after.entries[new.position]
        is_in_window = new.position >= len(after.entries) - limit and not entry.gone
        if piece is None or entry.tool_step is not None or not is_in_window:
            return None
        if piece:
            field = "bashResult.output" if entry.bash_result is not None else "text"
            changes.append(Change("append", entry.id, field, piece))
    return changes


def _appended_piece(old: Growing, new: Growing) -> str | None:
    """Return what was appended to a growing text, or None if the two aren't the same text."""
    if old.position != new.position or old.message_id != new.message_id:
        return None
    if not old.rope and new.rope:
        return None  # The first piece replaces whatever text the entry had, so it can't be sent as an append.
    return _appended_to_rope(old.rope, new.rope)


def _appended_to_rope(old: Rope, new: Rope) -> str | None:
    """Return the text between two ropes, or None if the second isn't a continuation of the first."""
    # The strings that both ropes contain are the same objects, so the long common part isn't compared.
    shared = 0
    while shared < len(old) and shared < len(new) and old[shared] is new[shared]:
        shared += 1
    before, after = text_of(old[shared:]), text_of(new[shared:])
    return after[len(before) :] if after.startswith(before) else None


def _entry_changes(before: Timeline, after: Timeline, limit: int) -> list[Change]:
    """Compare two windows entry by entry."""
    old_entries = {entry.id: entry for entry in window(before, limit)}
    new_entries = {entry.id: entry for entry in window(after, limit)}
    changes = [Change("remove", entry_id) for entry_id in old_entries if entry_id not in new_entries]
    previous_id: str | None = None
    for entry_id, new in new_entries.items():
        old = old_entries.get(entry_id)
        if old is None:
            changes.append(Change("add", entry_id, value=new, after=previous_id))
        elif old is not new:
            changes += _changes_of_entry(old, new)
        previous_id = entry_id
    return changes


def _changes_of_entry(old: Entry, new: Entry) -> list[Change]:
    changes: list[Change] = []
    for name, json_name in zip(Entry.__struct_fields__, Entry.__struct_encode_fields__, strict=True):
        old_value, new_value = getattr(old, name), getattr(new, name)
        if old_value == new_value:
            continue
        if name == "text" and old.text and new.text.startswith(old.text):
            # Appends come before sets, as clients have always received them.
            changes.insert(0, Change("append", new.id, "text", new.text[len(old.text) :]))
        else:
            changes.append(Change("set", new.id, json_name, new_value))
    return changes
