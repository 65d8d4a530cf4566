"""Carry out commands: one handler for each command of `kernel/commands.py`.

A handler gets the session and the command, checks the command against the state, commits its events, and then does what
follows from them. `Create` and `Delete` have no handler here: they begin and end a session, so the deck runs them itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from quarterdeck.deck import validation
from quarterdeck.deck.commands import decisions, lifecycle, settings, texts
from quarterdeck.kernel import commands as cmd

if TYPE_CHECKING:
    from quarterdeck.deck.session import Session

Handler: TypeAlias = Callable[["Session", Any], Awaitable[Any]]

HANDLERS: dict[type[cmd.Command], Handler] = {
    cmd.Prompt: texts.prompt,
    cmd.Steer: texts.steer,
    cmd.Retry: texts.retry,
    cmd.Resume: texts.resume,
    cmd.Resend: texts.resend,
    cmd.EditQueued: texts.edit_queued,
    cmd.DropQueued: texts.drop_queued,
    cmd.Abort: texts.abort,
    cmd.Approve: decisions.approve,
    cmd.Reject: decisions.reject,
    cmd.Respond: decisions.respond,
    cmd.RemoveRule: decisions.remove_rule,
    cmd.Cancel: lifecycle.cancel,
    cmd.Archive: lifecycle.archive,
    cmd.Rename: settings.rename,
    cmd.Mark: settings.mark,
    cmd.SwitchModel: settings.switch_model,
    cmd.SwitchMode: settings.switch_mode,
    cmd.Bash: settings.bash,
    cmd.Compact: settings.compact,
}

#: Text fields of commands that are checked for every command which has them.
_TEXT_FIELDS = ("text", "name", "reason", "model", "command", "ref")


async def run_command(session: Session, command: cmd.Command) -> Any:
    """Carry out a command, once per `client_id`, and return its result.

    Raises:
        InvalidInput: a field of the command can't be used in any state.
        QuarterdeckError: the command was refused.
    """
    handler = HANDLERS[type(command)]
    _check_content(session, command)

    async def work() -> Any:
        return await handler(session, command)

    return await session.run_command(command, work)


def _check_content(session: Session, command: cmd.Command) -> None:
    limits = session.services.settings
    for field in _TEXT_FIELDS:
        value = getattr(command, field, None)
        if value is not None:
            validation.check_text(field, value, limits.text_limit)
    validation.check_json_texts("answer", getattr(command, "answer", None), limits.text_limit)
    validation.check_images(getattr(command, "images", ()), limits)
    if isinstance(command, cmd.EditQueued) and not command.text.strip():
        raise validation.InvalidInput("text", "is empty", "Drop the text instead.")
    if isinstance(command, cmd.Mark):
        validation.check_whole_number("snoozed_until", command.snoozed_until)
        validation.check_whole_number("read_index", command.read_index)
    validation.check_client_id(command.client_id)
    validation.check_field_types(command)
