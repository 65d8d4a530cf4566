"""Routes that read a session: its conversation, the causes of its state, its changes and usage."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from quarterdeck.deck.git.diff import Diff, Scope
from quarterdeck.kernel.summary import Summary, UsageShown, usage_shown
from quarterdeck.kernel.timeline import window
from quarterdeck.kernel.usage import Ledger
from quarterdeck.kernel.view import View, why
from quarterdeck.server.route import Call, Index, Table
from quarterdeck.server.shapes import Evidence, TimelinePage

TABLE = Table()
_ENTRY_LIMIT = 1000


class TimelineQuery(Struct, frozen=True, kw_only=True):
    """`at` shows the timeline as it was after that event. `before` is a position among all entries, to page backwards."""

    at: Index | None = None
    before: Index | None = None
    limit: Annotated[int, Meta(ge=1, le=_ENTRY_LIMIT)] = 200


@TABLE.add(
    "GET", "/sessions/{id}/timeline", "Get the conversation", query=TimelineQuery, answer=TimelinePage, errors=(404,)
)
async def timeline(call: Call) -> TimelinePage:
    query: TimelineQuery = call.query
    view = await _view(call, query.at)
    entries = window(view.timeline, query.limit, query.before)
    return TimelinePage(tuple(entries), view.index, view.timeline.streaming)


async def _view(call: Call, at: int | None) -> View:
    if at is not None:
        return await call.session.view_at(at)
    return await call.session.whole_view()


class MessagesQuery(Struct, frozen=True, kw_only=True):
    """`since` is a time in milliseconds."""

    since: Index = 0


@TABLE.add(
    "GET",
    "/sessions/{id}/messages",
    "Get the conversation since a time",
    query=MessagesQuery,
    answer=TimelinePage,
    errors=(404,),
)
async def messages(call: Call) -> TimelinePage:
    view = await _view(call, None)
    entries = [entry for entry in window(view.timeline) if entry.at > call.query.since]
    return TimelinePage(tuple(entries), view.index, view.timeline.streaming)


class AtQuery(Struct, frozen=True, kw_only=True):
    """`at` is the index of an event."""

    at: Index | None = None


@TABLE.add("GET", "/sessions/{id}/why", "Get the cause of each state", query=AtQuery, answer=Evidence, errors=(404,))
async def evidence(call: Call) -> Evidence:
    view = call.session.view if call.query.at is None else await call.session.view_at(call.query.at)
    return Evidence(view.index, why(view))


class ChangesQuery(Struct, frozen=True, kw_only=True):
    """Compare with the beginning of the session, or of its last turn."""

    scope: Scope = "session"


@TABLE.add(
    "GET",
    "/sessions/{id}/changes",
    "Get the changes in the session's repository",
    query=ChangesQuery,
    answer=Diff,
    errors=(404, 409),
)
async def changes(call: Call) -> Diff:
    return await call.session.changes(call.query.scope)


class Stats(Struct, frozen=True):
    """What a session used, as far as its agent reports it."""

    usage: Ledger
    shown: UsageShown


@TABLE.add("GET", "/sessions/{id}/stats", "Get the session's usage", answer=Stats, errors=(404,))
async def stats(call: Call) -> Stats:
    ledger = call.session.view.state.usage
    return Stats(ledger, usage_shown(ledger))


class Needing(Struct, frozen=True):
    """The sessions that need a person, the most urgent first."""

    sessions: tuple[Summary, ...]


@TABLE.add("GET", "/attention", "List the sessions that need a person", answer=Needing)
async def attention(call: Call) -> Needing:
    return Needing(tuple(call.deck.attention()))
