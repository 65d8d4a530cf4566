"""Provide a scripted model, tools and a recorder of events for tests of the turn loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from quarterdeck.engine.agent import Agent
from quarterdeck.engine.factory import create_agent
from quarterdeck.engine.journal import Journal
from quarterdeck.engine.model import (
    CallBegun,
    CallPiece,
    Chunk,
    Finished,
    ModelError,
    Request,
    TextPiece,
    ThinkingPiece,
    ToolSpec,
)
from quarterdeck.engine.tools.base import Outcome, Tool, ToolContext
from quarterdeck.events import Body, Event, Origin, TokenUsage, encode_body
from quarterdeck.kernel.view import View, fold, fold_all
from quarterdeck.log.session_writer import SessionWriter
from tests.fuzz.legal import violations

PATIENCE_S = 20
USAGE = TokenUsage(input=10, output=5, cost_usd=0.001)

Step = Chunk | Sequence[Chunk] | Exception | asyncio.Event | Callable[[], Any]


class Script:
    """A model that returns scripted replies, one per request. It waits for each `asyncio.Event` in a reply."""

    provider = "scripted"
    name = "one"

    def __init__(self, *replies: Iterable[Step], name: str = "one") -> None:
        self.replies = [list(reply) for reply in replies]
        self.requests: list[Request] = []
        self.closed = 0
        self.name = name

    async def stream(self, request: Request) -> AsyncGenerator[Sequence[Chunk]]:
        self.requests.append(request)
        assert self.replies, "the script has no more replies"
        try:
            for step in self.replies.pop(0):
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, asyncio.Event):
                    await step.wait()
                elif isinstance(step, Sequence):
                    yield step
                elif callable(step):
                    step()
                else:
                    yield [step]
        finally:
            self.closed += 1


def text(*pieces: str, usage: TokenUsage | None = USAGE) -> list[Step]:
    """Script a reply with this text, one chunk per piece."""
    return [*(TextPiece(piece) for piece in pieces), Finished("end", usage)]


def calls(
    *tool_calls: tuple[str, str] | tuple[str, str, str], say: str = "", usage: TokenUsage | None = USAGE
) -> list[Step]:
    """Script a reply that calls these tools: (call id, name[, arguments])."""
    chunks: list[Step] = [TextPiece(say)] if say else []
    for index, (call_id, name, *args) in enumerate(tool_calls):
        chunks += [CallBegun(index, call_id, name), CallPiece(index, args[0] if args else "{}")]
    return [*chunks, Finished("tools", usage)]


def thinking(*pieces: str) -> list[Step]:
    return [ThinkingPiece(piece) for piece in pieces]


def tool(name: str, run: Callable[[dict[str, Any], ToolContext], Any] | None = None, **options: Any) -> Tool:
    """Create a tool that returns its name and arguments, or what `run` returns."""

    async def running(args: dict[str, Any], context: ToolContext) -> Outcome:
        if run is None:
            return Outcome(f"{name} {args}")
        value = run(args, context)
        if asyncio.iscoroutine(value):
            value = await value
        return value if isinstance(value, Outcome) else Outcome(str(value))

    return Tool(spec=ToolSpec(name, f"does {name}", {"type": "object"}), run=running, **options)


class Gate:
    """A tool that blocks until `go` is set, and records when it began and whether it was cancelled."""

    def __init__(self, name: str = "wait", **options: Any) -> None:
        self.began = asyncio.Event()
        self.go = asyncio.Event()
        self.ended = asyncio.Event()
        self.cancelled = False
        self.tool = tool(name, self._run, **options)

    async def _run(self, args: dict[str, Any], context: ToolContext) -> str:
        self.began.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        finally:
            self.ended.set()
        return "let go"


class Heard:
    """A subscriber that collects all events of an agent."""

    def __init__(self, agent: Agent, since: int | None = None) -> None:
        self.events: list[Event] = []
        self._changed = asyncio.Event()
        self._stream = agent.subscribe(since=since)
        self.task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for event in self._stream:
            self.events.append(event)
            self._changed.set()

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]

    def of(self, *types: str) -> list[Event]:
        return [event for event in self.events if event.type in types]

    def bodies(self, *types: str) -> list[Any]:
        return [event.body for event in self.of(*types)]

    def one(self, name: str) -> Any:
        (only,) = self.bodies(name)
        return only

    async def until(self, name: str, count: int = 1) -> Any:
        """Wait for the `count`th event of this type."""
        async with asyncio.timeout(PATIENCE_S):
            while len(bodies := self.bodies(name)) < count:
                self._changed.clear()
                await self._changed.wait()
        return bodies[count - 1]

    async def end(self) -> list[Event]:
        async with asyncio.timeout(PATIENCE_S):
            await self.task
        return self.events


def opened(model: Any, **settings: Any) -> Any:
    """Create an agent, by default without tools."""
    settings.setdefault("tools", ())
    return create_agent(model=model, **settings)


def run(work: Callable[[], Any]) -> None:
    """Run a test with a time limit."""
    asyncio.run(asyncio.wait_for(work(), PATIENCE_S))


def passing(message: str = "overloaded", retry_after: float | None = 0) -> ModelError:
    return ModelError("rate_limit", message, is_transient=True, retry_after=retry_after)


def plain(event: Event) -> bytes:
    return encode_body(event.body)


@contextmanager
def judged() -> Iterator[list[str]]:
    """Check every batch that any agent writes meanwhile against the product's own rules; the list names violations."""
    problems: list[str] = []
    views: dict[int, View] = {}
    journals: list[Journal] = []
    events: list[Event] = []
    write, restore, add = Journal.write, Journal.restore, SessionWriter._add

    def collecting(writer: SessionWriter, batch: Any) -> None:
        add(writer, batch)
        events.extend(batch.events)

    def judging(journal: Journal, bodies: Iterable[Body], origin: Origin = "engine") -> None:
        # Keep a reference to the journal, so that its id isn't reused.
        journals.append(journal)
        events.clear()
        write(journal, bodies, origin)
        if not events:
            return
        view = views[id(journal)] = fold_all(events, views.get(id(journal), View()))
        if view.state != journal.state:
            problems.append(f"{events[-1].type}: the journal's state differs from the view's")
        if view.state.lifecycle.value == "active" and view.state.process.value == "up":
            problems.extend(f"after {[event.type for event in events]}: {problem}" for problem in violations(view))

    def restoring(journal: Journal, event: Event) -> None:
        journals.append(journal)
        views[id(journal)] = fold(views.get(id(journal), View()), event)
        restore(journal, event)

    Journal.write, Journal.restore = judging, restoring  # type: ignore[method-assign]
    SessionWriter._add = collecting  # type: ignore[method-assign]
    try:
        yield problems
    finally:
        Journal.write, Journal.restore = write, restore  # type: ignore[method-assign]
        SessionWriter._add = add  # type: ignore[method-assign]
