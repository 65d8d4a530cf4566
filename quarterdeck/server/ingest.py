"""Receive what agents report about themselves: hooks of Claude Code and Codex, and OTLP log records of Codex.

`POST /ingest/AGENT` is for agents that the user started in a terminal, `POST /ingest/AGENT/ID` for those that a session of
ours started. Both take a secret instead of a token (auth.py).

A hook that only reports is fed to the session's translator and answered with `{}`. Its events aren't durable yet then: the
agent waits for our answer and mustn't wait for the disk. A hook that asks for a decision is held until a user or a rule
decides, and answered when the decision is durable. If the agent disconnects first, the translator learns that too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from typing import Any, cast

import msgspec
from aiohttp import web

from quarterdeck.deck.agents.observed import ObservedAgent
from quarterdeck.deck.agents.observed_sessions import ObservedSessions
from quarterdeck.deck.deck import Deck
from quarterdeck.deck.session import Session
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Json
from quarterdeck.harness import hooks, registry
from quarterdeck.harness.base import Object, Signal, text_of
from quarterdeck.kernel.gate import Gate
from quarterdeck.log.session_writer import Durability
from quarterdeck.server import otlp
from quarterdeck.server.connection import read_bytes
from quarterdeck.server.errors import BadRequest

log = logging.getLogger("quarterdeck.server")

BODY_LIMIT = 8 * 1024 * 1024
_ID_LIMIT = 200
_PATH_LIMIT = 4096
#: Deeper than anything an agent sends, and less than what a stored event can hold.
_DEPTH_LIMIT = 200
_decoder = msgspec.json.Decoder(Any)
_long_number = re.compile(rb"[0-9]{19}")


class NoProcess(QuarterdeckError):
    """A hook comes from a process that has exited."""

    code = "no_process"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"session {session_id} has no process", "Stop sending hooks for it; its agent has exited.")


class Ingest:
    """The routes for agents."""

    def __init__(self, deck: Deck) -> None:
        self._deck = deck
        self._observed_sessions = ObservedSessions(deck)

    def register(self, app: web.Application) -> None:
        for agent in hooks.AGENTS:
            app.router.add_post(f"/ingest/{agent}", self._receive_hook)
            app.router.add_post(f"/ingest/{agent}/{{id}}", self._receive_hook)
        app.router.add_post("/ingest/otlp/v1/logs", self._receive_logs)
        app.on_shutdown.append(self._release_all)

    # --- Hooks

    async def _receive_hook(self, request: web.Request) -> web.StreamResponse:
        payload = decode_object(await read_bytes(request, BODY_LIMIT))
        session_id = request.match_info.get("id", "")
        if session_id:
            session = await self._deck.load_session(session_id)
            if session.connection is None:
                raise NoProcess(session_id)
            agent = ""
        else:
            agent = request.path.split("/")[2]
            session = await self._session_of(agent, text_of(payload, "session_id"), text_of(payload, "cwd"))
        # Agents that we started ask for decisions in their own protocol; their hooks are evidence only.
        if hooks.awaits_decision(payload) and session.connection is None:
            return _json_response(await self._decide(session, agent, payload))
        self._feed_hook(session, agent, payload)
        return _json_response(hooks.NO_ANSWER)

    def _feed_hook(self, session: Session, agent: str, payload: Object) -> None:
        reader = session.connection or session.observed_agent or session.observe(registry.translator(agent))
        try:
            reader.feed(Signal("hook", payload))
        except Exception:
            # A bug in a translator must not disturb the agent, which would show our error to the user.
            log.exception("can't translate a hook", extra={"session": session.id})
        self._evict_if_idle(session)

    async def _decide(self, session: Session, agent: str, payload: Object) -> Object:
        """Wait for the decision that a hook asks for, and return the answer."""
        observed = session.observed_agent or session.observe(registry.translator(agent))
        gate = _gate_of(payload, observed.feed(Signal("hook", payload)), session)
        if gate is None:
            self._evict_if_idle(session)
            return hooks.NO_ANSWER
        try:
            decision = await observed.wait_for_decision(gate.id)
        except asyncio.CancelledError:
            # The agent has disconnected: the user answered in the terminal, or the agent exited.
            observed.feed(Signal("hook.disconnect", hooks.disconnect_data(payload, gate.ref)))
            raise
        answer = hooks.NO_ANSWER if decision is None else hooks.encode_decision(agent, payload, decision)
        reply = Signal("hook.reply", hooks.reply_data(payload, gate.ref, answer))
        # The decision is durable already, so nothing depends on this event.
        observed.feed(reply, durability=Durability.LAZY)
        return answer

    async def _session_of(self, agent: str, native_id: str, cwd: str) -> Session:
        """Return the session of a conversation that runs in a terminal. Open one if it is new.

        Raises:
            BadRequest: the conversation's id is missing or unusable.
        """
        if not native_id:
            raise BadRequest("session_id: missing", "Send the hook's payload as the agent gave it.")
        if len(native_id) > _ID_LIMIT or not native_id.isprintable():
            raise BadRequest("session_id: not an id", f"Send at most {_ID_LIMIT} printable characters.")
        is_path = cwd.startswith("/") and "\0" not in cwd and len(cwd) <= _PATH_LIMIT
        return await self._observed_sessions.session(agent, native_id, cwd if is_path else "")

    def _evict_if_idle(self, session: Session) -> None:
        if not session.state.turn.is_open:
            self._deck.services.supervisor.schedule_eviction()

    async def _release_all(self, _: web.Application) -> None:
        """Resolve every held hook without a decision at shutdown, so that each agent asks in its terminal."""
        for session in self._deck.loaded_sessions():
            if session.observed_agent is not None:
                session.observed_agent.release_all()

    # --- OTLP

    async def _receive_logs(self, request: web.Request) -> web.StreamResponse:
        """Feed OTLP log records (JSON or protobuf, plain or gzip) to the conversations that they name."""
        data = await read_bytes(request, BODY_LIMIT)
        is_json = request.content_type == "application/json"
        if not is_json and request.content_type != "application/x-protobuf":
            raise BadRequest(
                f"Content-Type: {request.content_type[:100]!r} isn't supported",
                "Send application/json or application/x-protobuf.",
            )
        # Decode all records before feeding the first: the exporter sends a refused batch again, and the first half of it
        # would then be fed twice.
        records = list(otlp.from_json(decode_object(data)) if is_json else otlp.from_protobuf(data))
        for record in records:
            with contextlib.suppress(BadRequest):
                await self._feed_record(record)
        if is_json:
            return _json_response({})
        return web.Response(body=b"", content_type="application/x-protobuf")

    async def _feed_record(self, record: Object) -> None:
        native_id = otlp.conversation(record) or self._observed_sessions.relate("codex", *otlp.between(record))
        if not native_id:
            return
        session = await self._session_of("codex", native_id, "")
        reader = session.connection or session.observed_agent or session.observe(registry.translator("codex"))
        reader.feed(Signal("otlp.log", record))


def _gate_of(payload: Object, opened: tuple[Gate, ...], session: Session) -> Gate | None:
    """Return the gate that a hook waits for.

    An agent's question was opened by an earlier hook (PreToolUse). The first PermissionRequest about it that isn't
    waiting yet gets the answer.
    """
    if opened or not hooks.is_question(payload):
        return opened[0] if opened else None
    observed: ObservedAgent | None = session.observed_agent
    questions = (gate for gate in session.state.gates.open if gate.kind == "question")
    return next((gate for gate in questions if observed is not None and not observed.is_pending(gate.id)), None)


def _json_response(body: Object) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")


# --- Bodies


def decode_object(data: bytes) -> Object:
    """Decode one JSON object that an event can hold: not too deep, and with numbers of at most 64 bits.

    Raises:
        BadRequest: the body isn't such an object.
    """
    try:
        value = _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadRequest(f"the body isn't valid JSON: {error}", "Send one JSON object in UTF-8.") from None
    if not isinstance(value, dict):
        raise BadRequest("the body isn't a JSON object", "Send one JSON object in UTF-8.")
    # Most bodies are small and flat: look into one only if it may hold something an event can't.
    if data.count(b"[") + data.count(b"{") > _DEPTH_LIMIT or _long_number.search(data):
        value = _limit_values(value, 0)
    return cast(Object, value)


def _limit_values(value: Json, depth: int) -> Any:
    """Copy a value with numbers of at most 64 bits; larger integers become floats."""
    if depth > _DEPTH_LIMIT:
        raise BadRequest("the body is nested too deep", f"Send at most {_DEPTH_LIMIT} levels.")
    if isinstance(value, dict):
        return {name: _limit_values(item, depth + 1) for name, item in cast(Object, value).items()}
    if isinstance(value, list):
        return [_limit_values(item, depth + 1) for item in cast("list[Any]", value)]
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        try:
            return float(value)
        except OverflowError:
            return None
    return value
