"""Test a kill in the middle of a reply: the newest stored events are deltas, and their cursors must not be reused."""

from __future__ import annotations

import asyncio
from pathlib import Path

from quarterdeck import events as ev
from quarterdeck.events import Body, Event
from quarterdeck.kernel.view import View, fold
from quarterdeck.log.base import Append
from quarterdeck.log.rows import catalogue_row, encode_snapshot
from quarterdeck.log.sqlite.store import SqliteLog


async def appended(log: SqliteLog, view: View, fence: str, *bodies: Body) -> tuple[View, str]:
    events: list[Event] = []
    for body in bodies:
        events.append(Event("s1", view.index + 1, 1, "stream", body))
        view = fold(view, events[-1])
    unit = Append(
        session_id="s1",
        events=tuple(events),
        fence=fence,
        row=catalogue_row(view.state),
        snapshot=encode_snapshot(view.state),
    )
    return view, (await log.append(unit)).fence


def test_cursors_rise_over_a_restart_in_the_middle_of_a_text(tmp_path: Path) -> None:
    async def run() -> list[str]:
        log = await SqliteLog.open(tmp_path / "x.db")
        start = ev.MessageStart(message_id="m1")
        view, fence = await appended(log, View(), "", ev.SessionOpened(agent="test"), start)
        deltas = [ev.MessageDelta(message_id="m1", delta=f"{number} ") for number in range(5)]
        view, _ = await appended(log, view, fence, *deltas)
        await log.close()
        log = await SqliteLog.open(tmp_path / "x.db")
        stored = await log.session("s1")
        await appended(log, view, stored.fence, ev.SessionSuspended(), ev.SessionResumed(), ev.SessionSuspended())
        found = await log.read_all()
        await log.close()
        assert [one.index for one in found] == list(range(1, 11))
        return [one.cursor for one in found]

    cursors = asyncio.run(run())
    assert cursors == sorted(set(cursors))
