"""The way of a text to the agent: queued → sending → taken, or failed, or of unknown outcome. One at a time, in order.

A text is *sending* in the log before a byte of it is written, so a crash leaves no text that might have been sent and
looks as if it was not. Whoever finds one `sending` with its process gone says `unknown`, and nobody sends it again but
a person.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from quarterdeck import events as ev
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Body
from quarterdeck.harness.driver import CannotDo
from quarterdeck.kernel.queue import Queue, Waiting
from quarterdeck.kernel.routing import STEER, is_held
from quarterdeck.kernel.state import State

if TYPE_CHECKING:
    from quarterdeck.deck.agents.connection import AgentConnection
    from quarterdeck.deck.session import Session

#: Written, or about to be; the agent has not said that it took the text.
ON_ITS_WAY = ("sending", "delivered")
NOT_READ = "the agent does not read what it is sent"
LOST = "the agent ended before it said that it had read this"


def next_text(state: State) -> Waiting | None:
    """The text that may go to the agent now. After a failure nothing goes by itself: a person tries again."""
    if state.lifecycle.value != "active" or state.phase.value == "error":
        return None
    waiting = [item for item in state.queue if item.receipt == "queued"]
    if state.turn.is_open or any(item.receipt == "sending" for item in state.queue):
        return next((item for item in waiting if item.kind == "steer" and _may_steer(state)), None)
    return waiting[0] if waiting else None


def _may_steer(state: State) -> bool:
    return state.turn.is_open and STEER in state.profile.capabilities and not is_held(state)


def cut_off(queue: Queue, reason: str = LOST) -> list[Body]:
    """What becomes of texts whose process is gone."""
    return [
        ev.DeliveryChanged(message_id=item.id, status="unknown", reason=reason)
        for item in queue
        if item.receipt in ON_ITS_WAY
    ]


def failed(queue: Queue, reason: str) -> list[Body]:
    """The text that a process was to be started for could not be sent."""
    first = next((item for item in queue if item.receipt == "queued"), None)
    return [] if first is None else [ev.DeliveryChanged(message_id=first.id, status="failed", reason=reason)]


class Delivery:
    """Of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._task: asyncio.Task[None] | None = None

    @property
    def is_under_way(self) -> bool:
        return self._task is not None

    def pump(self) -> None:
        """Sends the next text if one may go now; starts the agent if there is none."""
        session = self._session
        if self._task is not None or session.is_closing or next_text(session.state) is None:
            return
        if session.connection is None:
            session.launcher.want()
        elif session.connection.is_ready and not session.connection.is_doomed:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            if self._begins_elsewhere():
                await self._session.launcher.stop()
            else:
                await self._send_next()
        except QuarterdeckError:
            pass  # the store refuses: nothing was sent, and the text is still queued
        finally:
            self._task = None
        if self._session.writer.error is None:
            self.pump()

    def _begins_elsewhere(self) -> bool:
        """A new task that waited for the end of a turn: the agent that is up is in the conversation before."""
        item, launch = next_text(self._session.state), self._session.connection
        return item is not None and item.new_task and launch is not None and launch.begun_for != item.id

    async def _send_next(self) -> None:
        if not self._session.state.turn.is_open:
            await self._session.services.changes.before_turn(self._session)
        item = next_text(self._session.state)
        if item is not None and not self._begins_elsewhere():
            await self._send(item)

    async def _send(self, item: Waiting) -> None:
        session, launch = self._session, self._session.connection
        if launch is None or launch.is_ended or launch.is_doomed:
            return  # it went between our decision and now: the text still waits
        await session.writer.commit([ev.DeliveryChanged(message_id=item.id, status="sending")], "supervisor")
        if item.id not in {one.id for one in session.state.queue}:
            return
        if launch is not session.connection or launch.is_ended or launch.is_doomed:
            # nobody was there to read it, so it was not sent, whatever the end of the process made of it
            session.note(ev.DeliveryChanged(message_id=item.id, status="queued", reason="it was not sent"))
            return
        session.is_unwanted = False
        as_steering = item.kind == "steer" and session.state.turn.is_open
        problem = self._say(launch, item, as_steering)
        if problem:
            self._fail(item, problem)
        elif as_steering:
            session.note(ev.DeliveryChanged(message_id=item.id, status="delivered"))

    def _say(self, launch: AgentConnection, item: Waiting, as_steering: bool) -> str:
        """Writes the text; '' or what is in the way."""
        driver = launch.driver
        try:
            lines = driver.steer(item.text, item.id) if as_steering else driver.prompt(item.text, item.id, item.images)
        except CannotDo as error:
            return error.message
        return "" if launch.say(lines) else NOT_READ

    def _fail(self, item: Waiting, problem: str) -> None:
        """The text says so, and so does the session if it was at work for it: a spinner must not turn for nothing."""
        session = self._session
        bodies: list[Body] = [ev.DeliveryChanged(message_id=item.id, status="failed", reason=problem)]
        if not session.state.turn.is_open:
            bodies.append(ev.TurnFailed(kind="internal", message=problem))
        session.note(*bodies)
