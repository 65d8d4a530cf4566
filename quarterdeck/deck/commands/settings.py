"""Commands that change a session's settings, or tell its running agent to do something next to the turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import uuid4

from quarterdeck import events as ev
from quarterdeck.deck.commands.base import check_allowed, check_reachable, refuse
from quarterdeck.deck.validation import InvalidInput
from quarterdeck.events import Body
from quarterdeck.harness.driver import CannotDo, Driver, Lines
from quarterdeck.kernel import commands as cmd
from quarterdeck.kernel.command_results import Done

if TYPE_CHECKING:
    from quarterdeck.deck.session import Session


async def rename(session: Session, command: cmd.Rename) -> Done:
    check_allowed(session, command)
    return await session.commit(command, [ev.SessionRenamed(name=command.name.strip())], Done())


async def mark(session: Session, command: cmd.Mark) -> Done:
    """Pin or snooze the session, or set how far a person has read."""
    # A person can't have read events that don't exist yet. Those must show as unread when they come.
    read_index = None if command.read_index is None else min(command.read_index, session.view.index)
    body = ev.SessionMarked(pinned=command.pinned, snoozed_until=command.snoozed_until, read_index=read_index)
    return await session.commit(command, [body], Done())


async def switch_model(session: Session, command: cmd.SwitchModel) -> Done:
    check_allowed(session, command)
    if not command.model.strip():
        raise InvalidInput("model", "is empty", "Name a model of the agent.")
    check_reachable(session)
    body = ev.SettingChanged(model=command.model)
    return await _change_setting(session, command, body, lambda driver: driver.switch_model(command.model))


async def switch_mode(session: Session, command: cmd.SwitchMode) -> Done:
    check_allowed(session, command)
    if command.mode not in session.capabilities.modes:
        raise CannotDo(session.state.profile.agent, f"work in mode {command.mode}")
    body = ev.SettingChanged(mode=command.mode)
    return await _change_setting(session, command, body, lambda driver: driver.switch_mode(command.mode))


async def _change_setting(
    session: Session, command: cmd.Command, body: Body, make_lines: Callable[[Driver], Lines]
) -> Done:
    """Record a setting and send it to a running agent. Otherwise the agent gets it when it starts."""
    connection = session.connection
    # Build the lines first: a driver that can't do this raises before anything is recorded.
    lines = make_lines(connection.driver) if connection is not None else []
    result = await session.commit(command, [body], Done())
    if connection is not None and connection is session.connection:
        connection.send(lines)
    return result


async def bash(session: Session, command: cmd.Bash) -> Done:
    """Let the agent run a shell command of the user's own."""
    return await _tell_agent(
        session, command, "run shell commands of yours", lambda driver: driver.bash(command.command, uuid4().hex)
    )


async def compact(session: Session, command: cmd.Compact) -> Done:
    """Let the agent shorten its conversation."""
    return await _tell_agent(session, command, "compact", lambda driver: driver.compact())


async def _tell_agent(session: Session, command: cmd.Command, what: str, make_lines: Callable[[Driver], Lines]) -> Done:
    """Send lines that only a running agent can act on, if it supports them."""
    check_allowed(session, command)
    if command.command_name in session.unsupported_commands:
        raise CannotDo(session.state.profile.agent, what)
    connection = session.launcher.ready_connection
    if connection is None:
        raise refuse(session, command, "the agent isn't running; a message starts it")
    lines = make_lines(connection.driver)
    result = await session.commit(command, [], Done())
    connection.send(lines)
    return result
