"""Deliver queued texts to the agent, one at a time and in order.

A text goes from `queued` to `sending` to taken, or it fails. It is `sending` in the log before a byte of it is written, so a
crash never leaves a text that was possibly sent but looks as if it wasn't. If its process exits while a text is `sending`,
the text becomes `unknown`, and only a person may send it again.
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

#: Receipts of texts that were written to the agent, or are about to be, and that it hasn't confirmed.
IN_TRANSIT = ("sending", "delivered")
NOT_READ = "the agent doesn't read its input"
PROCESS_EXITED = "the agent exited before it confirmed this text"


def next_text(state: State) -> Waiting | None:
    """Return the text that may be sent now, if any.

    While a turn is open, only steering texts may go, if the agent can be steered. After a failure no text is sent until a
    person retries.
    """
    if state.lifecycle.value != "active" or state.phase.value == "error":
        return None
    queued = [item for item in state.queue if item.receipt == "queued"]
    if state.turn.is_open or any(item.receipt == "sending" for item in state.queue):
        return next((item for item in queued if item.kind == "steer" and _may_steer(state)), None)
    return queued[0] if queued else None


def _may_steer(state: State) -> bool:
    return state.turn.is_open and STEER in state.profile.capabilities and not is_held(state)


def interrupt_texts(queue: Queue, reason: str = PROCESS_EXITED) -> list[Body]:
    """Return events that mark texts in transit as unknown, because their process is gone."""
    return [
        ev.DeliveryChanged(message_id=item.id, status="unknown", reason=reason)
        for item in queue
        if item.receipt in IN_TRANSIT
    ]


def fail_first_queued(queue: Queue, reason: str) -> list[Body]:
    """Return an event that marks the first queued text as failed, because its process didn't start."""
    first = next((item for item in queue if item.receipt == "queued"), None)
    return [] if first is None else [ev.DeliveryChanged(message_id=first.id, status="failed", reason=reason)]


class Delivery:
    """Delivers the queued texts of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._task: asyncio.Task[None] | None = None
        #: Interrupt the next turn as soon as it begins. The user aborted while its text was being sent, and an agent that
        #: hasn't begun the turn may ignore an interrupt.
        self.aborts_next_turn = False

    @property
    def is_sending(self) -> bool:
        return self._task is not None

    def pump(self) -> None:
        """Send the next text if one may go now. Start the agent if there is no process.

        Call this after everything that may have changed the answer: new texts, a finished turn, a ready or stopped process,
        a log that works again. It does nothing if nothing can be sent, so calling it too often is harmless.
        """
        session = self._session
        if self._task is not None or session.is_closing or next_text(session.state) is None:
            return
        if session.launcher.ready_connection is not None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        elif session.connection is None:
            session.launcher.request_start()

    async def _run(self) -> None:
        try:
            if self._needs_new_process():
                await self._session.launcher.stop()
            else:
                await self._send_next()
        except QuarterdeckError:
            pass  # The log refused, so nothing was sent and the text is still queued.
        finally:
            self._task = None
        # While the log refuses, don't try again in a loop. The session pumps when the log works again.
        if self._session.writer.error is None:
            self.pump()

    def _needs_new_process(self) -> bool:
        """Return whether the next text is a new task, which the running agent would read in its old conversation."""
        item, connection = next_text(self._session.state), self._session.connection
        return item is not None and item.new_task and connection is not None and connection.started_for != item.id

    async def _send_next(self) -> None:
        if not self._session.state.turn.is_open:
            await self._session.services.changes.before_turn(self._session)
        # The queue may have changed while the snapshot was taken.
        item = next_text(self._session.state)
        if item is not None and not self._needs_new_process():
            await self._send(item)

    async def _send(self, item: Waiting) -> None:
        session = self._session
        connection = session.launcher.ready_connection
        if connection is None:
            return  # The process exited since `pump`. The text stays queued.
        await session.writer.commit([ev.DeliveryChanged(message_id=item.id, status="sending")], "supervisor")
        if item.id not in {queued.id for queued in session.state.queue}:
            return  # An abort dropped the text while the commit was under way.
        if session.launcher.ready_connection is not connection:
            # The process exited before the text was written. Unlike what its exit recorded, the outcome is known.
            session.record(ev.DeliveryChanged(message_id=item.id, status="queued", reason="it wasn't sent"))
            return
        self.aborts_next_turn = False
        is_steering = item.kind == "steer" and session.state.turn.is_open
        problem = self._write(connection, item, is_steering)
        if problem:
            self._fail(item, problem)
        elif is_steering:
            session.record(ev.DeliveryChanged(message_id=item.id, status="delivered"))

    def _write(self, connection: AgentConnection, item: Waiting, is_steering: bool) -> str:
        """Write the text to the agent. Return '' or what went wrong."""
        driver = connection.driver
        try:
            lines = driver.steer(item.text, item.id) if is_steering else driver.prompt(item.text, item.id, item.images)
        except CannotDo as error:
            return error.message
        return "" if connection.send(lines) else NOT_READ

    def _fail(self, item: Waiting, problem: str) -> None:
        session = self._session
        bodies: list[Body] = [ev.DeliveryChanged(message_id=item.id, status="failed", reason=problem)]
        if not session.state.turn.is_open:
            # The session shows a spinner for this text. Without this event it would never stop.
            bodies.append(ev.TurnFailed(kind="internal", message=problem))
        session.record(*bodies)
