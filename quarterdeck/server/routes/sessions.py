"""Sessions themselves: make, list, show, change, remove."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from quarterdeck.config import Mode
from quarterdeck.deck.validation import InvalidInput
from quarterdeck.events import Image
from quarterdeck.kernel.command_results import Done
from quarterdeck.kernel.session_list import PAGE, Filter
from quarterdeck.server.route import WORDS, Call, Index, Keyed, Table, Text, Variable
from quarterdeck.server.shapes import SessionPage, SessionView, session_view

TABLE = Table()
Name = Annotated[Text, Meta(max_length=100)]
_STATUSES = r"^((active|suspended|archived|error)(,|$))*$"
#: As it was given with the page before; a wrong one must not begin the list anew, for ever.
_CURSOR = r"^([0-9]{1,20}\..+)?$"


class Options(Struct, frozen=True, kw_only=True):
    """`arguments` are flags of the agent's own, for its command line; they are kept in the log."""

    arguments: tuple[str, ...] = ()


class Create(Keyed, frozen=True, kw_only=True):
    """A new session. `cwd` is an absolute path, or one that begins with `~`; left out it is the home of the server's user.
    `env` is the agent's whole environment; it is never logged and never returned. `worktree` is not served yet."""

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
    "Starts a session",
    body=Create,
    answer=SessionView,
    status=201,
    errors=(404, 409, 413),
    example={"agent": "test", "prompt": "Say hello", "cwd": "~"},
)
async def create(call: Call) -> Struct:
    body: Create = call.body
    if not body.cwd.startswith(("/", "~")):
        raise InvalidInput("cwd", "it is no absolute path", "The server has no folder of its own: begin with / or ~.")
    if body.worktree:
        # to work in the folder itself, beside whoever was to be kept apart, would be worse than to say no
        hint = "Make one with `git worktree add`, and send its folder as cwd."
        raise InvalidInput("worktree", "sessions with a worktree of their own are not served yet", hint)
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
    """`status` is one or several with commas between; `q` is part of a name, a folder or the last words."""

    status: Annotated[str, Meta(pattern=_STATUSES)] = ""
    archived: bool = False
    agent: str = ""
    cwd: str = ""
    q: Annotated[str, Meta(max_length=400)] = ""
    limit: Annotated[int, Meta(ge=1, le=200)] = PAGE
    cursor: Annotated[str, Meta(pattern=_CURSOR)] = ""


@TABLE.add("GET", "/sessions", "Lists sessions, newest first", query=ListQuery, answer=SessionPage)
async def listing(call: Call) -> SessionPage:
    query: ListQuery = call.query
    wanted = Filter(
        status=tuple(one for one in query.status.split(",") if one),
        archived=query.archived,
        agent=query.agent,
        cwd=query.cwd,
        q=query.q,
    )
    page = call.deck.list(wanted, limit=query.limit, cursor=query.cursor)
    return SessionPage(page.sessions, page.next_cursor, page.badge)


@TABLE.add("GET", "/sessions/{id}", "Shows a session", answer=SessionView, errors=(404,))
async def show(call: Call) -> Struct:
    return session_view(call.session.view)


class Changed(Keyed, frozen=True, kw_only=True):
    """What is left out stays. `snoozed_until` 0 or null wakes; `read_index` is the last event that a person saw,
    at most the last one that there is."""

    name: Annotated[str, Meta(min_length=1, max_length=100, pattern=WORDS)] | UnsetType = UNSET
    mode: Mode | UnsetType = UNSET
    pinned: bool | UnsetType = UNSET
    snoozed_until: Index | UnsetType | None = UNSET
    read_index: Index | UnsetType = UNSET


@TABLE.add(
    "PATCH",
    "/sessions/{id}",
    "Renames, pins, snoozes, or changes the mode",
    body=Changed,
    answer=SessionView,
    errors=(404, 409),
    example={"name": "Fix the build"},
)
async def change(call: Call) -> Struct:
    """One key stands for up to three commands, so each has the key with its own name. The mode is first: an agent may not
    have it, and then nothing is to be changed."""
    body: Changed = call.body
    session = call.session
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


@TABLE.add("DELETE", "/sessions/{id}", "Removes a session and its log", status=204, errors=(404, 409))
async def remove(call: Call) -> Done:
    await call.session.delete()
    return Done()
