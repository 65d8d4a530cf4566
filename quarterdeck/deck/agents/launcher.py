"""Start and stop the agent process of one session, on demand.

The process has one state, which only the launcher changes:

                request_start()            agent reports ready
      NONE ───────────────────▶ STARTING ─────────────────────▶ READY
       ▲                          │   │                           │
       │ cancelled before spawn   │   │ stop(), start failed      │ stop()
       ├──────────────────────────┘   ▼                           │
       │                           STOPPING ◀─────────────────────┘
       │ process exited               │
       └──────────────────────────────┘      (a process that exits by itself also leads to NONE)

      any state ── retire() ──▶ RETIRED      (the deck closes; final)

- `NONE`: there is no process, and none is being started.
- `STARTING`: the session waits for a slot, or the process was spawned and isn't ready. Texts stay queued.
- `READY`: texts may be sent.
- `STOPPING`: the process is ending, or it's gone and its tasks are finishing. Nothing is sent. A command that begins a turn
  waits for the end first: otherwise the exit would look like the end of the new turn.
- `RETIRED`: no process is started again. One that is still running is ended by `stop`.

The nonce of a process is in the log before the process exists. So whenever the deck is killed, the next one finds every
process that was left behind. A failed start records why, and marks the text that it was made for as failed.
"""

from __future__ import annotations

import asyncio
import enum
import secrets
from typing import TYPE_CHECKING

from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.deck.agents.connection import AgentConnection
from quarterdeck.deck.delivery import fail_first_queued, interrupt_texts, next_text
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Body, Event
from quarterdeck.harness import registry
from quarterdeck.harness.driver import Start
from quarterdeck.harness.registry import Harness
from quarterdeck.kernel.queue import Waiting
from quarterdeck.kernel.routing import is_promised
from quarterdeck.kernel.state import State
from quarterdeck.log.base import read_pages
from quarterdeck.process.identity import launch_nonce, start_time

if TYPE_CHECKING:
    from quarterdeck.deck.session import Session


class ProcessState(enum.Enum):
    """State of a session's agent process. See the module docstring for the transitions."""

    NONE = "none"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    RETIRED = "retired"


class StartFailed(QuarterdeckError):
    """The agent process didn't start, or didn't get ready in time."""

    code = "start_failed"

    def __init__(self, agent: str, why: str) -> None:
        super().__init__(
            f"{agent} couldn't be started: {why}",
            "Check that it's installed and logged in (see `GET /agents`), then retry.",
        )


