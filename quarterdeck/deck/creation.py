"""How a session comes to be."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
from msgspec import Struct

from quarterdeck import events as ev
from quarterdeck.deck import validation
from quarterdeck.deck.git.repository import repo_of
from quarterdeck.events import Body, Image, Json
from quarterdeck.harness.driver import CannotDo, Start
from quarterdeck.kernel import commands as cmd
from quarterdeck.kernel.command_results import Done

if TYPE_CHECKING:
    from quarterdeck.deck.session import Session


class Creation(Struct, frozen=True, kw_only=True):
    """What is wanted."""

    agent: str
    prompt: str | None = None
    cwd: str = ""
    images: tuple[Image, ...] = ()
    model: str = ""
    name: str = ""
    mode: str = ""
    continues: str = ""
    arguments: tuple[str, ...] = ()
    own_environment: bool = False


async def created(session: Session, wanted: Creation, client_id: str, unkept: Json = None) -> None:
    """Opens the session and, with a prompt, begins to start its agent. `unkept` is part of what the caller's key stands for,
    and of nothing else."""

    async def work(print_: str) -> Done:
        _check(session, wanted)
        done = await session.commit(_bodies(wanted), Done(), "create", client_id, print_)
        session.delivery.pump()
        return done

    body = wanted if unkept is None else [msgspec.to_builtins(wanted), unkept]
    await session.answer("create", body, Done, client_id, work)


def _check(session: Session, wanted: Creation) -> None:
    """Everything that can be wrong is found before there is a session."""
    validation.fits(wanted)  # what is not of its type could be written, and never be read again
    limit = session.services.settings.text_limit
    for field in ("prompt", "name", "model", "mode", "continues"):
        value = getattr(wanted, field)
        if value is not None:
            validation.text(field, value, limit)
    for argument in wanted.arguments:
        validation.text("arguments", argument, limit)
    if wanted.prompt is not None and not wanted.prompt.strip() and not wanted.images:
        raise validation.InvalidInput("prompt", "it is empty", "Send a text, or none at all.")
    if wanted.prompt is None and wanted.images:
        raise validation.InvalidInput("images", "there is no prompt that they belong to", "Send them with a prompt.")
    if len(wanted.name) > cmd.NAME_LIMIT:
        raise validation.InvalidInput("name", f"it has {len(wanted.name)} characters", f"Use at most {cmd.NAME_LIMIT}.")
    driver = session.services.harness_of(wanted.agent).make_driver()
    if wanted.mode and wanted.mode not in driver.capabilities.modes:
        raise CannotDo(wanted.agent, f"work in mode {wanted.mode}")
    if wanted.images and not driver.capabilities.images:
        raise CannotDo(wanted.agent, "read images")
    driver.spawn(Start(cwd=wanted.cwd, model=wanted.model, mode=wanted.mode, arguments=wanted.arguments))


def _bodies(wanted: Creation) -> list[Body]:
    opened = ev.SessionOpened(
        agent=wanted.agent,
        cwd=wanted.cwd,
        prompt=wanted.prompt,
        name=wanted.name.strip(),
        model=wanted.model,
        mode=wanted.mode,
        repo=repo_of(wanted.cwd),
        continues=wanted.continues,
        arguments=wanted.arguments,
        own_environment=wanted.own_environment,
    )
    if wanted.prompt is None:
        return [opened]
    return [opened, ev.PromptQueued(text=wanted.prompt, message_id=uuid4().hex, images=wanted.images)]
