"""`quarterdeck.create_agent(...)` and `quarterdeck.resume(...)`: to be awaited, or entered."""

from __future__ import annotations

import os
import secrets
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, TypedDict, Unpack, cast

from quarterdeck import events as ev
from quarterdeck.engine.agent import Agent
from quarterdeck.engine.conversation import history_of
from quarterdeck.engine.errors import InvalidOption, SessionRefused
from quarterdeck.engine.journal import Journal
from quarterdeck.engine.message import Message
from quarterdeck.engine.model import Model
from quarterdeck.engine.options import Options, RetryPolicy, SubAgent
from quarterdeck.engine.plugins.base import Plugin
from quarterdeck.engine.runtime import Core, Resolve
from quarterdeck.engine.tools.base import Tool, naming_kinds
from quarterdeck.events import Body, Event, Json
from quarterdeck.log.base import NEW, Appender, Fence, Log, read_pages
from quarterdeck.log.rows import last_gate_number


class Settings(TypedDict, total=False):
    """What `create_agent` and `resume` take; docs/agent.md says what each does."""

    tools: Sequence[Tool] | None
    plugins: Sequence[Plugin]
    subagents: Mapping[str, SubAgent]
    system_prompt: str
    working_dir: str | PathLike[str]
    cwd: str | PathLike[str]
    max_turns: int
    max_tokens: int | None
    max_steering_queue: int
    event_buffer_size: int
    interrupt_immune_tools: Sequence[str]
    user_data: Json
    response_format: dict[str, Json] | None
    provider_opts: Mapping[str, Json]
    thinking: str
    mode: str
    sandbox: str
    allowed_paths: Sequence[str | PathLike[str]]
    environment: Mapping[str, str] | None
    store: str | PathLike[str] | None
    retry: RetryPolicy
    stall_after: float
    subagent_timeout: float
    hook_timeout: float
    context_limit: int | None
    compact_at: float
    keep_messages: int
    resolve: Resolve | None


class Opening:
    """`agent = await quarterdeck.create_agent(…)`, or `async with … as agent`, which stops it too."""

    def __init__(self, open_it: Callable[[], Awaitable[Agent]]) -> None:
        self._open_it = open_it
        self._agent: Agent | None = None

    def __await__(self) -> Generator[Any, None, Agent]:
        return self._open_it().__await__()

    async def __aenter__(self) -> Agent:
        self._agent = await self
        return self._agent

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._agent is not None:
            await self._agent.stop()


def create_agent(
    *,
    model: str | Model,
    messages: Sequence[Message] = (),
    session_id: str = "",
    log: Log | None = None,
    **settings: Unpack[Settings],
) -> Opening:
    """A new agent. `model` is `provider:name`, or a model of the caller's own."""

    async def opened() -> Agent:
        return await create(session_id, model, log, log, messages, settings)

    return Opening(opened)


async def create(
    session_id: str,
    model: str | Model,
    appender: Appender | None,
    log: Log | None,
    messages: Sequence[Message],
    settings: Settings,
) -> Agent:
    """Create an agent that writes its events to `appender`, and reads past ones from `log`."""
    core = _core(session_id or secrets.token_hex(8), model, appender, log, NEW, settings)
    core.journal.write(
        (ev.SessionOpened(agent="builtin", cwd=str(core.options.cwd), model=core.model_name, mode=core.mode),),
        "user",
    )
    begun: list[Body] = [_ready(core)]
    if messages:
        begun.append(ev.TurnRestored(finished=True, history=history_of(messages)))
    core.journal.write(begun)
    return await _started(core)


def resume(session_id: str, *, log: Log, model: str | Model | None = None, **settings: Unpack[Settings]) -> Opening:
    """An agent as its log tells it, however it ended: messages, todos, what its plugins remember, the texts that wait.

    A call that was cut off is told to the model as interrupted; nothing is run again by itself. `model` is another one than
    it had. NoSuchSession.
    """

    async def opened() -> Agent:
        stored = await log.session(session_id)
        events = await read_whole(log, session_id)
        return await restored(events, log, log, stored.fence, model, settings)

    return Opening(opened)


async def read_whole(log: Log, session_id: str) -> list[Event]:
    """Every event of a session."""
    return [event async for page in read_pages(log, session_id) for event in page]


async def restored(
    events: Sequence[Event],
    appender: Appender | None,
    log: Log | None,
    fence: Fence,
    model: str | Model | None,
    settings: Mapping[str, Any],
) -> Agent:
    """The agent that these events tell of, alive again."""
    first = events[0]
    opened = first.body if isinstance(first.body, ev.SessionOpened) else ev.SessionOpened(agent="builtin")
    given = dict(settings)
    given.setdefault("cwd", given.pop("working_dir", None) or opened.cwd or ".")
    given.setdefault("mode", opened.mode)
    core = _core(first.session_id, model or _last_model(events, opened), appender, log, fence, cast("Settings", given))
    trouble = _replayed(core, events)
    state = core.journal.state
    bodies: list[Body] = []
    if state.lifecycle.value == "active" and state.process.value != "none":
        # nobody said that it ended: its process was killed
        bodies.append(ev.SessionSuspended(reason="its process was gone"))
        if state.turn.is_open:
            bodies.append(ev.AgentAbort(reason="session_suspended", turn_id=state.turn.id))
    was_open = state.turn.is_open
    core.journal.write(bodies, "supervisor")
    core.journal.write((ev.SessionResumed(),), "user")
    core.journal.write((_ready(core), ev.TurnRestored(finished=not was_open), *trouble))
    return await _started(core)


