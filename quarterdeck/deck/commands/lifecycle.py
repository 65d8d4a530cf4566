"""Commands that begin and end a session: create, cancel, archive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.deck import validation
from quarterdeck.deck.approvals import CANCELLED
from quarterdeck.deck.commands.base import check_allowed
from quarterdeck.deck.git.repository import find_repository
from quarterdeck.deck.receipts import fingerprint_body
from quarterdeck.deck.validation import InvalidInput
from quarterdeck.events import Body
from quarterdeck.harness import registry
from quarterdeck.harness.driver import CannotDo, Start
from quarterdeck.kernel import commands as cmd
from quarterdeck.kernel.command_results import Done, Status

if TYPE_CHECKING:
    from quarterdeck.deck.session import Session


# --- create


async def create(session: Session, command: cmd.Create, environment_fingerprint: str) -> None:
    """Open a session and, with a prompt, start its agent.

    `environment_fingerprint` stands for the environment in the command's receipt, because the log must not hold it.

    Raises:
        QuarterdeckError: the command was refused. There is no session then.
    """

    async def work() -> Done:
        _check_create(session, command)
        result = await session.commit(command, _opening_events(command), Done())
        session.delivery.pump()
        return result

    command_fingerprint = fingerprint_create(command, environment_fingerprint) if command.client_id else ""
    await session.run_command(command, work, command_fingerprint)


def fingerprint_create(command: cmd.Create, environment_fingerprint: str) -> str:
    """Return the hash of a new session's content. The environment is represented by its own fingerprint."""
    # Keep this shape: receipts in existing logs were written with it.
    fields = msgspec.to_builtins(replace(command, env=None))
    for name in ("client_id", "env", "record"):
        del fields[name]
    fields["own_environment"] = command.env is not None
    if command.env is None and not command.record:
        return fingerprint_body(command.command_name, fields)
    hidden = [environment_fingerprint if command.env is not None else None, command.record]
    return fingerprint_body(command.command_name, [fields, hidden])


def _check_create(session: Session, command: cmd.Create) -> None:
    """Find everything that can be wrong before there is a session."""
    # A value of the wrong type could be written to the log, and never be read again.
    validation.check_field_types(replace(command, env=None))
    limit = session.services.settings.text_limit
    for field in ("prompt", "name", "model", "mode", "continues"):
        value = getattr(command, field)
        if value is not None:
            validation.check_text(field, value, limit)
    for argument in command.arguments:
        validation.check_text("arguments", argument, limit)
    if command.prompt is not None and not command.prompt.strip() and not command.images:
        raise InvalidInput("prompt", "is empty", "Send a text, or no prompt at all.")
    if command.prompt is None and command.images:
        raise InvalidInput("images", "have no prompt", "Send the images with a prompt.")
    if len(command.name) > cmd.NAME_LIMIT:
        raise InvalidInput("name", f"has {len(command.name)} characters", f"Use at most {cmd.NAME_LIMIT}.")
    driver = registry.harness(command.agent).make_driver()
    if command.mode and command.mode not in driver.capabilities.modes:
        raise CannotDo(command.agent, f"work in mode {command.mode}")
    if command.images and not driver.capabilities.images:
        raise CannotDo(command.agent, "read images")
    # Drivers refuse arguments that they can't use.
    driver.spawn(Start(cwd=command.cwd, model=command.model, mode=command.mode, arguments=command.arguments))


def _opening_events(command: cmd.Create) -> list[Body]:
    opened = ev.SessionOpened(
        agent=command.agent,
        cwd=command.cwd,
        prompt=command.prompt,
        name=command.name.strip(),
        model=command.model,
        mode=command.mode,
        repo=find_repository(command.cwd),
        continues=command.continues,
        arguments=command.arguments,
        own_environment=command.env is not None,
    )
    if command.prompt is None:
        return [opened]
    return [opened, ev.PromptQueued(text=command.prompt, message_id=uuid4().hex, images=command.images)]


# --- archive


async def cancel(session: Session, command: cmd.Cancel) -> Status:
    """End the session and archive it as cancelled."""
    return await _archive(session, command, "cancelled")


async def archive(session: Session, command: cmd.Archive) -> Status:
    """End the session and archive it."""
    return await _archive(session, command, "archived")


async def _archive(session: Session, command: cmd.Command, end_reason: Literal["cancelled", "archived"]) -> Status:
    """End the process first: an archived session has none, and no queued text may start it again."""
    check_allowed(session, command)
    with session.archiving():
        if session.launcher.has_work:
            await _cancel_gates(session)
            await session.launcher.stop()
            check_allowed(session, command)
        return await session.commit(
            command, [ev.SessionArchived(end_reason=end_reason)], Status(session.id, end_reason)
        )


async def _cancel_gates(session: Session) -> None:
    """Close open gates as cancelled by the user. Otherwise the log would hold what the agent made of its end."""
    gates, connection = session.state.gates.open, session.connection
    if not gates:
        return
    await session.writer.commit(session.closing_events(gates, CANCELLED, "user"), "user")
    if connection is not None and connection is session.connection:
        for gate in gates:
            connection.send(connection.driver.answer(gate, CANCELLED))
