"""Routes to create, list, show, change and delete sessions."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from quarterdeck.config import Mode
from quarterdeck.deck.validation import InvalidInput
from quarterdeck.events import Image
from quarterdeck.kernel.command_results import Done
from quarterdeck.kernel.commands import NAME_LIMIT, NOT_BLANK, Text
from quarterdeck.kernel.session_list import PAGE, Filter
from quarterdeck.server.route import Call, Index, Keyed, Table, Variable
from quarterdeck.server.shapes import SessionPage, SessionView, session_view

TABLE = Table()
Name = Annotated[Text, Meta(max_length=NAME_LIMIT)]
_STATUSES = r"^((active|suspended|archived|error)(,|$))*$"
#: As the previous page returned it. A wrong cursor must not restart the list: a client would read it for ever.
_CURSOR = r"^([0-9]{1,20}\..+)?$"


class Options(Struct, frozen=True, kw_only=True):
    """`arguments` are passed to the agent's command line. They are stored in the log."""

    arguments: tuple[str, ...] = ()


class Create(Keyed, frozen=True, kw_only=True):
    """A new session. `cwd` is an absolute path, or one that begins with `~`; by default it's the home of the server's user.
    `env` is the agent's whole environment; it's never logged or returned. `worktree` isn't supported yet."""

    # Not the command's struct: the server has no working folder of its own, so paths and their default differ here.
    agent: Text
    prompt: Text | None = None
    images: tuple[Image, ...] = ()
    cwd: Annotated[str, Meta(extra_json_schema={"pattern": r"^[/~][^\u0000]*$"})] = "~"
    model: Text = ""
    name: Name = ""
    mode: Mode | Literal[""] = ""
    env: dict[Variable, Text] | None = None
    worktree: Annotated[bool | str | None, Meta(extra_json_schema={"enum": [False, None]})] = None
    record: bool = False
    options: Options = Options()


@TABLE.add(
    "POST",
    "/sessions",
    "Create a session",
    body=Create,
    answer=SessionView,
    status=201,
    errors=(404, 409, 413),
    example={"agent": "test", "prompt": "Say hello", "cwd": "~"},
)
async def create(call: Call) -> Struct:
    body: Create = call.body
    if not body.cwd.startswith(("/", "~")):
        raise InvalidInput("cwd", "isn't an absolute path", "Use a path that begins with / or ~.")
    if body.worktree:
        # Working in the folder itself would be worse: the caller wanted to be kept apart from others there.
        hint = "Create one with `git worktree add`, and send its folder as cwd."
        raise InvalidInput("worktree", "sessions with their own worktree aren't supported yet", hint)
    handle = await call.deck.create(
        body.agent,
        body.prompt,
        images=body.images,
        cwd=body.cwd,
        model=body.model,
        name=body.name,
        mode=body.mode,
        env=body.env,
        record=body.record,
        arguments=body.options.arguments,
        client_id=call.client_id,
    )
    return session_view(handle.view)


class ListQuery(Struct, frozen=True, kw_only=True):
    """`status` is one or several, separated by commas. `q` is part of a name, a folder or the last text."""

    status: Annotated[str, Meta(pattern=_STATUSES)] = ""
    archived: bool = False
    agent: str = ""
    cwd: str = ""
    q: Annotated[str, Meta(max_length=400)] = ""
    limit: Annotated[int, Meta(ge=1, le=200)] = PAGE
    cursor: Annotated[str, Meta(pattern=_CURSOR)] = ""


@TABLE.add("GET", "/sessions", "List sessions, newest first", query=ListQuery, answer=SessionPage)
async def list_sessions(call: Call) -> SessionPage:
    query: ListQuery = call.query
    filters = Filter(
        status=tuple(status for status in query.status.split(",") if status),
        archived=query.archived,
        agent=query.agent,
        cwd=query.cwd,
        q=query.q,
    )
    page = call.deck.list(filters, limit=query.limit, cursor=query.cursor)
    return SessionPage(page.sessions, page.next_cursor, page.badge)


@TABLE.add("GET", "/sessions/{id}", "Show a session", answer=SessionView, errors=(404,))
async def show(call: Call) -> Struct:
    return session_view(call.session.view)


class Changed(Keyed, frozen=True, kw_only=True):
    """Fields that are left out stay as they are. `snoozed_until` 0 or null wakes; `read_index` is the last event that a
    person saw, at most the last one that there is."""

    name: Annotated[str, Meta(min_length=1, max_length=NAME_LIMIT, pattern=NOT_BLANK)] | UnsetType = UNSET
    mode: Mode | UnsetType = UNSET
    pinned: bool | UnsetType = UNSET
    snoozed_until: Index | UnsetType | None = UNSET
    read_index: Index | UnsetType = UNSET


@TABLE.add(
    "PATCH",
    "/sessions/{id}",
    "Rename, pin or snooze a session, or change its mode",
    body=Changed,
    answer=SessionView,
    errors=(404, 409),
    example={"name": "Fix the build"},
)
async def change(call: Call) -> Struct:
    """Run up to three commands, each with a key of its own."""
    body: Changed = call.body
    session = call.session
    # The mode is first: if the agent doesn't support it, nothing must be changed.
    if body.mode is not UNSET:
        await session.switch_mode(body.mode, client_id=call.key("mode"))
    if body.name is not UNSET:
        await session.rename(body.name, client_id=call.key("name"))
    if (body.pinned, body.snoozed_until, body.read_index) != (UNSET, UNSET, UNSET):
        await session.mark(
            pinned=None if body.pinned is UNSET else body.pinned,
            snoozed_until=None if body.snoozed_until is UNSET else body.snoozed_until or 0,
            read_index=None if body.read_index is UNSET else body.read_index,
            client_id=call.key("mark"),
        )
    return session_view(session.view)


@TABLE.add("DELETE", "/sessions/{id}", "Delete a session and its log", status=204, errors=(404, 409))
async def remove(call: Call) -> Done:
    await call.session.delete()
    return Done()
