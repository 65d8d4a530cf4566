"""A session on the other side of the wire, with the library's names."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from typing import Any, cast
from urllib.parse import quote
from uuid import uuid4

from msgspec import Raw, Struct

from quarterdeck.client.wire import Wire
from quarterdeck.deck.git.diff import Diff, Scope
from quarterdeck.deck.verbs import A, Mark, Verbs
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


class RemoteSession(Verbs):
    """One session. Every command takes a `client_id`: the same one again is answered again and done once."""

    def __init__(self, wire: Wire, session_id: str) -> None:
        self._wire = wire
        self.id = session_id
        self._path = f"/sessions/{quote(session_id, safe='')}"

    async def show(self) -> dict[str, Any]:
        """The whole view, as the contract has it."""
        return await self._wire.ask("GET", self._path, dict[str, Any])

    async def queue(self) -> tuple[Waiting, ...]:
        """The texts that the agent has not read yet."""
        return (await self._wire.ask("GET", f"{self._path}/queue", _Queue)).queue

    async def timeline(self, limit: int = 200, before: int | None = None) -> list[Entry]:
        """What was said and done, the newest entries last."""
        query = {"limit": str(limit)} | ({} if before is None else {"before": str(before)})
        return list((await self._wire.ask("GET", f"{self._path}/timeline", _Timeline, query=query)).entries)

    async def why(self, at: int | None = None) -> tuple[Why, ...]:
        """The evidence for every state."""
        query = {} if at is None else {"at": str(at)}
        return (await self._wire.ask("GET", f"{self._path}/why", _Evidence, query=query)).why

    async def changes(self, scope: Scope = "session") -> Diff:
        """What changed in its repository since it began, or since its last turn did."""
        return await self._wire.ask("GET", f"{self._path}/changes", Diff, query={"scope": scope})

    def subscribe(self, since: int = 0, types: Collection[str] | None = None) -> AsyncGenerator[Event]:
        """All events after an index, then whatever comes; a cut connection is opened again where it was cut."""
        return self._wire.events(f"{self._path}/events", str(since), ",".join(types or ()))

    async def events(self, since: int = 0, limit: int = 1000, types: Collection[str] | None = None) -> list[Event]:
        """Events that are in the log now."""
        query = {"since": str(since), "limit": str(limit)} | ({"types": ",".join(types)} if types else {})
        page = await self._wire.ask("GET", f"{self._path}/events", _Events, query=query, accept="application/json")
        return [decode_event(bytes(one)) for one in page.events]

    # --- texts

    async def edit_queued(self, item_id: str, text: str, *, client_id: str = "") -> Done:
        await self._item("PATCH", item_id, {"text": text, "client_id": client_id}, dict[str, Any])
        return Done()

    async def drop_queued(self, item_id: str = "", *, client_id: str = "") -> Dropped:
        """Takes one text back, or all of them."""
        # always with a key: aiohttp repeats a DELETE when the connection is lost, and a second one has no texts to give
        return await self._item("DELETE", item_id, {"client_id": client_id or uuid4().hex}, Dropped)

    async def resend(self, item_id: str, *, client_id: str = "") -> Done:
        """Sends a text again that failed, or whose outcome nobody knows."""
        await self._item("PATCH", item_id, {"resend": True, "client_id": client_id}, dict[str, Any])
        return Done()

    async def _item(self, method: str, item_id: str, body: Any, kind: type[Any]) -> Any:
        path = f"{self._path}/queue/{quote(item_id, safe='')}" if item_id else f"{self._path}/queue"
        return await self._wire.ask(method, path, kind, body)

    # --- the session

    async def delete(self) -> None:
        """Removes it and its log."""
        await self._wire.ask("DELETE", self._path, type(None))

    async def _mark(self, wanted: Mark, client_id: str) -> Done:
        given = {name: getattr(wanted, name) for name in wanted.__struct_fields__}
        body = {name: value for name, value in given.items() if value is not None} | {"client_id": client_id}
        await self._wire.ask("PATCH", self._path, dict[str, Any], body)
        return Done()

    async def _obey(self, command: cmd.Command, client_id: str, kind: type[A]) -> A:
        """Most commands are a POST of their name; the two that only change how a session looks are parts of a PATCH."""
        body = {name: getattr(command, name) for name in command.__struct_fields__} | {"client_id": client_id}
        if isinstance(command, cmd.Rename | cmd.SwitchMode):
            await self._wire.ask("PATCH", self._path, dict[str, Any], body)
            return cast(A, Done())
        return await self._wire.ask("POST", f"{self._path}/{cmd.name_of(command)}", kind, body)
