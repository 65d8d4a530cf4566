"""Create agents (`create_agent`) and restore them from their logs (`resume`)."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from types import TracebackType
from typing import Any, Unpack, cast

from quarterdeck import events as ev
from quarterdeck.engine.agent import Agent
from quarterdeck.engine.conversation import history_of
from quarterdeck.engine.errors import InvalidOption, SessionRefused
from quarterdeck.engine.hooks import PluginContext
from quarterdeck.engine.journal import Journal
from quarterdeck.engine.model import Message, Model, SelectedModel
from quarterdeck.engine.options import AgentOptions, ModelResolver, SubAgent, resolve_options
from quarterdeck.engine.plugins.base import Plugin
from quarterdeck.engine.runtime import AgentRuntime
from quarterdeck.engine.subagent import SPAWNER
from quarterdeck.engine.tools.base import Tool, describe_kinds
from quarterdeck.events import Body, Event, Json
from quarterdeck.log.base import NEW, Appender, Fence, Log, read_pages
from quarterdeck.log.rows import last_gate_number
from quarterdeck.version import __version__


class PendingAgent:
    """An agent that is created when this is awaited.

    Write `agent = await create_agent(…)`, or `async with create_agent(…) as agent`, which also stops it.
    """

    def __init__(self, create: Callable[[], Awaitable[Agent]]) -> None:
        self._create = create
        self._agent: Agent | None = None

    def __await__(self) -> Generator[Any, None, Agent]:
        return self._create().__await__()

    async def __aenter__(self) -> Agent:
        self._agent = await self
        return self._agent

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._agent is not None:
            await self._agent.stop()


# ------------------------------------------------------------------------------------------------------------- create


def create_agent(
    *,
    model: str | Model,
    messages: Sequence[Message] = (),
    session_id: str = "",
    log: Log | None = None,
    **options: Unpack[AgentOptions],
) -> PendingAgent:
    """Create an agent.

    Args:
        model: `provider:name`, or a model of your own.
        messages: a conversation to start from.
        session_id: the id of the new session. By default a random one.
        log: where the agent writes its events. Without a log, nothing of the agent outlives it.
        **options: see `AgentOptions` and docs/agent.md.

    Raises:
        InvalidOption: an option is unknown or invalid.
        SessionRefused: a plugin rejected the session.
    """

    return PendingAgent(lambda: create_new_agent(session_id, model, options, messages, appender=log, log=log))


async def create_new_agent(
    session_id: str,
    model: str | Model,
    options: AgentOptions,
    messages: Sequence[Message] = (),
    *,
    appender: Appender | None = None,
    log: Log | None = None,
) -> Agent:
    """Create an agent that writes its events to `appender`. Without a log, its past events can't be read back."""
    runtime = _create_runtime(session_id or secrets.token_hex(8), model, appender, log, NEW, options)
    opened = ev.SessionOpened(
        agent="builtin", cwd=str(runtime.options.cwd), model=runtime.model.full_name, mode=runtime.mode
    )
    runtime.journal.write((opened,), "user")
    bodies: list[Body] = [_ready_event(runtime)]
    if messages:
        bodies.append(ev.TurnRestored(finished=True, history=history_of(messages)))
    runtime.journal.write(bodies)
    return await _start_agent(runtime)


def _create_runtime(
    session_id: str,
    model: str | Model,
    appender: Appender | None,
    log: Log | None,
    fence: Fence,
    options: AgentOptions,
) -> AgentRuntime:
    resolved = resolve_options(options)
    resolver = options.get("resolve") or _resolve_provider
    journal = Journal(session_id, appender, log, buffer=resolved.event_buffer_size, fence=fence)
    tools = options.get("tools")
    plugins: Sequence[Plugin] = options.get("plugins") or ()
    return AgentRuntime(
        journal,
        resolved,
        model=_select_model(model, resolver, options.get("provider_opts") or {}),
        resolver=resolver,
        tools=_tools_by_name(_builtin_tools() if tools is None else tools, resolved.subagents),
        plugins=plugins,
    )


def _select_model(model: str | Model, resolver: ModelResolver, provider_opts: Mapping[str, Json]) -> SelectedModel:
    if isinstance(model, str):
        provider, colon, name = model.partition(":")
        if not (provider and colon and name):
            hint = "Write it as provider:name, for example anthropic:NAME."
            raise InvalidOption(f"{model!r} isn't the name of a model", hint)
        adapter, name = resolver(model, provider_opts)
        return SelectedModel(adapter, name, model, provider_opts)
    name = getattr(model, "name", "")
    full_name = f"{model.provider}:{name}" if name else model.provider
    return SelectedModel(model, name, full_name, provider_opts)


