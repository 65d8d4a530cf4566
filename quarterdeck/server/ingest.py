"""Where agents tell us what they do: hooks and telemetry, each a transport that hands signals to a session's translator.

An observing hook is answered before anything is written: the agent waits for us and must not. A deciding one is held
until somebody decides, and is answered when the decision is durable; if the agent hangs up first, its translator hears
that too. Every answer is one write.

The secret is in a header of its own, never in the address. One secret belongs to an install (hooks that the user put into
an agent's configuration), one to each session that we started ourselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

import msgspec
from aiohttp import web

from quarterdeck.deck.adoption import Adoption
from quarterdeck.deck.deck import Deck
from quarterdeck.deck.observation import Observation
from quarterdeck.deck.session import Session
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Json
from quarterdeck.harness import hooks, registry
from quarterdeck.harness.base import Object, Signal
from quarterdeck.kernel.gate import Gate
from quarterdeck.server import otlp
from quarterdeck.server.bodies import body_of
from quarterdeck.server.statuses import BadRequest

SECRET = "X-Quarterdeck-Secret"
_LIMIT = 8 * 1024 * 1024
_NAME_LIMIT = 200
_PATH_LIMIT = 4096
#: Deeper than anything an agent says, and far from what a stored event cannot hold.
_DEEPEST = 200
_EMPTY = b"{}"
_any = msgspec.json.Decoder(Any)
_long_number = re.compile(rb"[0-9]{19}")


class NoProcess(QuarterdeckError):
    """A hook of a process that is gone."""

    code = "no_process"

    def __init__(self, session_id: str) -> None:
        super().__init__(f"session {session_id} has no process", "It ended; nothing is to be told any more.")


@lru_cache(1024)
def secret_for(key: str, session_id: str = "") -> str:
    """Derived from the owner's token, so that nothing more has to be kept: it changes when that does."""
    return hmac.new(key.encode(), f"ingest {session_id}".encode(), hashlib.sha256).hexdigest()


