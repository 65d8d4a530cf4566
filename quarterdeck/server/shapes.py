"""Shapes of answers that aren't the kernel's own: a session's view as one flat object, and pages."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from quarterdeck.kernel.session_list import Badge
from quarterdeck.kernel.summary import Details, Summary, view_values
from quarterdeck.kernel.timeline import Entry
from quarterdeck.kernel.view import View, Why

#: Contract section 2: a view is the summary's fields and the details' fields in one object.
SessionView: type[Struct] = msgspec.defstruct(
    "SessionView",
    [(field.name, field.type) for kind in (Summary, Details) for field in msgspec.structs.fields(kind)],
    frozen=True,
    module=__name__,
)


def session_view(view: View) -> Struct:
    """Return a session as `GET /sessions/ID` answers it."""
    return SessionView(**view_values(view))


class SessionPage(Struct, frozen=True):
    """One page of the list of sessions."""

    sessions: tuple[Summary, ...]
    next_cursor: str | None
    badge: Badge


class TimelinePage(Struct, frozen=True):
    """A window of the conversation as of event `index`."""

    entries: tuple[Entry, ...]
    index: int
    streaming: bool


class Evidence(Struct, frozen=True):
    """The state of every owner as of event `index`, with its cause."""

    index: int
    why: tuple[Why, ...]


class Gap(Struct, frozen=True, rename={"from_": "from"}):
    """The client asked for events after `from`, which this log doesn't have. It continues at `to`."""

    from_: int | str
    to: int | str


class EventPage(Struct, frozen=True, omit_defaults=True):
    """Events of the log. `next` is the position after them."""

    events: tuple[Any, ...]
    next: int | str
    gap: Gap | None = None
