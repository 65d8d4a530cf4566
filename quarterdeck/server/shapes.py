"""The shapes of the API that are not the kernel's own: views as one flat object, pages, lists."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from quarterdeck.kernel.session_list import Badge
from quarterdeck.kernel.summary import Details, Summary, view_values
from quarterdeck.kernel.timeline import Entry
from quarterdeck.kernel.view import View, Why


def _joined() -> dict[str, Any]:
    return {one.name: one.type for kind in (Summary, Details) for one in msgspec.structs.fields(kind)}


#: Contract section 2: the summary and what the view has besides, flat.
SessionView: type[Struct] = msgspec.defstruct(
    "SessionView", [(name, kind) for name, kind in _joined().items()], frozen=True, module=__name__
)


def session_view(view: View) -> Struct:
    """A session as `GET /sessions/ID` answers."""
    return SessionView(**view_values(view))


class SessionPage(Struct, frozen=True):
    """One page of the list."""

    sessions: tuple[Summary, ...]
    next_cursor: str | None
    badge: Badge


class TimelinePage(Struct, frozen=True):
    """A window of the conversation as it was after event `index`."""

    entries: tuple[Entry, ...]
    index: int
    streaming: bool


class Evidence(Struct, frozen=True):
    """Why every owner shows what it shows, after event `index`."""

    index: int
    why: tuple[Why, ...]


class Gap(Struct, frozen=True, rename={"from_": "from"}):
    """The reader asked for what comes after something that this log does not have; it goes on from `to`."""

    from_: int | str
    to: int | str


class EventPage(Struct, frozen=True, omit_defaults=True):
    """Events that are in the log, and where the next ones begin."""

    events: tuple[Any, ...]
    next: int | str
    gap: Gap | None = None
