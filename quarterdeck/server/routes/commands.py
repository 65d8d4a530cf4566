"""Routes for commands to a session. The body of each request is the command's struct from `kernel/commands.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from quarterdeck.kernel import commands as cmd
from quarterdeck.kernel.command_results import Dropped
from quarterdeck.kernel.queue import Waiting
from quarterdeck.server.route import Call, Keyed, Table

TABLE = Table()
_ERRORS = (404, 409)
_TEXT_ERRORS = (404, 409, 413)


# --- commands with a route of their own


async def _run(call: Call) -> Any:
    # The key may come from the body, the Idempotency-Key header, or the id of a WebSocket message.
    return await call.session.run(replace(call.body, client_id=call.client_id))


def _add(
    command: type[cmd.Command],
    summary: str,
    *,
    status: int = 200,
    errors: tuple[int, ...] = _ERRORS,
    example: Mapping[str, Any] | None = None,
) -> None:
    TABLE.add(
        "POST",
        f"/sessions/{{id}}/{command.command_name}",
        summary,
        body=command,
        answer=command.result_type,
        status=status,
        errors=errors,
        example=example,
    )(_run)


_add(
    cmd.Prompt,
    "Send a message: a prompt, an answer, steering or a queued text, depending on the session's state",
    status=202,
    errors=_TEXT_ERRORS,
    example={"text": "Run the tests"},
)
_add(
    cmd.Steer,
    "Send a text into the running turn",
    status=202,
    errors=_TEXT_ERRORS,
    example={"text": "Only the unit tests"},
)
_add(cmd.Abort, "End the turn")
_add(cmd.Approve, "Approve a tool call", example={"gate_id": "g7"})
_add(cmd.Reject, "Reject a tool call", example={"gate_id": "g7", "reason": "Not in this folder"})
_add(cmd.Respond, "Answer a question or a dialog", example={"gate_id": "g8", "answer": "Yes, both"})
_add(cmd.Retry, "Try a failed turn again")
_add(cmd.Resume, "Resume a session")
_add(cmd.Cancel, "End a session and archive it as cancelled")
_add(cmd.Archive, "Archive a session")
_add(cmd.SwitchModel, "Switch the model", example={"model": "opus"})
_add(cmd.Compact, "Shorten the conversation")
_add(cmd.Bash, "Run a shell command next to the conversation", example={"command": "git status"})


# --- queued texts


class QueueShown(Struct, frozen=True):
    """Texts that the agent hasn't read, in the order in which it will read them."""

    queue: tuple[Waiting, ...]


@TABLE.add("GET", "/sessions/{id}/queue", "List queued texts", answer=QueueShown, errors=(404,))
async def queue(call: Call) -> QueueShown:
    return QueueShown(call.session.queue)


class EditItem(Keyed, frozen=True, kw_only=True):
    """`text` replaces the queued text. `resend` sends a text again that failed or whose outcome is unknown."""

    text: cmd.Words | None = None
    resend: bool = False


@TABLE.add(
    "PATCH",
    "/sessions/{id}/queue/{item}",
    "Change a queued text, or send it again",
    body=EditItem,
    answer=QueueShown,
    errors=_ERRORS,
    example={"text": "Run the unit tests"},
)
async def edit(call: Call) -> QueueShown:
    body: EditItem = call.body
    session, item_id = call.session, call.path["item"]
    # The request may stand for two commands, so each gets a key of its own.
    if body.text is not None:
        await session.edit_queued(item_id, body.text, client_id=call.key("text"))
    if body.resend:
        await session.resend(item_id, client_id=call.key("resend"))
    return QueueShown(session.queue)


@TABLE.add("DELETE", "/sessions/{id}/queue/{item}", "Remove a queued text", body=Keyed, answer=Dropped, errors=_ERRORS)
async def drop(call: Call) -> Dropped:
    return await call.session.drop_queued(call.path["item"], client_id=call.client_id)


@TABLE.add("DELETE", "/sessions/{id}/queue", "Remove all queued texts", body=Keyed, answer=Dropped, errors=_ERRORS)
async def clear(call: Call) -> Dropped:
    return await call.session.drop_queued(client_id=call.client_id)
