"""What is around sessions: agents, folders, rules; and a session to take away."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from itertools import islice
from typing import Annotated, Literal

import msgspec
from aiohttp import web
from msgspec import Meta, Struct

from quarterdeck.deck.login import Source
from quarterdeck.deck.recording import trace_file
from quarterdeck.deck.validation import is_inside
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import encode_event
from quarterdeck.harness import registry
from quarterdeck.kernel.timeline import Entry, window
from quarterdeck.log.base import PAGE
from quarterdeck.server.route import Call, Keyed, Table
from quarterdeck.server.shapes import session_view

TABLE = Table()
_MOST_FOLDERS = 50


class AgentShown(Struct, frozen=True):
    """An agent that this deck knows; `driven` when it can be started from here, in one of these modes.

    `login` is ok, missing or unknown, and `hint` says what to do about it. `prompt` is what a session begins with if nobody
    says what it shall do.
    """

    name: str
    driven: bool
    modes: tuple[str, ...] = ()
    installed: bool | None = None
    login: Literal["ok", "missing", "unknown"] = "unknown"
    hint: str = ""
    prompt: str = ""


class Agents(Struct, frozen=True):
    """All of them."""

    agents: tuple[AgentShown, ...]


@TABLE.add("GET", "/agents", "The agents that are known", answer=Agents)
async def agents(call: Call) -> Agents:
    """Judged by what they would be started with."""
    usual = await call.deck.environments.usual.current()
    return Agents(tuple(_agent(name, usual) for name in registry.known()))


def _agent(name: str, environment: Mapping[str, str]) -> AgentShown:
    if name not in registry.HARNESSES:
        return AgentShown(name, False)
    harness = registry.harness(name)
    try:
        standing = harness.standing(environment)
    except QuarterdeckError as error:  # a configuration that cannot be read is this agent's trouble, not the list's
        standing = registry.Standing(login="unknown", hint=f"{error.message}. {error.hint}")
    modes = harness.make_driver().capabilities.modes
    return AgentShown(name, True, modes, standing.installed, standing.login, standing.hint, harness.prompt)


# --- the environment of agents


class EnvironmentShown(Struct, frozen=True):
    """Where the environment comes from that agents get which are given none, never what is in it. `problem` is why the
    login shell could not be asked; then the server's own is used, or what the shell said before."""

    source: Source
    shell: str
    asked_at: int
    variables: int
    problem: str


@TABLE.add("GET", "/environment", "What agents are started with", answer=EnvironmentShown)
async def environment(call: Call) -> EnvironmentShown:
    usual = call.deck.environments.usual
    return EnvironmentShown(usual.source, usual.shell, usual.asked_at, usual.variables, usual.problem)


@TABLE.add("POST", "/environment", "Asks the login shell again", body=Keyed, answer=EnvironmentShown)
async def ask_environment(call: Call) -> EnvironmentShown:
    await call.deck.environments.usual.refresh()
    return await environment(call)


# --- folders


class FoldersQuery(Struct, frozen=True, kw_only=True):
    """The beginning of a path, or a part of the path of a folder that a session worked in."""

    q: Annotated[str, Meta(max_length=400)] = ""


class Folders(Struct, frozen=True):
    """Paths to choose from, at most 50."""

    folders: tuple[str, ...]


@TABLE.add("GET", "/folders", "Folders to work in", query=FoldersQuery, answer=Folders)
async def folders(call: Call) -> Folders:
    q: str = call.query.q
    if q.startswith(("/", "~")) and "\0" not in q:
        return Folders(tuple(await asyncio.to_thread(_below, q, call.deck.settings.workspace)))
    latest = sorted(call.deck.rows(), key=lambda row: -row.last_active_at)
    known = dict.fromkeys(row.cwd for row in latest if row.cwd and q.lower() in row.cwd.lower())
    return Folders(tuple(known)[:_MOST_FOLDERS])


