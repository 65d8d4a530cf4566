"""Texts for the agent: prompts, steering, and what waits of them."""

from __future__ import annotations

from msgspec import Struct

from quarterdeck.events import Image
from quarterdeck.kernel.command_results import Done, Dropped, Receipt, Steered
from quarterdeck.kernel.queue import Waiting
from quarterdeck.server.route import Call, Keyed, Table, Text, Words

TABLE = Table()


class Prompt(Keyed, frozen=True, kw_only=True):
    """A message. `supersede` closes what is asked first, `new_task` starts over, `resume` wakes a suspended session."""

    text: Words
    images: tuple[Image, ...] = ()
    resume: bool = True
    supersede: bool = False
    new_task: bool = False


@TABLE.add(
    "POST",
    "/sessions/{id}/prompt",
    "Sends a message: a prompt, an answer, steering or a queued text, as the state has it",
    body=Prompt,
    answer=Receipt,
    status=202,
    errors=(404, 409, 413),
    example={"text": "Run the tests"},
)
async def prompt(call: Call) -> Receipt:
    body: Prompt = call.body
    return await call.session.prompt(
        body.text,
        images=body.images,
        resume=body.resume,
        supersede=body.supersede,
        new_task=body.new_task,
        client_id=call.client_id,
    )


class Steer(Keyed, frozen=True, kw_only=True):
    """A text for the running turn."""

    text: Words
    ref: Text = ""


@TABLE.add(
    "POST",
    "/sessions/{id}/steer",
    "Sends a text into the running turn",
    body=Steer,
    answer=Steered,
    status=202,
    errors=(404, 409, 413),
    example={"text": "Only the unit tests"},
)
async def steer(call: Call) -> Steered:
    return await call.session.steer(call.body.text, ref=call.body.ref, client_id=call.client_id)


class QueueShown(Struct, frozen=True):
    """The texts that the agent has not read yet, first to be read first."""

    queue: tuple[Waiting, ...]


@TABLE.add("GET", "/sessions/{id}/queue", "Lists the texts that wait", answer=QueueShown, errors=(404,))
async def queue(call: Call) -> QueueShown:
    return QueueShown(call.session.queue)


class Edit(Keyed, frozen=True, kw_only=True):
    """`text` replaces what waits; `resend` sends a text again that failed or whose outcome nobody knows."""

    text: Words | None = None
    resend: bool = False


@TABLE.add(
    "PATCH",
    "/sessions/{id}/queue/{item}",
    "Changes a text that waits, or sends it again",
    body=Edit,
    answer=QueueShown,
    errors=(404, 409),
    example={"text": "Run the unit tests"},
)
async def edit(call: Call) -> QueueShown:
    body: Edit = call.body
    session, item = call.session, call.path["item"]
    if body.text is not None:
        await session.edit_queued(item, body.text, client_id=call.key("text"))
    if body.resend:
        await session.resend(item, client_id=call.key("resend"))
    return QueueShown(session.queue)


@TABLE.add("DELETE", "/sessions/{id}/queue/{item}", "Takes a text back", body=Keyed, answer=Dropped, errors=(404, 409))
async def drop(call: Call) -> Dropped:
    return await call.session.drop_queued(call.path["item"], client_id=call.client_id)


@TABLE.add("DELETE", "/sessions/{id}/queue", "Takes all texts back", body=Keyed, answer=Dropped, errors=(404, 409))
async def clear(call: Call) -> Dropped:
    return await call.session.drop_queued(client_id=call.client_id)


class Bash(Keyed, frozen=True, kw_only=True):
    """A shell command of the user's own."""

    command: Words


@TABLE.add(
    "POST",
    "/sessions/{id}/bash",
    "Runs a shell command beside the conversation",
    body=Bash,
    answer=Done,
    errors=(404, 409),
    example={"command": "git status"},
)
async def bash(call: Call) -> Done:
    return await call.session.bash(call.body.command, client_id=call.client_id)
