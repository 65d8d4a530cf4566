"""Where agents tell us what they do: hooks and telemetry, each a transport that hands signals to a session's translator.

An observing hook is answered before anything is read into it, let alone written: the agent waits for us and must not. A
deciding one is held until somebody decides, and is answered when the decision is durable; if the agent hangs up first, its
translator hears that too. Every answer is one write. Whatever comes, what came before it is heard first.

The secret is in a header of its own, never in the address. One secret belongs to an install (hooks that the user put into
an agent's configuration), one to each session that we started ourselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import re
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple, cast

import msgspec
from aiohttp import web

from quarterdeck.deck.agents.observed import ObservedAgent
from quarterdeck.deck.agents.observed_sessions import ObservedSessions
from quarterdeck.deck.deck import Deck
from quarterdeck.deck.session import Session
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Json
from quarterdeck.harness import hooks, registry
from quarterdeck.harness.base import Object, Signal
from quarterdeck.harness.driver import Decision
from quarterdeck.kernel.gate import Gate
from quarterdeck.server import otlp
from quarterdeck.server.bodies import body_of
from quarterdeck.server.errors import BadRequest

log = logging.getLogger("quarterdeck.server")

SECRET = "X-Quarterdeck-Secret"
LIMIT = 8 * 1024 * 1024
#: Hooks are heard as soon as they are answered, but not more often than this: many at once cost a third of one by one.
_PAUSE_S = 0.005
_NAME_LIMIT = 200
_PATH_LIMIT = 4096
#: Deeper than anything an agent says, and far from what a stored event cannot hold.
_DEEPEST = 200
EMPTY = b"{}"
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


class Hook(NamedTuple):
    """One that was posted, and whose it is. `agent` is '' where the session was named: that one has a process of ours."""

    agent: str
    payload: Object
    session: Session


class Ingest:
    """The doors for agents. They take no token of people, and their secrets open nothing else. `key` is asked each time:
    the owner's token may be another one now."""

    def __init__(self, deck: Deck, key: Callable[[], str]) -> None:
        self._deck = deck
        self._key = key
        self._adoption = ObservedSessions(deck)
        self._holding: dict[ObservedAgent, int] = {}
        self._told: list[tuple[Session, Callable[[], None]]] = []
        self._due: asyncio.Handle | None = None
        self._caught_up = 0.0
        self._late: set[asyncio.Task[None]] = set()

    def register(self, app: web.Application) -> None:
        for agent in hooks.AGENTS:
            app.router.add_post(f"/ingest/{agent}", self._hook)
            app.router.add_post(f"/ingest/{agent}/{{id}}", self._hook)
        app.router.add_post("/ingest/otlp/v1/logs", self._logs)
        app.on_shutdown.append(self._let_go)

    def knows(self, request: web.BaseRequest, session_id: str) -> bool:
        """Whether the request bears the secret of the session that it names, or of this install if it names none."""
        given = request.headers.get(SECRET, "")
        if not given:
            _, _, given = request.headers.get("Authorization", "").partition(" ")
        wanted = secret_for(self._key(), session_id)
        return hmac.compare_digest(given.encode(errors="surrogateescape"), wanted.encode())

    # --- hooks

    def at_hand(self, agent: str, session_id: str, data: bytes) -> Hook | None:
        """A hook that can be taken without waiting for anything; None for any other, which `_hook` then looks at."""
        try:
            payload = _object(data)
        except BadRequest:
            return None
        if session_id:
            session = self._deck.at_hand(session_id)
            return None if session is None or session.connection is None else Hook("", payload, session)
        session = self._adoption.at_hand(agent, hooks.native_session(payload))
        return None if session is None else Hook(agent, payload, session)

    def is_deciding(self, hook: Hook) -> bool:
        """Whether its answer has to be waited for. An agent of ours asks in its own protocol."""
        return hooks.is_deciding(hook.payload) and hook.session.connection is None

    def take(self, hook: Hook) -> None:
        """Heard as soon as its answer is on its way: at once, or a little later where many come."""
        self._told_later(hook.session, partial(self._hear, hook))
        if self._due is None:
            self._due = asyncio.get_running_loop().call_at(self._caught_up + _PAUSE_S, self.catch_up)

    async def decided(self, hook: Hook) -> bytes:
        """The answer to one that asks."""
        self.catch_up()
        agent, payload, session = hook
        observation = session.observed_agent or session.observe(registry.translator(agent))
        gate = _gate_of(payload, observation.hear_asking(Signal("hook", payload)), session)
        if gate is None:
            self._rests(session)
            return EMPTY
        decision = await self._decision(observation, gate, payload)
        told = hooks.NO_ANSWER if decision is None else hooks.answer(agent, payload, decision)
        reply = Signal("hook.reply", hooks.replied(payload, gate.ref, told))
        # while the agent reads its answer; its next word finds this one heard
        self._told_later(session, partial(observation.hear_patiently, reply))
        asyncio.get_running_loop().call_soon(self.catch_up)
        return msgspec.json.encode(told)

    def _told_later(self, session: Session, work: Callable[[], None]) -> None:
        session.users += 1  # it stays in memory
        self._told.append((session, work))

    def catch_up(self) -> None:
        """Hears what was answered already."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if not self._told:
            return
        self._caught_up = asyncio.get_running_loop().time()
        told, self._told = self._told, []
        for session, work in told:
            session.users -= 1
            try:
                work()
            except Exception:
                log.exception("a hook could not be read", extra={"session": session.id})

    def _hear(self, hook: Hook) -> None:
        agent, payload, session = hook
        if session.connection is not None:
            session.connection.hear(Signal("hook", payload))
        elif not agent:
            return  # its process ended in this very moment
        elif session.state.lifecycle.value == "active":
            (session.observed_agent or session.observe(registry.translator(agent))).hear(Signal("hook", payload))
            self._rests(session)
        else:  # it was put away in this very moment: what its agent tells belongs to another one
            task = asyncio.get_running_loop().create_task(self._hear_elsewhere(agent, payload))
            self._late.add(task)
            task.add_done_callback(self._late.discard)

    async def _hear_elsewhere(self, agent: str, payload: Object) -> None:
        with contextlib.suppress(QuarterdeckError):
            self._hear(Hook(agent, payload, await self._observed(agent, payload)))

    def _rests(self, session: Session) -> None:
        if not session.state.turn.is_open:
            self._deck.services.at_rest()

    async def _hook(self, request: web.Request) -> web.StreamResponse:
        agent = request.path.split("/")[2]
        payload = _object(await body_of(request, LIMIT))
        session_id = request.match_info.get("id", "")
        if session_id:
            hook = Hook("", payload, await self._ours(session_id))
        else:
            hook = Hook(agent, payload, await self._observed(agent, payload))
        if self.is_deciding(hook):
            return _answer(await self.decided(hook))
        self.take(hook)
        return _answer(EMPTY)

    async def _ours(self, session_id: str) -> Session:
        """Of a process that we started, which asks us in its own protocol: what its hooks tell is evidence only."""
        session = await self._deck.in_use(session_id)
        if session.connection is None:
            raise NoProcess(session_id)
        return session

    async def _observed(self, agent: str, payload: Object) -> Session:
        return await self._adopted(agent, hooks.native_session(payload), hooks.folder(payload))

    async def _adopted(self, agent: str, native: str, cwd: str) -> Session:
        if not native:
            raise BadRequest("session_id: missing", "Send the hook's payload as the agent gave it.")
        if len(native) > _NAME_LIMIT or not native.isprintable():
            raise BadRequest("session_id: not a name", f"Send at most {_NAME_LIMIT} printable characters.")
        is_path = cwd.startswith("/") and "\0" not in cwd and len(cwd) <= _PATH_LIMIT
        return await self._adoption.session(agent, native, cwd if is_path else "")

    async def _decision(self, observation: ObservedAgent, gate: Gate, payload: Object) -> Decision | None:
        """Held until somebody decides, here or there."""
        self._holding[observation] = self._holding.get(observation, 0) + 1
        try:
            return await observation.decision_on(gate.id)
        except asyncio.CancelledError:
            observation.hear(Signal("hook.disconnect", hooks.hung_up(payload, gate.ref)))
            raise
        finally:
            self._holding[observation] -= 1
            if not self._holding[observation]:
                del self._holding[observation]

    async def _let_go(self, _: web.Application) -> None:
        """The server leaves: whoever waits for a decision of ours asks on its terminal."""
        self.catch_up()
        for observation in list(self._holding):
            observation.release()

    # --- telemetry

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        """OTLP over HTTP: JSON or protobuf, plain or gzip. Each record goes to the conversation that it names."""
        data = await body_of(request, LIMIT)
        is_json = request.content_type == "application/json"
        if not is_json and request.content_type != "application/x-protobuf":
            raise BadRequest(
                f"Content-Type: {request.content_type[:100]!r} is not taken",
                "Send application/json or application/x-protobuf.",
            )
        self.catch_up()
        # all of it is read before the first record is told: half a batch would come twice
        for record in list(otlp.from_json(_object(data)) if is_json else otlp.from_protobuf(data)):
            with contextlib.suppress(BadRequest):
                await self._record(record)
        kind = "application/json" if is_json else "application/x-protobuf"
        return web.Response(body=EMPTY if is_json else b"", content_type=kind)

    async def _record(self, record: Object) -> None:
        native = otlp.conversation(record) or self._adoption.relate("codex", *otlp.between(record))
        if not native:
            return
        session = await self._adopted("codex", native, "")
        ear = session.connection or session.observed_agent or session.observe(registry.translator("codex"))
        ear.hear(Signal("otlp.log", record))


def _gate_of(payload: Object, asked: tuple[Gate, ...], session: Session) -> Gate | None:
    """What this hook asks. A question was told by the hook before it; whoever asks it first waits for the answer."""
    if asked or not hooks.is_question(payload):
        return asked[0] if asked else None
    seen = session.observed_agent
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