class Ingest:
    """The doors for agents. They take no token of people, and their secrets open nothing else. `key` is asked each time:
    the owner's token may be another one now."""

    def __init__(self, deck: Deck, key: Callable[[], str]) -> None:
        self._deck = deck
        self._key = key
        self._adoption = Adoption(deck)
        self._holding: dict[Observation, int] = {}

    def register(self, app: web.Application) -> None:
        for agent in hooks.AGENTS:
            app.router.add_post(f"/ingest/{agent}", self._hook)
            app.router.add_post(f"/ingest/{agent}/{{id}}", self._hook)
        app.router.add_post("/ingest/otlp/v1/logs", self._logs)
        app.on_shutdown.append(self._let_go)

    def knows(self, request: web.Request) -> bool:
        """Whether the request bears the secret of the session that it names, or of this install if it names none."""
        given = request.headers.get(SECRET, "")
        if not given:
            _, _, given = request.headers.get("Authorization", "").partition(" ")
        wanted = secret_for(self._key(), request.match_info.get("id", ""))
        return hmac.compare_digest(given.encode(errors="surrogateescape"), wanted.encode())

    # --- hooks

    async def _hook(self, request: web.Request) -> web.StreamResponse:
        agent = request.path.split("/")[2]
        payload = _object(await body_of(request, _LIMIT))
        session_id = request.match_info.get("id", "")
        if session_id:
            return await self._of_ours(session_id, payload)
        session = await self._observed(agent, hooks.native_session(payload), hooks.folder(payload))
        if session.launch is not None:
            session.launch.hear(Signal("hook", payload))
            return _answer(_EMPTY)
        observation = session.observation or session.observe(registry.translator(agent))
        gate = _gate_of(payload, observation.hear_asking(Signal("hook", payload)), session)
        if gate is None or not hooks.is_deciding(payload):
            if not session.state.turn.is_open:
                self._deck.house.at_rest()
            return _answer(_EMPTY)
        return await self._decided(agent, observation, gate, payload)

    async def _of_ours(self, session_id: str, payload: Object) -> web.StreamResponse:
        """From a process that we started, which asks us in its own protocol: what its hooks tell is evidence only."""
        session = await self._deck.in_use(session_id)
        if session.launch is None:
            raise NoProcess(session_id)
        session.launch.hear(Signal("hook", payload))
        return _answer(_EMPTY)

    async def _observed(self, agent: str, native: str, cwd: str) -> Session:
        if not native:
            raise BadRequest("session_id: missing", "Send the hook's payload as the agent gave it.")
        if len(native) > _NAME_LIMIT or not native.isprintable():
            raise BadRequest("session_id: not a name", f"Send at most {_NAME_LIMIT} printable characters.")
        is_path = cwd.startswith("/") and "\0" not in cwd and len(cwd) <= _PATH_LIMIT
        return await self._adoption.session(agent, native, cwd if is_path else "")

    async def _decided(self, agent: str, observation: Observation, gate: Gate, payload: Object) -> web.StreamResponse:
        """Held until somebody decides, here or there."""
        self._holding[observation] = self._holding.get(observation, 0) + 1
        try:
            decision = await observation.decision_on(gate.id)
        except asyncio.CancelledError:
            observation.hear(Signal("hook.disconnect", hooks.hung_up(payload, gate.ref)))
            raise
        finally:
            self._holding[observation] -= 1
            if not self._holding[observation]:
                del self._holding[observation]
        told = hooks.NO_ANSWER if decision is None else hooks.answer(agent, payload, decision)
        observation.hear(Signal("hook.reply", hooks.replied(payload, gate.ref, told)))
        return _answer(msgspec.json.encode(told))

    async def _let_go(self, _: web.Application) -> None:
        """The server leaves: whoever waits for a decision of ours asks on its terminal."""
        for observation in list(self._holding):
            observation.release()

    # --- telemetry

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        """OTLP over HTTP: JSON or protobuf, plain or gzip. Each record goes to the conversation that it names."""
        data = await body_of(request, _LIMIT)
        is_json = request.content_type == "application/json"
        if not is_json and request.content_type != "application/x-protobuf":
            raise BadRequest(
                f"Content-Type: {request.content_type[:100]!r} is not taken",
                "Send application/json or application/x-protobuf.",
            )
        # all of it is read before the first record is told: half a batch would come twice
        for record in list(otlp.from_json(_object(data)) if is_json else otlp.from_protobuf(data)):
            with contextlib.suppress(BadRequest):
                await self._record(record)
        kind = "application/json" if is_json else "application/x-protobuf"
        return web.Response(body=_EMPTY if is_json else b"", content_type=kind)

    async def _record(self, record: Object) -> None:
        native = otlp.conversation(record) or self._adoption.relate("codex", *otlp.between(record))
        if not native:
            return
        session = await self._observed("codex", native, "")
        ear = session.launch or session.observation or session.observe(registry.translator("codex"))
        ear.hear(Signal("otlp.log", record))


def _gate_of(payload: Object, asked: tuple[Gate, ...], session: Session) -> Gate | None:
    """What this hook asks. A question was told by the hook before it; whoever asks it first waits for the answer."""
    if asked or not hooks.is_question(payload):
        return asked[0] if asked else None
    seen = session.observation
    questions = (gate for gate in session.state.gates.open if gate.kind == "question")
    return next((gate for gate in questions if seen is not None and not seen.is_held_for(gate.id)), None)


def _object(data: bytes) -> Object:
    """One JSON object that an event can hold: not endlessly deep, and without numbers that no log can write."""
    try:
        found = _any.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadRequest(f"the body is no JSON: {error}", "Send one JSON object in UTF-8.") from None
    if not isinstance(found, dict):
        raise BadRequest("the body is no JSON object", "Send one JSON object in UTF-8.")
    if data.count(b"[") + data.count(b"{") > _DEEPEST or _long_number.search(data):
        found = _tamed(found, 0)
    return cast(Object, found)


def _tamed(found: Json, depth: int) -> Any:
    """The same with numbers of at most 64 bits; larger ones are as exact as a float is."""
    if depth > _DEEPEST:
        raise BadRequest("the body is nested too deep", f"At most {_DEEPEST} levels are taken.")
    if isinstance(found, dict):
        return {name: _tamed(one, depth + 1) for name, one in cast(Object, found).items()}
    if isinstance(found, list):
        return [_tamed(one, depth + 1) for one in cast("list[Any]", found)]
    if isinstance(found, int) and not -(1 << 63) <= found < 1 << 63:
        return _as_float(found)
    return found


def _as_float(found: int) -> float | None:
    try:
        return float(found)
    except OverflowError:
        return None


def _answer(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")
