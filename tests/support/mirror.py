"""Apply the changes of kernel/patch.py to a mirror of a timeline, as a client does."""

from __future__ import annotations

from typing import Any

import msgspec

from quarterdeck.kernel.timeline import Entry

#: The values of an entry's fields that its JSON omits.
DEFAULTS: dict[str, Any] = {
    name: msgspec.to_builtins(default)
    for name, default in zip(Entry.__struct_encode_fields__[3:], Entry.__struct_defaults__, strict=True)
}


def apply_changes(entries: list[dict[str, Any]], changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the timeline after these changes. Entries and changes are plain JSON."""
    mirror = [dict(entry) for entry in entries]
    for change in changes:
        _apply(mirror, change)
    return mirror


def _apply(mirror: list[dict[str, Any]], change: dict[str, Any]) -> None:
    positions = {entry["id"]: position for position, entry in enumerate(mirror)}
    if change["op"] == "add":
        after = change.get("after")
        mirror.insert(0 if after is None else positions[after] + 1, dict(change["value"]))
        return
    position = positions[change["id"]]
    if change["op"] == "remove":
        del mirror[position]
    elif change["op"] == "set":
        _set(mirror[position], change["field"], change["value"])
    else:
        _append(mirror[position], change["field"], change["value"])


def _set(entry: dict[str, Any], field: str, value: Any) -> None:
    if value == DEFAULTS.get(field, msgspec.UNSET):
        entry.pop(field, None)
    else:
        entry[field] = value


def _append(entry: dict[str, Any], field: str, piece: str) -> None:
    *path, last = field.split(".")
    for name in path:
        entry[name] = dict(entry[name])
        entry = entry[name]
    entry[last] = entry.get(last, "") + piece
