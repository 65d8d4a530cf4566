"""Wrap methods of the deck with named points at which a process can be killed.

The product contains none of this, and nothing is installed unless a point is chosen.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

from quarterdeck.deck import deck
from quarterdeck.deck.agents import process
from quarterdeck.deck.agents.connection import AgentConnection
from quarterdeck.deck.agents.launcher import Launcher
from quarterdeck.deck.supervisor import Supervisor
from quarterdeck.log.sqlite.connection import StoreConnection
from quarterdeck.log.sqlite.store import SqliteLog
from quarterdeck.log.sqlite.writer import StoreWriter
from quarterdeck.log.tail import Feed
from tests.crash.disk import Disk

#: Points that are reached during normal work.
AT_WORK = (
    "before_append",
    "in_transaction",
    "wal_torn",
    "wal_written",
    "wal_synced",
    "committed",
    "published",
    "before_spawn",
    "after_spawn",
    "before_ready",
    "approval_open",
    "question_open",
    "streaming",
    "before_sending",
    "after_sending",
    "before_answering",
)
#: Points that are reached while the deck closes.
AT_CLOSE = ("closing", "closing_suspended", "closing_process", "closing_log")
#: Points that are reached while the deck opens a home that another deck left in the middle of work.
AT_REPAIR = ("leftovers_ended", "before_repair", "repair_in_transaction", "repair_committed", "repaired")
#: Points that are reached while the deck opens a home of an older release.
AT_MIGRATION = ("migrating", "migrated")

_WAL = ("wal_torn", "wal_written", "wal_synced")
_OPENINGS = {"approval_required": "approval_open", "ask_user": "question_open", "message_delta": "streaming"}


#: References to file systems: SQLite unregisters one when Python collects its object.
_KEPT: list[Disk] = []


class Trigger:
    """Kill the victim when the point is reached for the n-th time."""

    def __init__(self, point: str, hit: int, victim: str) -> None:
        self.point = point
        self._left = hit
        self._victim = victim

    def reach(self, name: str, last: Callable[[], None] = lambda: None) -> None:
        if name != self.point:
            return
        self._left -= 1
        if self._left == 0:
            last()
            os.write(1, json.dumps({"point": name}).encode() + b"\n")
            if self._victim in ("keeper", "both"):
                os.kill(os.getppid(), signal.SIGKILL)
            if self._victim in ("deck", "both"):
                os.kill(os.getpid(), signal.SIGKILL)
                # Stop this thread here, because the signal may arrive a moment later.
                signal.pause()


def install(trigger: Trigger) -> None:
    """Wrap the methods that lead to the points."""
    if not trigger.point:
        return
    if trigger.point in _WAL:
        _KEPT.append(Disk(trigger.reach))
    _wrap_log(trigger)
    _wrap_agents(trigger)
    _wrap_deck(trigger)


def _before(owner: Any, name: str, reach: Callable[..., None]) -> None:
    inner = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        reach(*args)
        return inner(*args, **kwargs)

    setattr(owner, name, wrapped)


def _after(owner: Any, name: str, reach: Callable[..., None]) -> None:
    inner = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = inner(*args, **kwargs)
        reach(*args)
        return result

    setattr(owner, name, wrapped)


def _after_awaited(owner: Any, name: str, reach: Callable[[], None]) -> None:
    inner = getattr(owner, name)

    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = await inner(*args, **kwargs)
        reach()
        return result

    setattr(owner, name, wrapped)


# --- the log


def _wrap_log(trigger: Trigger) -> None:
    reach = trigger.reach
    repairs = _Repairs()

    def in_transaction(*_: Any) -> None:
        reach("in_transaction")
        if repairs.under_way:
            reach("repair_in_transaction")

    def committed(*_: Any) -> None:
        reach("committed")
        if repairs.under_way:
            reach("repair_committed")

    def opened(_: Any, events: Sequence[Any]) -> None:
        reach("published")
        for event in events:
            reach(_OPENINGS.get(event.type, ""))

    def migrating(_: Any, sql: str, *__: Any) -> None:
        if sql.startswith("PRAGMA user_version ="):
            reach("migrating")

    _before(SqliteLog, "append", lambda *_: reach("before_append"))
    _after(StoreWriter, "_write", in_transaction)
    _after(StoreWriter, "commit", committed)
    _after(Feed, "publish", opened)
    _before(StoreConnection, "execute", migrating)
    _after(StoreConnection, "migrate", lambda *_: reach("migrated"))
    _before(SqliteLog, "close", lambda *_: reach("closing_log"))
    _wrap_repair(trigger, repairs)


class _Repairs:
    under_way = False


def _wrap_repair(trigger: Trigger, repairs: _Repairs) -> None:
    inner = Supervisor.repair

    async def repair(supervisor: Supervisor, sessions: Any) -> None:
        trigger.reach("before_repair")
        repairs.under_way = True
        await inner(supervisor, sessions)
        repairs.under_way = False
        trigger.reach("repaired")

    Supervisor.repair = repair  # type: ignore[method-assign]
    _after(deck, "end_leftovers_of_home", lambda *_: trigger.reach("leftovers_ended"))


# --- the agents


def _wrap_agents(trigger: Trigger) -> None:
    reach = trigger.reach

    def ops(lines: Any) -> set[str]:
        return {line.get("op", "") for line in lines if isinstance(line, dict)}

    def saying(_: AgentConnection, lines: Any) -> None:
        if ops(lines) & {"prompt", "steer"}:
            reach("before_sending")
        if "answer" in ops(lines):
            reach("before_answering")

    def said(_: AgentConnection, lines: Any) -> None:
        if ops(lines) & {"prompt", "steer"}:
            reach("after_sending")

    _before(AgentConnection, "spawn", lambda *_: reach("before_spawn"))
    _after(process, "_spawn", lambda *_: reach("after_spawn"))
    _after(AgentConnection, "spawn", lambda *_: reach("before_ready"))
    _before(AgentConnection, "send", saying)
    _after(AgentConnection, "send", said)


# --- closing


def _wrap_deck(trigger: Trigger) -> None:
    reach = trigger.reach

    def stopping(launcher: Launcher) -> None:
        if launcher._session.is_closing:
            reach("closing_suspended")

    _before(deck.Deck, "close", lambda *_: reach("closing"))
    _before(Launcher, "stop", stopping)
    _before(process.AgentProcess, "stop", lambda *_: reach("closing_process"))