def _tools_by_name(tools: Sequence[Tool], subagents: Mapping[str, SubAgent]) -> Mapping[str, Tool]:
    """Index tools by name, and add the kinds of sub-agents to the description of the tool that starts them."""
    by_name = {tool.name: tool for tool in tools}
    if subagents and SPAWNER in by_name:
        kinds = {name: kind.description for name, kind in subagents.items()}
        by_name[SPAWNER] = describe_kinds(by_name[SPAWNER], kinds)
    return by_name


def _resolve_provider(name: str, options: Mapping[str, Json]) -> tuple[Model, str]:
    # Imported here because providers load an HTTP client, which an agent with a model of the caller's own doesn't need.
    from quarterdeck.engine.providers import create_model

    return create_model(name, options)


def _builtin_tools() -> Sequence[Tool]:
    from quarterdeck.engine.tools import builtin_tools

    return builtin_tools()


def _ready_event(runtime: AgentRuntime) -> Body:
    return ev.AgentReady(
        native_session_id=runtime.session_id,
        model=runtime.model.full_name,
        version=__version__,
        resumable=runtime.journal.has_log,
    )


async def _start_agent(runtime: AgentRuntime) -> Agent:
    """Run the `session_start` hooks and wait until the first events are durable."""
    agent = Agent(runtime)
    runtime.journal.on_lost = runtime.die
    verdict = await runtime.hooks.run("session_start", PluginContext(runtime, None))
    if verdict.abort is not None:
        await agent.stop()
        raise SessionRefused(verdict.abort)
    await runtime.journal.flush()
    return agent


# ------------------------------------------------------------------------------------------------------------- resume


def resume(
    session_id: str, *, log: Log, model: str | Model | None = None, **options: Unpack[AgentOptions]
) -> PendingAgent:
    """Restore an agent from its log, however it ended: its messages, todos, plugin states and queued prompts.

    A tool call that was cut off is reported to the model as interrupted. No call is repeated. The agent uses the model, mode
    and folder that it had, unless the arguments name others.

    Raises:
        NoSuchSession: the log has no such session.
        InvalidOption: an option is unknown or invalid.
        SessionRefused: a plugin rejected the session.
    """

    async def restore() -> Agent:
        stored = await log.session(session_id)
        events = await read_all_events(log, session_id)
        return await restore_agent(events, stored.fence, model, options, appender=log, log=log)

    return PendingAgent(restore)


async def read_all_events(log: Log, session_id: str) -> list[Event]:
    """Read every event of a session.

    Raises:
        LogUnavailable: the log can't be read.
    """
    return [event async for page in read_pages(log, session_id) for event in page]


async def restore_agent(
    events: Sequence[Event],
    fence: Fence,
    model: str | Model | None,
    options: Mapping[str, Any],
    *,
    appender: Appender | None = None,
    log: Log | None = None,
) -> Agent:
    """Restore an agent from the events of its session."""
    first = events[0]
    opened = first.body if isinstance(first.body, ev.SessionOpened) else ev.SessionOpened(agent="builtin")
    merged = dict(options)
    merged.setdefault("cwd", merged.pop("working_dir", None) or opened.cwd or ".")
    merged.setdefault("mode", opened.mode)
    selected = model or _last_model(events, opened)
    runtime = _create_runtime(first.session_id, selected, appender, log, fence, cast("AgentOptions", merged))
    notices = _replay(runtime, events)
    state = runtime.journal.state
    was_turn_open = state.turn.is_open
    bodies: list[Body] = []
    if state.lifecycle.value == "active" and state.process.value != "none":
        # The log doesn't say how the agent ended, so its process was killed.
        bodies.append(ev.SessionSuspended(reason="its process was gone"))
        if was_turn_open:
            bodies.append(ev.AgentAbort(reason="session_suspended", turn_id=state.turn.id))
    runtime.journal.write(bodies, "supervisor")
    runtime.journal.write((ev.SessionResumed(),), "user")
    runtime.journal.write((_ready_event(runtime), ev.TurnRestored(finished=not was_turn_open), *notices))
    return await _start_agent(runtime)


def _replay(runtime: AgentRuntime, events: Sequence[Event]) -> list[Body]:
    """Fold all events and restore the plugins. Return notices about plugins that failed to load their state."""
    states: dict[str, Json] = {}
    for event in events:
        runtime.journal.restore(event)
        if isinstance(event.body, ev.PluginState):
            states[event.body.name] = event.body.state
    runtime.approvals.last_gate_number = last_gate_number(runtime.journal.state.gates)
    notices = [runtime.hooks.restore(name, state) for name, state in states.items()]
    return [notice for notice in notices if notice is not None]


def _last_model(events: Sequence[Event], opened: ev.SessionOpened) -> str:
    for event in reversed(events):
        if isinstance(event.body, ev.ModelSwitched):
            return event.body.to
    return opened.model
