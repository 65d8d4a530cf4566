"""The sessions that would be interrupted if the server ended now: at work, asking somebody, or with work left behind. An
agent on somebody's terminal is not: it goes on without us."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quarterdeck.cli.wire import Wire

_PAGE = 200


def is_busy(summary: dict[str, Any]) -> bool:
    """A turn that is over may have left a shell or a sub-agent: `background` is a count in a list, a list in a view."""
    return summary["owner"] == "deck" and bool(summary["flags"]["isActive"] or summary["background"])


def busy(wire: Wire) -> list[dict[str, Any]]:
    """Their summaries, newest first."""
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = wire.get("/sessions", status="active", limit=_PAGE, cursor=cursor)
        found += filter(is_busy, page["sessions"])
        cursor = page["next_cursor"]
        if not cursor:
            return found


def told(summary: dict[str, Any]) -> str:
    """One line of the list."""
    name = summary["name"] or summary["last_text"][:40] or "(no name)"
    behind = f", {summary['background']} in the background" if summary["background"] else ""
    return f"{summary['id'][:8]}  {summary['agent']:<8}  {summary['phase'].replace('_', ' ')}{behind}  {name}"


def until_settled(wire: Wire, say: Callable[[list[dict[str, Any]]], None]) -> None:
    """Returns when nothing is busy; `say` is given those that are, whenever it looks again."""
    while waiting := busy(wire):
        say(waiting)
        _until_settled(wire, waiting[0])


def _until_settled(wire: Wire, summary: dict[str, Any]) -> None:
    """Follows the session from where it was seen, and looks again after whatever may have ended its work."""
    path = f"/sessions/{summary['id']}"
    for event in wire.stream(f"{path}/events", since=summary["index"]):
        if not event.event.endswith(("_delta", "_output")) and not is_busy(wire.get(path)):
            return
