"""How a turn is stopped: the agent is told, and ended if it does not listen."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from quarterdeck import events as ev
from quarterdeck.harness.driver import Decision, KillTools, Lines
from quarterdeck.kernel.gate import Gate

if TYPE_CHECKING:
    from quarterdeck.deck.session import Session

CANCELLED = Decision(status="cancelled", stops=True, resumes=False)


def interrupt(session: Session, gates: Sequence[Gate] = (), kill_tools: KillTools = "killable") -> None:
    """What was asked is answered as cancelled, then the turn is interrupted. An agent that does not react is ended."""
    launch = session.connection
    if launch is None:
        return
    lines: Lines = []
    for gate in gates:
        lines += launch.driver.answer(gate, CANCELLED)
    launch.say([*lines, *launch.driver.interrupt(kill_tools)])
    turn = session.state.turn.id
    loop = asyncio.get_running_loop()
    loop.call_later(session.services.settings.stop_grace, _insist, session, launch, turn)


def hold(session: Session, decision: Decision) -> None:
    """A turn that is not to go on by this decision: an agent of ours that would all the same is interrupted."""
    if decision.resumes or session.connection is None or not session.state.turn.is_open:
        return
    if not session.connection.driver.capabilities.holds:
        interrupt(session)


def _insist(session: Session, launch: object, turn: str) -> None:
    if session.connection is launch and turn and session.state.turn.id == turn:
        session.note(ev.Notice(text="The agent did not stop, so its process is ended", level="warning", source="deck"))
        session.later(session.launcher.stop())
