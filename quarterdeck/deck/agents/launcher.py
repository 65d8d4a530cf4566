"""How the agent process of a session comes up and goes: started on demand, once, with a place, a limit in time, a name.

The nonce of a launch is in the log before the process exists, so a crash at any moment leaves nothing that the next
start would not find. A start that fails says why, and the text that it was made for says so too.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.deck.agents.connection import AgentConnection
from quarterdeck.deck.delivery import cut_off, failed, next_text
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Body, Event
from quarterdeck.harness.driver import Start
from quarterdeck.kernel.queue import Waiting
from quarterdeck.kernel.routing import is_promised
from quarterdeck.kernel.state import State
from quarterdeck.log.base import PAGE
from quarterdeck.process.identity import launch_nonce, start_time

if TYPE_CHECKING:
    from quarterdeck.deck.session import Session


class Launcher:
    """Of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._task: asyncio.Task[None] | None = None
        self._stop: asyncio.Task[None] | None = None
        self._is_wanted = False
        self._finished = True
        #: The deck closes: no process is started here any more, whoever still waits for one.
        self.is_retired = False

    @property
    def is_under_way(self) -> bool:
        return self._task is not None or self._stop is not None

    @property
    def is_stopping(self) -> bool:
        return self._stop is not None

    def want(self, *, anyway: bool = False, finished: bool = True) -> None:
        """A process is needed: for the next text, or `anyway`. `finished`: whether the last turn, which is then read
        back, was."""
        self._is_wanted = self._is_wanted or anyway
        self._finished = finished if anyway else self._finished
        if self._task is None and self._stop is None and self._session.connection is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def is_needed(self) -> bool:
        session = self._session
        is_active = session.state.lifecycle.value == "active" and not session.is_closing
        return is_active and not self.is_retired and (self._is_wanted or next_text(session.state) is not None)

    def unwanted(self) -> None:
        """What a start waited for is gone: it waits no longer."""
        self._is_wanted = False
        if self._task is not None and self._session.connection is None and not self.is_needed():
            self._task.cancel()

    async def stop(self) -> None:
        """Ends the process, if there is one, and everything of it. Returns when it is gone."""
        self._is_wanted = False
        if self._task is not None and self._session.connection is None:
            self._task.cancel()  # nothing was spawned yet
            await asyncio.wait([self._task])
        launch = self._session.connection
        if launch is None:
            return
        if self._stop is None:
            self._stop = asyncio.get_running_loop().create_task(launch.stop(self._session.services.settings.stop_grace))
            self._stop.add_done_callback(self._stopped)
        await asyncio.wait([self._stop])

    def _stopped(self, _: asyncio.Task[None]) -> None:
        self._stop = None
        self._session.delivery.pump()

    # --- up

    async def _run(self) -> None:
        session = self._session
        try:
            await session.services.slots.take(session.id, self._wait_visibly)
            if not self.is_needed():
                session.services.slots.give_back(session.id)
                return
            try:
                await self._bring_up()
            except QuarterdeckError as error:
                await self._fail(error.message)
        finally:
            self._task = None
            if session.connection is None:
                self._give_back()
        session.delivery.pump()
        session.services.at_rest()

    def _wait_visibly(self) -> None:
        limit = self._session.services.settings.running_limit
        self._session.note(
            ev.Notice(text=f"Waits for a free place: {limit} agents run already, each at work", source="deck")
        )

    async def _bring_up(self) -> None:
        session, house = self._session, self._session.services
        profile = session.state.profile
        harness = house.harness_of(profile.agent)
        first = next_text(session.state)
        native = "" if _begins_anew(session.state, first) else profile.native_session_id
        start = Start(
            cwd=profile.cwd,
            model=profile.model,
            mode=profile.mode,
            native_session_id=native,
            arguments=profile.arguments,
            history=await self._history(harness.history) if native else (),
        )
        nonce = launch_nonce(house.home_id, secrets.token_hex(8))
        launch = AgentConnection(harness, start, nonce, session.hear, house.clock.monotonic)
        launch.begun_for = first.id if first is not None else ""
        launch.watcher = house.trace(session.id)
        launch.after_durable = session.writer.after_durable
        self._own(native)
        await session.load()
        await house.changes.before_start(session)
        environment = await house.environment_of(session.id)
        if environment.notice:
            session.note(ev.Notice(text=environment.notice, level="warning", source="deck"))
        try:
            await session.writer.commit([ev.ProcessStarting(nonce=nonce)], "supervisor")
        except asyncio.CancelledError:
            session.note(ev.ProcessExited(asked=True))  # it was announced, and nothing came of it
            raise
        session.unobserve()
        session.connection = launch
        try:
            await launch.begin(environment.variables, session.view)
        except OSError as error:  # the folder or the program is gone
            raise StartFailed(profile.agent, f"{error.strerror}: {error.filename}") from None
        try:
            await asyncio.wait_for(launch.decided.wait(), house.settings.start_timeout)
        except TimeoutError:
            seconds = house.settings.start_timeout
            raise StartFailed(profile.agent, f"it did not answer within {seconds:g} seconds") from None
        if launch.is_ready and not launch.is_ended and not launch.is_doomed:
            self._is_up()

    async def _history(self, types: frozenset[str]) -> tuple[Event, ...]:
        """What an agent that keeps no memory of its own has to be told."""
        session, found = self._session, list[Event]()
        if not types:
            return ()
        await session.writer.flush()
        while page := await session.services.log.read(session.id, found[-1].index if found else 0, PAGE, types):
            found += page
        return tuple(found)

    def _is_up(self) -> None:
        """Without a text to send, what was loaded is what there is; a spinner must not turn for it."""
        session, self._is_wanted = self._session, False
        has_text = any(item.receipt in ("queued", "sending") for item in session.state.queue)
        if is_promised(session.state) and not has_text:
            session.note(ev.TurnRestored(finished=self._finished))

    async def _fail(self, reason: str) -> None:
        """The start failed: the log says why, the text is marked, and whatever came up is ended."""
        session, launch = self._session, self._session.connection
        self._is_wanted = False
        session.note(ev.ProcessError(message=reason), *failed(session.state.queue, reason))
        if launch is not None:
            await self.stop()  # whoever begins a turn now waits for its end
            self._let_go(launch)

    # --- down

    def told(self, launch: AgentConnection, body: Body) -> tuple[Body, ...]:
        """Words of the translator that concern the process."""
        if isinstance(body, ev.ProcessStarting) and launch.pid is not None:
            return (replace(body, pid=launch.pid, started_at=start_time(launch.pid), nonce=launch.nonce),)
        if isinstance(body, ev.ProcessExited) and not launch.is_ready and not body.asked:
            return (ev.ProcessError(message=_early_end(launch, body)),)
        if isinstance(body, ev.AgentReady) and not body.agent_path and body.native_session_id:
            try:
                self._own(body.native_session_id)
            except QuarterdeckError as error:
                launch.is_doomed = True
                self._session.later(self._fail(error.message))
                return ()
        return (body,)

    def ended(self, launch: AgentConnection) -> None:
        """The process is gone. What was on its way to it may or may not have been read."""
        session = self._session
        queue = session.state.queue
        lost = cut_off(queue)
        if not launch.is_ready and not launch.is_doomed:
            lost += failed(queue, "the agent did not start")
        if lost:
            session.note(*lost)
        self._let_go(launch)

    def _let_go(self, launch: AgentConnection) -> None:
        session = self._session
        if session.connection is launch:
            session.connection = None
            self._give_back()
            session.services.at_rest()

    def _give_back(self) -> None:
        """The place and the conversations are free for others."""
        house, name = self._session.services, self._session.id
        for native in [native for native, owner in house.owners.items() if owner == name]:
            del house.owners[native]
        house.slots.give_back(name)

    def _own(self, native_session_id: str) -> None:
        """Two processes in one conversation would each lose what the other writes."""
        owners, name = self._session.services.owners, self._session.id
        if native_session_id and owners.setdefault(native_session_id, name) != name:
            raise OwnedElsewhere(native_session_id, owners[native_session_id])


def _begins_anew(state: State, text: Waiting | None) -> bool:
    """A new task is a new conversation, whatever the session shows meanwhile."""
    return state.base_phase.value == "creating" or (text is not None and text.new_task)


def _early_end(launch: AgentConnection, body: ev.ProcessExited) -> str:
    how = f"code {body.code}" if body.code is not None else body.signal or "an unknown exit"
    words = " / ".join(launch.process.last_words[-3:]) if launch.process is not None else ""
    return f"the agent ended with {how} before it was ready" + (f": {words}" if words else "")


class StartFailed(QuarterdeckError):
    """The agent's process did not come up."""

    code = "start_failed"

    def __init__(self, agent: str, why: str) -> None:
        super().__init__(
            f"{agent} could not be started: {why}",
            "See that it is installed and logged in (`GET /agents` tells); then retry.",
        )


class OwnedElsewhere(QuarterdeckError):
    """Another session has a process for the same conversation of the agent."""

    code = "owned_elsewhere"

    def __init__(self, native_session_id: str, owner: str) -> None:
        super().__init__(
            f"conversation {native_session_id} is open in session {owner}", f"Use session {owner}, or end it first."
        )
