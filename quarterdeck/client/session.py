"""A session on the other side of the wire, with the library's names."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from typing import Any, Literal, TypeVar
from urllib.parse import quote

from msgspec import Raw, Struct

from quarterdeck.client.wire import Wire
from quarterdeck.deck.answers import Answer, Decided, Done, Dropped, Receipt, Status, Steered
from quarterdeck.events import Event, Image, Json, decode_event
from quarterdeck.kernel.queue import Waiting
from quarterdeck.kernel.timeline import Entry
from quarterdeck.kernel.view import Why

A = TypeVar("A", bound=Answer)


class _Queue(Struct):
    queue: tuple[Waiting, ...]


class _Timeline(Struct):
    entries: tuple[Entry, ...]


class _Events(Struct):
    events: tuple[Raw, ...]


class _Evidence(Struct):
    why: tuple[Why, ...]


class RemoteSession:
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

    def subscribe(self, since: int = 0, types: Collection[str] | None = None) -> AsyncGenerator[Event]:
        """All events after an index, then whatever comes; a cut connection is opened again where it was cut."""
        return self._wire.events(f"{self._path}/events", str(since), ",".join(types or ()))

    async def events(self, since: int = 0, limit: int = 1000, types: Collection[str] | None = None) -> list[Event]:
        """Events that are in the log now."""
        query = {"since": str(since), "limit": str(limit)} | ({"types": ",".join(types)} if types else {})
        page = await self._wire.ask("GET", f"{self._path}/events", _Events, query=query, accept="application/json")
        return [decode_event(bytes(one)) for one in page.events]

    # --- texts

    async def prompt(
        self,
        text: str,
        *,
        images: Sequence[Image] = (),
        resume: bool = True,
        supersede: bool = False,
        new_task: bool = False,
        client_id: str = "",
    ) -> Receipt:
        """A message: a prompt, an answer, steering or a queued text, as the state has it; the receipt says which."""
        body = {"text": text, "images": images, "resume": resume, "supersede": supersede, "new_task": new_task}
        return await self._command("prompt", body, client_id, Receipt)

    async def steer(self, text: str, *, ref: str = "", client_id: str = "") -> Steered:
        """For the running turn."""
        return await self._command("steer", {"text": text, "ref": ref}, client_id, Steered)

    async def edit_queued(self, item_id: str, text: str, *, client_id: str = "") -> Done:
        await self._item("PATCH", item_id, {"text": text, "client_id": client_id}, dict[str, Any])
        return Done()

    async def drop_queued(self, item_id: str = "", *, client_id: str = "") -> Dropped:
        """Takes one text back, or all of them."""
        return await self._item("DELETE", item_id, {"client_id": client_id}, Dropped)

    async def resend(self, item_id: str, *, client_id: str = "") -> Done:
        """Sends a text again that failed, or whose outcome nobody knows."""
        await self._item("PATCH", item_id, {"resend": True, "client_id": client_id}, dict[str, Any])
        return Done()

    async def _item(self, method: str, item_id: str, body: Any, kind: type[Any]) -> Any:
        path = f"{self._path}/queue/{quote(item_id, safe='')}" if item_id else f"{self._path}/queue"
        return await self._wire.ask(method, path, kind, body)

    # --- the turn

    async def abort(
        self,
        *,
        kill_tools: Literal["killable", "all", "none"] = "killable",
        clear_queue: bool = False,
        reason: str | None = None,
        client_id: str = "",
    ) -> Dropped:
        """Ends the turn; the texts that were dropped with it come back."""
        body = {"kill_tools": kill_tools, "clear_queue": clear_queue, "reason": reason}
        return await self._command("abort", body, client_id, Dropped)

    async def approve(
        self,
        gate_id: str,
        *,
        always: Literal["session", "repo", "user"] | None = None,
        auto_resume: bool = True,
        client_id: str = "",
    ) -> Decided:
        """Yes to an approval, once or from now on."""
        body = {"gate_id": gate_id, "always": always, "auto_resume": auto_resume}
        return await self._command("approve", body, client_id, Decided)

    async def reject(
        self, gate_id: str, *, reason: str = "", auto_resume: bool = False, client_id: str = ""
    ) -> Decided:
        """No to an approval."""
        body = {"gate_id": gate_id, "reason": reason, "auto_resume": auto_resume}
        return await self._command("reject", body, client_id, Decided)

    async def respond(self, gate_id: str, answer: Json, *, client_id: str = "") -> Decided:
        """The answer to a question or a dialog."""
        return await self._command("respond", {"gate_id": gate_id, "answer": answer}, client_id, Decided)

    async def retry(self, *, client_id: str = "") -> Done:
        """Tries a failed turn again."""
        return await self._command("retry", {}, client_id, Done)

    async def resume(self, *, client_id: str = "") -> Status:
        """Wakes a suspended session, or goes on in one that is paused, stopped or completed."""
        return await self._command("resume", {}, client_id, Status)

    # --- the session

    async def cancel(self, *, client_id: str = "") -> Status:
        """Ends it and puts it away."""
        return await self._command("cancel", {}, client_id, Status)

    async def archive(self, *, client_id: str = "") -> Status:
        """Puts it away."""
        return await self._command("archive", {}, client_id, Status)

    async def delete(self) -> None:
        """Removes it and its log."""
        await self._wire.ask("DELETE", self._path, type(None))

    async def rename(self, name: str, *, client_id: str = "") -> Done:
        return await self._change({"name": name}, client_id)

    async def mark(
        self,
        *,
        pinned: bool | None = None,
        snoozed_until: int | None = None,
        read_index: int | None = None,
        client_id: str = "",
    ) -> Done:
        """Pins, snoozes, or says up to where a person has read."""
        wanted = {"pinned": pinned, "snoozed_until": snoozed_until, "read_index": read_index}
        return await self._change({name: value for name, value in wanted.items() if value is not None}, client_id)

    async def switch_model(self, model: str, *, client_id: str = "") -> Done:
        return await self._command("switch_model", {"model": model}, client_id, Done)

    async def switch_mode(self, mode: str, *, client_id: str = "") -> Done:
        return await self._change({"mode": mode}, client_id)

    async def bash(self, command: str, *, client_id: str = "") -> Done:
        """A shell command of the user's own, where the agent can run one."""
        return await self._command("bash", {"command": command}, client_id, Done)

    async def compact(self, *, client_id: str = "") -> Done:
        """Shortens the conversation."""
        return await self._command("compact", {}, client_id, Done)

    async def _change(self, body: dict[str, Any], client_id: str) -> Done:
        await self._wire.ask("PATCH", self._path, dict[str, Any], {**body, "client_id": client_id})
        return Done()

    async def _command(self, name: str, body: dict[str, Any], client_id: str, kind: type[A]) -> A:
        return await self._wire.ask("POST", f"{self._path}/{name}", kind, {**body, "client_id": client_id})