def _replayed(core: Core, events: Sequence[Event]) -> list[Body]:
    """Folds all of it; the plugins get back what they had."""
    remembered: dict[str, Json] = {}
    for event in events:
        core.journal.restore(event)
        if isinstance(event.body, ev.PluginState):
            remembered[event.body.name] = event.body.state
    core.gates.count = last_gate_number(core.journal.state.gates)
    return [body for name, state in remembered.items() if (body := core.hooks.restore(name, state)) is not None]


def _last_model(events: Sequence[Event], opened: ev.SessionOpened) -> str:
    for event in reversed(events):
        if isinstance(event.body, ev.ModelSwitched):
            return event.body.to
    return opened.model


async def _started(core: Core) -> Agent:
    agent = Agent(core)
    core.journal.on_lost = core.die
    if core.hooks.has("session_start"):
        verdict = await core.hooks.ask("session_start", core.context())
        if verdict.abort is not None:
            await agent.stop()
            raise SessionRefused(verdict.abort)
    await core.journal.flush()
    return agent


def _ready(core: Core) -> Body:
    from quarterdeck.version import __version__

    return ev.AgentReady(
        native_session_id=core.session_id,
        model=core.model_name,
        version=__version__,
        resumable=core.journal.has_log,
    )


def _core(
    session_id: str, model: str | Model, appender: Appender | None, log: Log | None, fence: Fence, given: Settings
) -> Core:
    resolve = given.get("resolve") or _resolve
    opts = given.get("provider_opts") or {}
    if isinstance(model, str):
        _named(model)
        adapter, own = resolve(model, opts)
        name = model
    else:
        adapter, own = model, getattr(model, "name", "")
        name = f"{model.provider}:{own}" if own else model.provider
    buffer = _at_least(given.get("event_buffer_size", 0), 0, "event_buffer_size")
    journal = Journal(session_id, appender, log, buffer=buffer, fence=fence)
    tools = given.get("tools")
    return Core(
        journal,
        _options(given),
        model=(adapter, own, name),
        resolve=resolve,
        provider_opts=opts,
        tools=_by_name(_builtin_tools() if tools is None else tools, given.get("subagents") or {}),
        plugins=given.get("plugins") or (),
    )


def _named(model: str) -> None:
    provider, colon, name = model.partition(":")
    if not (provider and colon and name):
        raise InvalidOption(f"{model!r} is no model", "Write it as provider:name, such as anthropic:NAME.")


def _by_name(tools: Sequence[Tool], subagents: Mapping[str, SubAgent]) -> Mapping[str, Tool]:
    """Whatever starts sub-agents tells the model which kinds there are."""
    from quarterdeck.engine.subagent import SPAWNER

    named = {tool.name: tool for tool in tools}
    if subagents and SPAWNER in named:
        kinds = {name: one.description for name, one in subagents.items()}
        named[SPAWNER] = naming_kinds(named[SPAWNER], kinds)
    return named


def _resolve(name: str, options: Mapping[str, Json]) -> tuple[Model, str]:
    from quarterdeck.engine.providers import model_of

    return model_of(name, options)


def _builtin_tools() -> Sequence[Tool]:
    from quarterdeck.engine.tools import builtin_tools

    return builtin_tools()


def _refuse_unknown(given: Settings) -> None:
    unknown = next((name for name in given if name not in Settings.__annotations__), None)
    if unknown is not None:
        from difflib import get_close_matches

        near = get_close_matches(unknown, Settings.__annotations__, 1)
        hint = f"Is {near[0]} meant?" if near else f"The options are: {', '.join(sorted(Settings.__annotations__))}."
        raise InvalidOption(f"there is no option {unknown!r}", hint)


def _options(given: Settings) -> Options:
    _refuse_unknown(given)
    cwd = os.path.realpath(given.get("cwd") or given.get("working_dir") or ".")
    if not os.path.isdir(cwd):
        raise InvalidOption(f"{cwd} is no folder", "Give the folder that the agent is to work in as cwd.")
    store = given.get("store")
    return Options(
        cwd=Path(cwd),
        system_prompt=given.get("system_prompt", ""),
        max_turns=_at_least(given.get("max_turns", 100), 1, "max_turns"),
        max_tokens=given.get("max_tokens"),
        max_steering_queue=_at_least(given.get("max_steering_queue", 3), 0, "max_steering_queue"),
        thinking=given.get("thinking", ""),
        mode=given.get("mode", ""),
        sandbox=given.get("sandbox", ""),
        response_format=given.get("response_format"),
        user_data=given.get("user_data"),
        allowed_paths=tuple(Path(one).resolve() for one in given.get("allowed_paths", ())),
        environment=given.get("environment"),
        store=None if store is None else Path(store),
        subagents=given.get("subagents") or {},
        immune=frozenset(given.get("interrupt_immune_tools", ())),
        retry=given.get("retry") or RetryPolicy(),
        stall_s=given.get("stall_after", 120.0),
        subagent_s=given.get("subagent_timeout", 120.0),
        hook_s=_above_zero(given.get("hook_timeout", 60.0), "hook_timeout"),
        context_limit=given.get("context_limit"),
        compact_at=given.get("compact_at", 0.8),
        keep_messages=_at_least(given.get("keep_messages", 6), 2, "keep_messages"),
    )


def _above_zero(value: float, name: str) -> float:
    if not value > 0:
        raise InvalidOption(f"{name} cannot be {value}", "It is a number of seconds above 0.")
    return value


def _at_least(value: int, least: int, name: str) -> int:
    if value < least:
        raise InvalidOption(f"{name} cannot be {value}", f"It is at least {least}.")
    return value
