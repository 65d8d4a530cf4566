"""A session on a server, with the same methods as the library's `SessionHandle`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from msgspec import Raw, Struct

from quarterdeck.client.wire import Wire
from quarterdeck.deck.git.diff import Diff, Scope
from quarterdeck.deck.session_api import SessionCommands
from quarterdeck.events import Event, decode_event
from quarterdeck.kernel import commands as cmd
from quarterdeck.kernel.command_results import Done, Dropped
from quarterdeck.kernel.queue import Waiting
from quarterdeck.kernel.timeline import Entry
from quarterdeck.kernel.view import Why


class _Queue(Struct):
    queue: tuple[Waiting, ...]


class _Timeline(Struct):
    entries: tuple[Entry, ...]


class _Events(Struct):
    events: tuple[Raw, ...]


class _Evidence(Struct):
    why: tuple[Why, ...]


class RemoteSession(SessionCommands):
    """One session of a server."""

    def __init__(self, wire: Wire, session_id: str) -> None:
        self._wire = wire
        self.id = session_id
        self._path = f"/sessions/{quote(session_id, safe='')}"

    # --- state

    async def show(self) -> dict[str, Any]:
        """Return the whole view, in the shape of the API."""
        return await self._wire.ask("GET", self._path, dict[str, Any])

    async def queue(self) -> tuple[Waiting, ...]:
        """Return texts that the agent hasn't read."""
        return (await self._wire.ask("GET", f"{self._path}/queue", _Queue)).queue

    async def timeline(self, limit: int = 200, before: int | None = None) -> list[Entry]:
        """Return timeline entries, the newest last."""
        query = {"limit": str(limit)} | ({} if before is None else {"before": str(before)})
        return list((await self._wire.ask("GET", f"{self._path}/timeline", _Timeline, query=query)).entries)

    async def why(self, at: int | None = None) -> tuple[Why, ...]:
        """Return the evidence for every part of the state."""
        query = {} if at is None else {"at": str(at)}
        return (await self._wire.ask("GET", f"{self._path}/why", _Evidence, query=query)).why

    async def changes(self, scope: Scope = "session") -> Diff:
        """Return what changed in the repository since the session, or its last turn, began."""
        return await self._wire.ask("GET", f"{self._path}/changes", Diff, query={"scope": scope})

    # --- events

    def subscribe(self, since: int = 0, types: Collection[str] | None = None) -> AsyncGenerator[Event]:
        """Yield all events after an index, then new ones as they come. Reconnects where a connection was lost."""
        return self._wire.events(f"{self._path}/events", str(since), ",".join(types or ()))

    async def events(self, since: int = 0, limit: int = 1000, types: Collection[str] | None = None) -> list[Event]:
        """Return events after an index that are in the log now."""
        query = {"since": str(since), "limit": str(limit)} | ({"types": ",".join(types)} if types else {})
        page = await self._wire.ask("GET", f"{self._path}/events", _Events, query=query, accept="application/json")
        return [decode_event(bytes(event)) for event in page.events]

    # --- commands

    async def run(self, command: cmd.Command) -> Any:
        """Run a command and return its result, which is of the command's `result_type`."""
        if isinstance(command, cmd.EditQueued | cmd.Resend | cmd.DropQueued):
            return await self._run_queue_command(command)
        body = {name: getattr(command, name) for name in command.__struct_fields__}
        if isinstance(command, cmd.Rename | cmd.SwitchMode | cmd.Mark):
            # These are fields of PATCH, where null can mean something. Send only what is set.
            given = {name: value for name, value in body.items() if value is not None}
            await self._wire.ask("PATCH", self._path, dict[str, Any], given)
            return Done()
        return await self._wire.ask("POST", f"{self._path}/{command.command_name}", command.result_type, body)

    async def _run_queue_command(self, command: cmd.EditQueued | cmd.Resend | cmd.DropQueued) -> Done | Dropped:
        item = quote(command.item_id, safe="")
        path = f"{self._path}/queue/{item}" if item else f"{self._path}/queue"
        if isinstance(command, cmd.DropQueued):
            # Always send a key. aiohttp repeats a DELETE when the connection is lost, and the second one would find no
            # texts to return.
            return await self._wire.ask("DELETE", path, Dropped, {"client_id": command.client_id or uuid4().hex})
        body: dict[str, Any] = {"client_id": command.client_id}
        body |= {"text": command.text} if isinstance(command, cmd.EditQueued) else {"resend": True}
        await self._wire.ask("PATCH", path, dict[str, Any], body)
        return Done()

    async def delete(self) -> None:
        """Delete the session and its log."""
        await self._wire.ask("DELETE", self._path, type(None))