def _below(start: str, workspace: tuple[str, ...]) -> list[str]:
    """The folders whose path begins like this. Hidden ones only for whoever typed the dot, and none in which nobody may
    work."""
    parent, beginning = os.path.split(os.path.expanduser(start))
    try:
        with os.scandir(parent) as entries:
            names = [entry.name for entry in entries if entry.name.startswith(beginning) and entry.is_dir()]
    except (OSError, ValueError):
        return []
    shown = sorted(name for name in names if beginning.startswith(".") or not name.startswith("."))
    paths = (os.path.join(parent, name) for name in shown if _is_text(name))
    return list(islice((path for path in paths if is_inside(path, workspace)), _MOST_FOLDERS))


def _is_text(name: str) -> bool:
    """Whether JSON can say it: a name of bytes that are no UTF-8 cannot be sent back either."""
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)


# --- rules


class RuleShown(Struct, frozen=True):
    """A rule that decides approvals by itself."""

    id: str
    text: str
    scope: str
    created_at: int


class Rules(Struct, frozen=True):
    """Those of the user and of repositories; a session's own are in its log."""

    rules: tuple[RuleShown, ...]


@TABLE.add("GET", "/rules", "The rules that decide approvals", answer=Rules)
async def rules(call: Call) -> Rules:
    found = call.deck.services.rules.rules()
    return Rules(tuple(RuleShown(one.id, one.text, one.scope, one.created_at) for one in found))


@TABLE.add("DELETE", "/rules/{rule}", "Removes a rule", status=204, errors=(404, 409))
async def remove_rule(call: Call) -> None:
    call.deck.services.rules.remove(call.path["rule"])


# --- export


class NoSuchTrace(QuarterdeckError):
    """The session was not recorded."""

    code = "no_such_trace"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"session {session_id} has no recording", "Start a session with record: true to have one.")


class ExportQuery(Struct, frozen=True, kw_only=True):
    """`md` is for people, `json` for programs (the view and every event), `trace` what the agent said, line by line."""

    format: Literal["md", "json", "trace"] = "md"


_MEDIA = {"md": "text/markdown", "json": "application/json", "trace": "application/x-ndjson"}


@TABLE.add(
    "GET",
    "/sessions/{id}/export",
    "A session to take away",
    query=ExportQuery,
    media=tuple(_MEDIA.values()),
    errors=(404,),
)
async def export(call: Call) -> web.Response:
    kind: str = call.query.format
    made = {"md": _markdown, "json": _whole, "trace": _trace}[kind]
    headers = {"Content-Disposition": f'attachment; filename="session.{"jsonl" if kind == "trace" else kind}"'}
    call.session.view  # noqa: B018 - NoSuchSession before anything else
    return web.Response(body=await made(call), content_type=_MEDIA[kind], charset="utf-8", headers=headers)


async def _markdown(call: Call) -> bytes:
    view = await call.session.whole_view()
    profile = view.state.profile
    lines = [f"# {profile.name or profile.id}", "", f"{profile.agent} in `{profile.cwd}`", ""]
    lines += [part for entry in window(view.timeline) for part in (_told(entry), "")]
    return "\n".join(lines).encode(errors="replace")


def _told(entry: Entry) -> str:
    if entry.tool_step is not None:
        return f"**{entry.tool_step.tool_name}** `{entry.tool_step.tool_args}`"
    if entry.bash_result is not None:
        return f"```\n$ {entry.bash_result.command}\n{entry.bash_result.output}\n```"
    text = entry.text.strip()
    return "\n".join(f"> {line}" for line in text.split("\n")) if entry.kind == "user" else text


async def _whole(call: Call) -> bytes:
    view = msgspec.json.encode(session_view(call.session.view))
    parts: list[bytes] = []
    since = 0
    while page := await call.session.events(since, PAGE):
        parts += [encode_event(event) for event in page]
        since = page[-1].index
    return b'{"view":' + view + b',"events":[' + b",\n".join(parts) + b"]}\n"


async def _trace(call: Call) -> bytes:
    path = trace_file(call.deck.home, call.path["id"])
    try:
        return await asyncio.to_thread(path.read_bytes)
    except FileNotFoundError:
        raise NoSuchTrace(call.path["id"]) from None
