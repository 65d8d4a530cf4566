"""What can be read: the conversation, the evidence, events, attention."""

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
_MOST = 1000


class TimelineQuery(Struct, frozen=True, kw_only=True):
    """`at` shows it as it was after that event; `before` is a place among all entries, to page backwards."""

    at: Index | None = None
    before: Index | None = None
    limit: Annotated[int, Meta(ge=1, le=_MOST)] = 200


@TABLE.add(
    "GET", "/sessions/{id}/timeline", "What was said and done", query=TimelineQuery, answer=TimelinePage, errors=(404,)
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
    "What was said since a time",
    query=MessagesQuery,
    answer=TimelinePage,
    errors=(404,),
)
async def messages(call: Call) -> TimelinePage:
    view = await _view(call, None)
    later = [entry for entry in window(view.timeline) if entry.at > call.query.since]
    return TimelinePage(tuple(later), view.index, view.timeline.streaming)


class AtQuery(Struct, frozen=True, kw_only=True):
    """`at` is the index of an event."""

    at: Index | None = None


@TABLE.add("GET", "/sessions/{id}/why", "The evidence for each state", query=AtQuery, answer=Evidence, errors=(404,))
async def evidence(call: Call) -> Evidence:
    view = call.session.view if call.query.at is None else await call.session.view_at(call.query.at)
    return Evidence(view.index, why(view))


class ChangesQuery(Struct, frozen=True, kw_only=True):
    """Since the session began, or since its last turn did."""

    scope: Scope = "session"


@TABLE.add(
    "GET",
    "/sessions/{id}/changes",
    "What changed in its repository",
    query=ChangesQuery,
    answer=Diff,
    errors=(404, 409),
)
async def changes(call: Call) -> Diff:
    return await call.session.changes(call.query.scope)


class Stats(Struct, frozen=True):
    """What a session used, as far as it is known."""

    usage: Ledger
    shown: UsageShown


@TABLE.add("GET", "/sessions/{id}/stats", "What it used", answer=Stats, errors=(404,))
async def stats(call: Call) -> Stats:
    ledger = call.session.view.state.usage
    return Stats(ledger, usage_shown(ledger))


class Needing(Struct, frozen=True):
    """The sessions that want a person, the most urgent first."""

    sessions: tuple[Summary, ...]


@TABLE.add("GET", "/attention", "Who waits for a person", answer=Needing)
async def attention(call: Call) -> Needing:
    return Needing(tuple(call.deck.attention()))
