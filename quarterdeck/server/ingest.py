"""Where agents tell us what they do: hooks and telemetry, each a transport that hands signals to a session's translator.

An observing hook is answered before anything is written: the agent waits for us and must not. A deciding one is held
until somebody decides, and is answered when the decision is durable; if the agent hangs up first, its translator hears
that too. Every answer is one write.

The secret is in the address's own header, never in the log. One secret belongs to an install (hooks that the user put
into an agent's configuration), one to each session that we started ourselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import hmac
import io
import zlib
from typing import Any

import msgspec
from aiohttp import web

from quarterdeck.deck.adoption import Adoption
from quarterdeck.deck.deck import Deck
from quarterdeck.deck.ear import Ear
from quarterdeck.deck.session import Session
from quarterdeck.errors import QuarterdeckError
from quarterdeck.harness import hooks, registry
from quarterdeck.harness.base import Signal
from quarterdeck.harness.drive import Decision
from quarterdeck.kernel.gate import Gate
from quarterdeck.server import otlp
from quarterdeck.server.statuses import BadRequest, NoToken

SECRET = "X-Quarterdeck-Secret"
_LIMIT = 8 * 1024 * 1024
_EMPTY = b"{}"
_any = msgspec.json.Decoder(Any)


def secret_for(key: str, session_id: str = "") -> str:
    """Derived from the owner's token, so that nothing more has to be kept: it changes when that does."""
    return hmac.new(key.encode(), f"ingest {session_id}".encode(), hashlib.sha256).hexdigest()


class Ingest:
    """The doors for agents. They take no token of people, and people's tokens do not open anything else here."""

    def __init__(self, deck: Deck, key: str) -> None:
        self._deck = deck
        self._key = key
        self._adoption = Adoption(deck)

    def register(self, app: web.Application) -> None:
        for agent in hooks.AGENTS:
            app.router.add_post(f"/ingest/{agent}", self._hook)
            app.router.add_post(f"/ingest/{agent}/{{id}}", self._hook)
        app.router.add_post("/ingest/otlp/v1/logs", self._logs)

    def check(self, request: web.Request) -> None:
        """Raises unless the request bears the secret of this install, or of the session that it names."""
        given = request.headers.get(SECRET, "")
        if not given:
            _, _, given = request.headers.get("Authorization", "").partition(" ")
        session_id = request.path.rstrip("/").split("/")[3:4]
        wanted = secret_for(self._key, session_id[0] if session_id and "otlp" not in request.path else "")
        if not hmac.compare_digest(given.encode(), wanted.encode()):
            raise NoToken

    # --- hooks

    async def _hook(self, request: web.Request) -> web.StreamResponse:
        agent = request.path.split("/")[2]
        payload = _json(await _body(request))
        session, ear = await self._listener(agent, request.match_info.get("id", ""), payload)
        before = {gate.id for gate in session.state.gates.open}
        ear.hear(Signal("hook", payload))
        asked = next((gate for gate in session.state.gates.open if gate.id not in before), None)
        if asked is None or not hooks.is_deciding(payload) or session.observation is None:
            return _answer(_EMPTY)
        return await self._decided(session, asked, payload)

    async def _listener(self, agent: str, session_id: str, payload: Any) -> tuple[Session, Ear]:
        if session_id:
            session = await self._deck.in_use(session_id)
            if session.launch is None:
                raise BadRequest(f"session {session_id} has no process", "It ended; nothing is to be told any more.")
            return session, session.launch
        native = hooks.native_session(payload)
        if not native:
            raise BadRequest("session_id: missing", "Send the hook's payload as the agent gave it.")
        session = await self._adoption.session(agent, native, hooks.folder(payload))
        return session, session.launch or session.observe(registry.translator(agent))

    async def _decided(self, session: Session, gate: Gate, payload: Any) -> web.StreamResponse:
        """Held until somebody decides. The gate is durable first: nobody can decide what might be lost."""
        observation = session.observation
        assert observation is not None
        try:
            decision = await observation.decision_on(gate.id)
        except asyncio.CancelledError:
            observation.hear(Signal("hook.disconnect", hooks.hung_up(payload, gate.ref)))
            raise
        told = hooks.answer(decision) if isinstance(decision, Decision) else hooks.NO_ANSWER
        observation.hear(Signal("hook.reply", hooks.replied(payload, gate.ref, told)))
        return _answer(msgspec.json.encode(told))

    # --- telemetry

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        """OTLP over HTTP: JSON or protobuf, plain or gzip. Each record goes to the conversation that it names."""
        data = await _body(request)
        is_json = request.content_type == "application/json"
        for record in otlp.from_json(_json(data)) if is_json else otlp.from_protobuf(data):
            native = otlp.conversation(record)
            if not native:
                continue
            with contextlib.suppress(QuarterdeckError):
                session = await self._adoption.session("codex", native, "")
                ear = session.launch or session.observe(registry.translator("codex"))
                ear.hear(Signal("otlp.log", record))
        kind = "application/json" if is_json else "application/x-protobuf"
        return web.Response(body=_EMPTY if is_json else b"", content_type=kind)


async def _body(request: web.Request) -> bytes:
    data = await request.read()
    if request.headers.get("Content-Encoding", "").lower() != "gzip":
        return data
    return _unzipped(data)


def _unzipped(data: bytes) -> bytes:
    """aiohttp unpacks what it knows; what still looks packed is unpacked here, and never into more than is taken."""
    if not data.startswith(b"\x1f\x8b"):
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            found = file.read(_LIMIT + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise BadRequest(f"the body is no gzip: {error}", "Send it plain, or compress it again.") from None
    if len(found) > _LIMIT:
        raise BadRequest(f"the body unpacks to more than {_LIMIT} bytes", "Send smaller batches.")
    return found


def _json(data: bytes) -> Any:
    try:
        return _any.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise BadRequest(f"the body is no JSON: {error}", "Send one JSON object in UTF-8.") from None


def _answer(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")
