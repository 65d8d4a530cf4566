"""Checks that several commands share.

A command is checked against the state in the same step in which its events are written, so of two commands that arrive at
once the second is checked against what the first did. Nothing is sent to an agent before it is durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quarterdeck.deck.agents.launcher import ProcessState
from quarterdeck.errors import NotAllowed
from quarterdeck.harness import registry
from quarterdeck.kernel import commands as cmd

if TYPE_CHECKING:
    from quarterdeck.deck.session import Session


def check_allowed(session: Session, command: cmd.Command) -> None:
    """Raise unless the session's state allows the command now.

    Raises:
        NotAllowed: the state doesn't allow it, or the deck is closing.
    """
    if session.launcher.state is ProcessState.RETIRED:
        # A command that waited until the deck closes must not wake the session again.
        raise refuse(session, command, "the deck is closing")
    try:
        cmd.check(session.state, command, session.services.settings.steering_limit)
    except NotAllowed as error:
        raise error.without(session.unsupported_commands) from None


async def check_before_turn(session: Session, command: cmd.Command) -> None:
    """Check a command that begins a turn. Wait for a process that is being stopped.

    Otherwise the exit of that process would look like the end of the new turn.

    Raises:
        NotAllowed: the state doesn't allow it, before or after the wait.
    """
    check_allowed(session, command)
    if session.launcher.state is ProcessState.STOPPING:
        await session.launcher.stop()
        check_allowed(session, command)


def check_reachable(session: Session) -> None:
    """Check that the agent is running or can be started. An agent that is only observed would never read a text.

    Raises:
        QuarterdeckError: the deck can't start this agent.
    """
    if session.connection is None:
        registry.harness(session.state.profile.agent)


def check_resumable(session: Session, command: cmd.Command) -> None:
    """Check that the agent can resume this session's conversation.

    An agent that was never ready has no conversation yet. It's started instead of resumed, which every agent can do.

    Raises:
        NotAllowed: nothing is stored to resume from, or the agent can't resume.
    """
    profile = session.state.profile
    if profile.never_ready:
        return
    if not profile.native_session_id:
        raise refuse(session, command, "nothing is stored to resume the session from")
    if not session.capabilities.resume:
        raise refuse(session, command, f"{profile.agent} can't resume")


def refuse(session: Session, command: cmd.Command, why: str) -> NotAllowed:
    """Build the error for a command that the state doesn't allow, for this reason."""
    state = session.state
    allowed = cmd.allowed(state, session.services.settings.steering_limit)
    error = NotAllowed(command.command_name, f"the session is {state.phase.value}", allowed, why)
    return error.without(session.unsupported_commands)
