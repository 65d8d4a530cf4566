"""`GET /sessions/ID/export`: a session as Markdown, as JSON, or as the recording of its agent's output."""

from __future__ import annotations

import asyncio
from typing import Literal

import msgspec
from aiohttp import web
from msgspec import Struct

from quarterdeck.deck.recording import trace_file
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import encode_event
from quarterdeck.kernel.timeline import Entry, window
from quarterdeck.log.base import PAGE
from quarterdeck.server.route import Call, Table
from quarterdeck.server.shapes import session_view

TABLE = Table()
_MEDIA_TYPES = {"md": "text/markdown", "json": "application/json", "trace": "application/x-ndjson"}


class NoSuchTrace(QuarterdeckError):
    """The session wasn't recorded."""

    code = "no_such_trace"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"session {session_id} has no recording", "Create sessions with record: true to record them.")


class ExportQuery(Struct, frozen=True, kw_only=True):
    """`md` is for people, `json` has the view and every event, `trace` is the agent's raw output line by line."""

    format: Literal["md", "json", "trace"] = "md"


@TABLE.add(
    "GET",
    "/sessions/{id}/export",
    "Export a session",
    query=ExportQuery,
    media=tuple(_MEDIA_TYPES.values()),
    errors=(404,),
)
async def export(call: Call) -> web.Response:
    call.session.view  # noqa: B018 - raises NoSuchSession, before another error is found
    kind: str = call.query.format
    encode = {"md": _encode_markdown, "json": _encode_json, "trace": _read_trace}[kind]
    extension = "jsonl" if kind == "trace" else kind
    headers = {"Content-Disposition": f'attachment; filename="session.{extension}"'}
    return web.Response(body=await encode(call), content_type=_MEDIA_TYPES[kind], charset="utf-8", headers=headers)


async def _encode_markdown(call: Call) -> bytes:
    view = await call.session.whole_view()
    profile = view.state.profile
    lines = [f"# {profile.name or profile.id}", "", f"{profile.agent} in `{profile.cwd}`", ""]
    for entry in window(view.timeline):
        lines += [_entry_markdown(entry), ""]
    return "\n".join(lines).encode(errors="replace")


def _entry_markdown(entry: Entry) -> str:
    if entry.tool_step is not None:
        return f"**{entry.tool_step.tool_name}** `{entry.tool_step.tool_args}`"
    if entry.bash_result is not None:
        return f"```\n$ {entry.bash_result.command}\n{entry.bash_result.output}\n```"
    text = entry.text.strip()
    return "\n".join(f"> {line}" for line in text.split("\n")) if entry.kind == "user" else text


async def _encode_json(call: Call) -> bytes:
    view = msgspec.json.encode(session_view(call.session.view))
    events: list[bytes] = []
    since = 0
    while page := await call.session.events(since, PAGE):
        events += [encode_event(event) for event in page]
        since = page[-1].index
    return b'{"view":' + view + b',"events":[' + b",\n".join(events) + b"]}\n"


async def _read_trace(call: Call) -> bytes:
    path = trace_file(call.deck.home, call.path["id"])
    try:
        return await asyncio.to_thread(path.read_bytes)
    except FileNotFoundError:
        raise NoSuchTrace(call.path["id"]) from None