class Launcher:
    """Owns the agent process of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._state = ProcessState.NONE
        #: The connection to the process that was spawned, or is being spawned, if any. Only the launcher sets it.
        self.connection: AgentConnection | None = None
        self._start_task: asyncio.Task[None] | None = None
        self._stop_task: asyncio.Task[None] | None = None
        #: A process was requested even if no text is queued, by a command that resumes the session.
        self._is_requested = False
        #: Whether the last turn, which a resumed agent loads, was finished.
        self._was_turn_finished = True

    @property
    def state(self) -> ProcessState:
        return self._state

    @property
    def ready_connection(self) -> AgentConnection | None:
        """The connection if texts may be sent to it now."""
        return self.connection if self._state is ProcessState.READY else None

    @property
    def has_work(self) -> bool:
        """Whether a process exists, or is being started or stopped."""
        return self.connection is not None or self._start_task is not None or self._stop_task is not None

    # --- requests

    def request_start(self, *, without_text: bool = False, was_turn_finished: bool = True) -> None:
        """Start a process for the next queued text, or `without_text` for a session that is resumed.

        `was_turn_finished` says whether the last turn was, which the agent then loads.
        """
        if without_text:
            self._is_requested = True
            self._was_turn_finished = was_turn_finished
        if self._state is ProcessState.NONE:
            self._state = ProcessState.STARTING
            self._start_task = asyncio.get_running_loop().create_task(self._run_start())

    def cancel_request(self) -> None:
        """Cancel a start that is no longer needed and hasn't spawned a process yet."""
        self._is_requested = False
        if self._start_task is not None and self.connection is None and not self._is_needed():
            self._start_task.cancel()

    def retire(self) -> None:
        """Start no process from now on. The deck is closing."""
        self._state = ProcessState.RETIRED

    async def stop(self) -> None:
        """End the process, if there is one, and everything that it started. Return when they are gone."""
        self._is_requested = False
        if self._start_task is not None and self.connection is None:
            # Nothing was spawned yet, so the task can be cancelled at any point.
            self._start_task.cancel()
            await asyncio.wait([self._start_task])
        connection = self.connection
        if connection is None:
            return
        self._move_to(ProcessState.STOPPING)
        if self._stop_task is None:
            grace = self._session.services.settings.stop_grace
            self._stop_task = asyncio.get_running_loop().create_task(connection.stop(grace))
            self._stop_task.add_done_callback(self._on_stop_finished)
        # `wait` doesn't cancel the task if this caller is cancelled: others may wait for it too.
        await asyncio.wait([self._stop_task])

    def _on_stop_finished(self, _: asyncio.Task[None]) -> None:
        self._stop_task = None
        # If the kernel can't end the process, the connection is still there and the state stays STOPPING.
        self._update_state()
        self._session.delivery.pump()

    # --- state

    def _move_to(self, state: ProcessState) -> None:
        if self._state is not ProcessState.RETIRED:
            self._state = state

    def _update_state(self) -> None:
        """Return to NONE once there is no process and no task that starts or stops one."""
        if self.connection is None:
            is_finishing = self._start_task is not None or self._stop_task is not None
            self._move_to(ProcessState.STOPPING if is_finishing else ProcessState.NONE)

    def _is_needed(self) -> bool:
        session = self._session
        if session.state.lifecycle.value != "active" or session.is_closing:
            return False
        return self._is_requested or next_text(session.state) is not None

    # --- starting

    async def _run_start(self) -> None:
        session, services = self._session, self._session.services
        try:
            await services.slots.acquire(session.id, self._report_waiting)
            # The text may have been dropped, or the session archived, while it waited for a slot.
            if self._is_needed():
                try:
                    await self._start_process()
                except QuarterdeckError as error:
                    await self._fail(error.message)
        finally:
            self._start_task = None
            if self.connection is None:
                self._release_resources()
            self._update_state()
        # The text that this process was started for can be sent now. Or it was dropped, and another one needs a process.
        session.delivery.pump()
        services.supervisor.schedule_eviction()

    def _report_waiting(self) -> None:
        limit = self._session.services.settings.running_limit
        self._session.record(ev.Notice(text=f"Queued: all {limit} agent slots are busy.", source="deck"))

    async def _start_process(self) -> None:
        session, services = self._session, self._session.services
        profile = session.state.profile
        text = next_text(session.state)
        harness = registry.harness(profile.agent)
        start = await self._prepare_start(harness, text)
        connection = AgentConnection(
            session,
            harness,
            start,
            nonce=launch_nonce(services.home_id, secrets.token_hex(8)),
            started_for=text.id if text is not None else "",
            recorder=services.recordings.recorder_for(session.id),
        )
        services.conversations.claim(start.native_session_id, session.id)
        # The translator starts from the whole timeline, and rules are read with it.
        await session.load()
        await services.changes.before_start(session)
        environment = await services.environments.for_session(session.id)
        if environment.notice:
            session.record(ev.Notice(text=environment.notice, level="warning", source="deck"))
        try:
            await session.writer.commit([ev.ProcessStarting(nonce=connection.nonce)], "supervisor")
        except asyncio.CancelledError:
            # The commit isn't undone by the cancellation. Record that the announced process never existed.
            session.record(ev.ProcessExited(asked=True))
            raise
        session.stop_observing()
        # From here on the start can't be cancelled, only stopped.
        self.connection = connection
        try:
            connection.spawn(environment.variables)
        except OSError as error:
            raise StartFailed(profile.agent, f"{error.strerror}: {error.filename}") from None
        timeout = services.settings.start_timeout
        try:
            await asyncio.wait_for(connection.ready_or_exited.wait(), timeout)
        except TimeoutError:
            raise StartFailed(profile.agent, f"no answer within {timeout:g} seconds") from None
        if self._state is ProcessState.READY:
            self._on_ready()

    async def _prepare_start(self, harness: Harness, text: Waiting | None) -> Start:
        profile = self._session.state.profile
        native_id = "" if _begins_new_conversation(self._session.state, text) else profile.native_session_id
        return Start(
            cwd=profile.cwd,
            model=profile.model,
            mode=profile.mode,
            native_session_id=native_id,
            arguments=profile.arguments,
            history=await self._read_history(harness.history) if native_id else (),
        )

    async def _read_history(self, types: frozenset[str]) -> tuple[Event, ...]:
        """Read the events that an agent without a memory of its own has to be given."""
        if not types:
            return ()
        session = self._session
        await session.writer.flush()
        events: list[Event] = []
        async for page in read_pages(session.services.log, session.id, types=types):
            events += page
        return tuple(events)

    def _on_ready(self) -> None:
        session, self._is_requested = self._session, False
        has_text = any(item.receipt in ("queued", "sending") for item in session.state.queue)
        if is_promised(session.state) and not has_text:
            # No turn will begin, so nothing else would end the phase in which the session shows a spinner.
            session.record(ev.TurnRestored(finished=self._was_turn_finished))

    async def _fail(self, reason: str) -> None:
        """Record why the start failed, mark its text as failed, and end the process if there is one."""
        session, connection = self._session, self.connection
        self._is_requested = False
        session.record(ev.ProcessError(message=reason), *fail_first_queued(session.state.queue, reason))
        if connection is not None:
            await self.stop()
            # The process may never have been spawned, so there may be no exit that releases the connection.
            self._release(connection)

    # --- events of the process

    def filter_event(self, connection: AgentConnection, body: Body) -> tuple[Body, ...]:
        """Return what to record for an event about the process that the translator reported."""
        if isinstance(body, ev.ProcessStarting) and connection.pid is not None:
            return (replace(body, pid=connection.pid, started_at=start_time(connection.pid), nonce=connection.nonce),)
        if isinstance(body, ev.ProcessExited) and not connection.was_ready and not body.asked:
            return (ev.ProcessError(message=_describe_early_exit(connection, body)),)
        if isinstance(body, ev.AgentReady) and not body.agent_path:
            try:
                self._session.services.conversations.claim(body.native_session_id, self._session.id)
            except QuarterdeckError as error:
                # The agent opened a conversation that another session is in. End it before it gets a text.
                self._move_to(ProcessState.STOPPING)
                self._session.run_in_background(self._fail(error.message))
                return ()
            if self._state is ProcessState.STARTING:
                self._state = ProcessState.READY
        return (body,)

    def on_exited(self, connection: AgentConnection) -> None:
        """Record what became of the texts on their way to a process that exited, and release its slot."""
        if connection is not self.connection:
            return
        session = self._session
        lost = interrupt_texts(session.state.queue)
        if self._state is ProcessState.STARTING:
            lost += fail_first_queued(session.state.queue, "the agent didn't start")
        if lost:
            session.record(*lost)
        self._release(connection)

    def _release(self, connection: AgentConnection) -> None:
        if self.connection is connection:
            self.connection = None
            self._release_resources()
            self._update_state()
            self._session.services.supervisor.schedule_eviction()

    def _release_resources(self) -> None:
        services, session_id = self._session.services, self._session.id
        services.conversations.release(session_id)
        services.slots.release(session_id)


def _begins_new_conversation(state: State, text: Waiting | None) -> bool:
    # A new task is a new conversation, whatever the session shows in the meantime.
    return state.base_phase.value == "creating" or (text is not None and text.new_task)


def _describe_early_exit(connection: AgentConnection, body: ev.ProcessExited) -> str:
    how = f"code {body.code}" if body.code is not None else body.signal or "an unknown status"
    words = " / ".join(connection.process.last_words[-3:]) if connection.process is not None else ""
    return f"the agent exited with {how} before it was ready" + (f": {words}" if words else "")
