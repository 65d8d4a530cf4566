"""Fold events to OpenTelemetry spans, following the semantic conventions for generative AI.

    invoke_agent AGENT      a turn, or the work of a sub-agent
      chat MODEL            a request to the model
        execute_tool TOOL   a call that the reply asked for

A turn is a trace. Ids are hashes of the events, so the same events always give the same spans. There is no clock and no I/O:
times come from the events. The open spans can be stored and restored (`SpanFold.open`), so a restart loses nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct, field

from quarterdeck import events as ev
from quarterdeck.events import Body, Event, TokenUsage
from quarterdeck.events.catalogue import NAMES

Operation: TypeAlias = Literal["invoke_agent", "chat", "execute_tool"]
AgentPath: TypeAlias = tuple[str, ...]

_json = msgspec.json.Encoder().encode


class SpanAgent(Struct, frozen=True):
    """The agent of a session."""

    name: str = ""
    version: str = ""
    model: str = ""


class Span(Struct, kw_only=True):
    """A span. It is open until `ended` is set.

    `telemetry.json` stores open spans, so renaming a field would lose those of a running session.
    """

    operation: Operation
    #: Name of the agent, the model or the tool.
    subject: str
    session: str
    agent: SpanAgent
    trace: str
    id: str
    #: Times in milliseconds since the epoch.
    began: int
    parent: str = ""
    ended: int = 0
    #: The sub-agents that it belongs to, outermost first. Empty for the main agent.
    path: AgentPath = ()
    #: Call id of a tool.
    call: str = ""
    #: Message id of a request's reply.
    reply: str = ""
    #: What it failed with.
    error: str = ""
    model: str = ""
    #: Usage by message id. An agent may report a message again with higher numbers.
    usage: dict[str, TokenUsage] = field(default_factory=dict[str, TokenUsage])
    #: More attributes.
    extra: dict[str, Any] = field(default_factory=dict[str, Any], name="told")

    @property
    def name(self) -> str:
        return f"{self.operation} {self.subject}".rstrip()


class SpanFold:
    """Folds events, in order, to finished spans.

    `describe` returns the agent of a session. With `contents`, prompts, replies, arguments and results are attributes too.
    """

    def __init__(
        self,
        describe: Callable[[str], SpanAgent],
        contents: bool = False,
        unfinished: dict[str, list[Span]] | None = None,
        prompts: dict[str, str] | None = None,
    ) -> None:
        self._describe = describe
        self._contents = contents
        #: Session id → its open spans.
        self.open = unfinished if unfinished is not None else {}
        #: Session id → the prompt of a turn that hasn't begun yet.
        self.prompts = prompts if prompts is not None else {}

    def fold(self, event: Event) -> list[Span]:
        """Return the spans that this event finishes."""
        step = _STEPS.get(type(event.body))
        return [] if step is None else step(self, event, event.body)

    # --- Agents

    def agent_start(self, event: Event, body: Body) -> list[Span]:
        finished: list[Span] = []
        if self._agent(event, body.agent_path) is not None:
            if body.agent_path:
                return finished
            # The last turn never ended. Its calls may still run in the background.
            finished = self._close(event, lambda span: not span.path and span.operation != "execute_tool", "unfinished")
        self._open_agent(event, body.agent_path, self._nearest_agent(event, body.agent_path[:-1]))
        return finished

    def _open_agent(self, event: Event, path: AgentPath, parent: Span | None) -> Span:
        span = self._open(event, "invoke_agent", self._describe(event.session_id).name, path, parent)
        prompt = self.prompts.pop(event.session_id, "") if not path else ""
        if prompt:
            span.extra["gen_ai.input.messages"] = _message("user", prompt)
        return span

    def prompt_received(self, event: Event, body: ev.PromptReceived) -> list[Span]:
        if self._contents:
            self.prompts[event.session_id] = body.text
        return []

    def subagent_start(self, event: Event, body: ev.SubagentStart) -> list[Span]:
        path = (*body.agent_path, body.child_sid)
        if self._agent(event, path) is None:
            parent = self._call(event, body.call_id) or self._nearest_agent(event, body.agent_path)
            span = self._open_agent(event, path, parent)
            span.extra["gen_ai.agent.id"] = body.child_sid
            if self._contents and body.description:
                span.extra["gen_ai.agent.description"] = body.description
        return []

    def subagent_end(self, event: Event, body: ev.SubagentEnd) -> list[Span]:
        path = (*body.agent_path, body.child_sid)
        span = self._agent(event, path)
        if span is not None and not body.ok:
            span.error = "failed"
        return self._end_path(event, path)

    def background_ended(self, event: Event, body: ev.BackgroundEnded) -> list[Span]:
        paths = [span.path for span in self.open.get(event.session_id, ()) if span.path[-1:] == (body.id,)]
        return self._end_path(event, paths[0]) if body.kind == "subagent" and paths else []

    def _end_path(self, event: Event, path: AgentPath) -> list[Span]:
        """Close the spans of a sub-agent and of its own sub-agents."""
        agent = self._agent(event, path)
        inner = self._close(event, lambda span: span is not agent and span.path[: len(path)] == path, "unfinished")
        return inner + self._close(event, lambda span: span is agent)

    def turn_failed(self, event: Event, body: ev.TurnFailed) -> list[Span]:
        span = self._agent(event, body.agent_path)
        if span is not None:
            span.error = body.kind
        return []

    def agent_end(self, event: Event, body: ev.AgentEnd) -> list[Span]:
        span = self._agent(event, body.agent_path)
        if span is None:
            return []
        if body.outcome == "failed":
            span.error = span.error or "failed"
        else:
            span.error = ""
        if body.usage is not None:
            span.usage = {"": body.usage}
        return self._end_turn(event, body.agent_path, body.outcome)

    def agent_abort(self, event: Event, body: ev.AgentAbort) -> list[Span]:
        return self._end_turn(event, body.agent_path, "aborted")

    def _end_turn(self, event: Event, path: AgentPath, outcome: str) -> list[Span]:
        """Close the turn and its last request. Calls that still run continue in the background."""
        span = self._agent(event, path)
        if span is None:
            return []
        span.extra["quarterdeck.outcome"] = outcome
        error = "" if outcome == "completed" else span.error or outcome
        request = self._close(event, lambda other: other.path == path and other.operation == "chat", error)
        return request + self._close(event, lambda other: other is span)

    def close_all(self, event: Event, _: Body) -> list[Span]:
        """Close all spans of a session whose process exited, or that isn't active any more."""
        self.prompts.pop(event.session_id, None)
        return self._close(event, lambda _: True, "process_exited")

    # --- Requests

    def request_start(self, event: Event, body: ev.RequestStart) -> list[Span]:
        agent = self._agent(event, body.agent_path)
        if agent is None:
            return []
        finished = self._close(event, lambda span: span.path == body.agent_path and span.operation == "chat")
        model = body.model or agent.agent.model
        span = self._open(event, "chat", model, body.agent_path, agent)
        span.model = model
        return finished

    def response_complete(self, event: Event, body: ev.ResponseComplete) -> list[Span]:
        span = self._end_request(event, body, body.message_id)
        if span is not None:
            if body.stop_reason:
                span.extra["gen_ai.response.finish_reasons"] = [body.stop_reason]
            if self._contents:
                text = "".join(block.text for block in body.blocks if block.kind == "text")
                span.extra["gen_ai.output.messages"] = _message("assistant", text, body.stop_reason)
        return []

    def message_aborted(self, event: Event, body: ev.MessageAborted) -> list[Span]:
        self._end_request(event, body, body.message_id, "aborted")
        return []

    def stream_error(self, event: Event, body: Body) -> list[Span]:
        self._end_request(event, body, "", "stream_error")
        return []

    def context_overflow(self, event: Event, body: Body) -> list[Span]:
        self._end_request(event, body, "", "context_overflow")
        return []

    def _end_request(self, event: Event, body: Body, reply: str, error: str = "") -> Span | None:
        """Set the end of a request, but keep it open: agents report its usage afterwards."""
        span = self._request(event, body.agent_path)
        if span is not None:
            span.ended, span.reply, span.error = event.at, reply or span.reply, error
        return span

    def usage(self, event: Event, body: ev.Usage) -> list[Span]:
        key = body.message_id or f"#{event.index}"
        agent, request = self._agent(event, body.agent_path), self._request(event, body.agent_path)
        if agent is not None:
            agent.usage[key] = body.tokens
        if request is not None and body.message_id in ("", request.reply or body.message_id):
            request.usage[key] = body.tokens
            if body.model:
                request.extra["gen_ai.response.model"] = body.model
        return []

    # --- Tools

    def tool_start(self, event: Event, body: ev.ToolExecutionStart) -> list[Span]:
        agent = self._nearest_agent(event, body.agent_path)
        if agent is None or self._call(event, body.call_id) is not None:
            return []
        parent = self._request(event, body.agent_path) or agent
        span = self._open(event, "execute_tool", body.name, body.agent_path, parent)
        span.call = body.call_id
        if self._contents and body.args is not None:
            span.extra["gen_ai.tool.call.arguments"] = _text(body.args)
        return []

    def tool_end(self, event: Event, body: ev.ToolExecutionEnd) -> list[Span]:
        span = self._call(event, body.call_id)
        if span is not None and self._contents and body.result is not None:
            span.extra["gen_ai.tool.call.result"] = _text(body.result)
        return self._end_call(event, body.call_id, "" if body.ok else "tool_error")

    def tool_killed(self, event: Event, body: ev.ToolKilled) -> list[Span]:
        return self._end_call(event, body.call_id, "killed")

    def tool_blocked(self, event: Event, body: ev.ToolBlocked) -> list[Span]:
        return self._end_call(event, body.call_id, "blocked")

    def tool_skipped(self, event: Event, body: ev.ToolSkippedForSteering) -> list[Span]:
        return self._end_call(event, body.call_id, "skipped")

    def _end_call(self, event: Event, call_id: str, error: str) -> list[Span]:
        return self._close(event, lambda span: span.operation == "execute_tool" and span.call == call_id, error)

    # --- Open spans

    def _open(self, event: Event, operation: Operation, subject: str, path: AgentPath, parent: Span | None) -> Span:
        key = f"{event.session_id} {event.index} {event.at}"
        span = Span(
            operation=operation,
            subject=subject,
            session=event.session_id,
            agent=self._describe(event.session_id),
            trace=parent.trace if parent is not None else _digest(f"trace {key}", 16),
            id=_digest(f"span {key}", 8),
            parent=parent.id if parent is not None else "",
            began=event.at,
            path=path,
        )
        self.open.setdefault(event.session_id, []).append(span)
        return span

    def _close(self, event: Event, matches: Callable[[Span], bool], error: str = "") -> list[Span]:
        """Remove and return the matching spans. `error` applies only to those whose end isn't set yet."""
        closed: list[Span] = []
        remaining: list[Span] = []
        for span in self.open.get(event.session_id, ()):
            (closed if matches(span) else remaining).append(span)
        for span in closed:
            if not span.ended:
                span.ended, span.error = event.at, span.error or error
        if remaining:
            self.open[event.session_id] = remaining
        else:
            self.open.pop(event.session_id, None)
        return closed

    def _find(self, event: Event, matches: Callable[[Span], bool]) -> Span | None:
        return next((span for span in reversed(self.open.get(event.session_id, ())) if matches(span)), None)

    def _agent(self, event: Event, path: AgentPath) -> Span | None:
        return self._find(event, lambda span: span.operation == "invoke_agent" and span.path == path)

    def _request(self, event: Event, path: AgentPath) -> Span | None:
        return self._find(event, lambda span: span.operation == "chat" and span.path == path)

    def _call(self, event: Event, call_id: str) -> Span | None:
        if not call_id:
            return None
        return self._find(event, lambda span: span.operation == "execute_tool" and span.call == call_id)

    def _nearest_agent(self, event: Event, path: AgentPath) -> Span | None:
        """Return the open span of this agent, or of the nearest one that started it."""
        while True:
            span = self._agent(event, path)
            if span is not None or not path:
                return span
            path = path[:-1]


_STEPS: dict[type[Body], Callable[[SpanFold, Event, Any], list[Span]]] = {
    ev.PromptReceived: SpanFold.prompt_received,
    ev.AgentStart: SpanFold.agent_start,
    ev.AgentEnd: SpanFold.agent_end,
    ev.AgentAbort: SpanFold.agent_abort,
    ev.TurnFailed: SpanFold.turn_failed,
    ev.RequestStart: SpanFold.request_start,
    ev.ResponseComplete: SpanFold.response_complete,
    ev.MessageAborted: SpanFold.message_aborted,
    ev.StreamError: SpanFold.stream_error,
    ev.ContextOverflow: SpanFold.context_overflow,
    ev.Usage: SpanFold.usage,
    ev.ToolExecutionStart: SpanFold.tool_start,
    ev.ToolExecutionEnd: SpanFold.tool_end,
    ev.ToolKilled: SpanFold.tool_killed,
    ev.ToolBlocked: SpanFold.tool_blocked,
    ev.ToolSkippedForSteering: SpanFold.tool_skipped,
    ev.SubagentStart: SpanFold.subagent_start,
    ev.SubagentEnd: SpanFold.subagent_end,
    ev.BackgroundEnded: SpanFold.background_ended,
    ev.ProcessExited: SpanFold.close_all,
    ev.SessionSuspended: SpanFold.close_all,
    ev.SessionArchived: SpanFold.close_all,
    ev.SessionFailed: SpanFold.close_all,
    ev.SessionDeleted: SpanFold.close_all,
}

#: Types of the events that are folded.
TYPES = frozenset(NAMES[kind] for kind in _STEPS)


def _digest(text: str, size: int) -> str:
    return hashlib.blake2b(text.encode(), digest_size=size).hexdigest()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _json(value).decode()


def _message(role: str, text: str, reason: str = "") -> str:
    """Encode a message as the conventions define it."""
    message: dict[str, Any] = {"role": role, "parts": [{"type": "text", "content": text}]}
    return _json([message | {"finish_reason": reason} if reason else message]).decode()


# --- Attributes

#: Prefix of a model's or an agent's name → its provider.
_PROVIDERS = (
    ("claude", "anthropic"),
    ("gpt", "openai"),
    ("o1", "openai"),
    ("o3", "openai"),
    ("o4", "openai"),
    ("codex", "openai"),
    ("gemini", "gcp.gemini"),
    ("grok", "x_ai"),
    ("deepseek", "deepseek"),
    ("mistral", "mistral_ai"),
)
UNKNOWN = "_OTHER"


def provider(model: str, agent: str) -> str:
    """Return the provider of a model, or else of an agent that has only one provider."""
    for name in (model.rpartition("/")[2].lower(), agent.lower()):
        for prefix, provider_name in _PROVIDERS:
            if name.startswith(prefix):
                return provider_name
    return UNKNOWN


def attributes(span: Span) -> dict[str, Any]:
    """Return the attributes of a span. Those outside the conventions begin with `quarterdeck.`."""
    agent = span.agent
    values: dict[str, Any] = {
        "gen_ai.operation.name": span.operation,
        "gen_ai.provider.name": provider(span.model or agent.model, agent.name),
        "gen_ai.conversation.id": span.session,
        "gen_ai.agent.name": agent.name,
        "gen_ai.agent.version": agent.version,
        "gen_ai.request.model": span.model or agent.model,
        "gen_ai.response.id": span.reply,
        "quarterdeck.agent_path": list(span.path),
        "error.type": span.error,
    }
    if span.operation == "execute_tool":
        values |= {"gen_ai.tool.name": span.subject, "gen_ai.tool.call.id": span.call, "gen_ai.tool.type": "function"}
        del values["gen_ai.request.model"]
    return {name: value for name, value in (values | _usage(span) | span.extra).items() if value not in ("", [])}


def _usage(span: Span) -> dict[str, Any]:
    if not span.usage:
        return {}
    parts = span.usage.values()
    read, write = sum(usage.cache_read for usage in parts), sum(usage.cache_write for usage in parts)
    costs = [usage.cost_usd for usage in parts if usage.cost_usd is not None]
    return {
        # The conventions count cached tokens as input too; our four numbers don't overlap.
        "gen_ai.usage.input_tokens": sum(usage.input for usage in parts) + read + write,
        "gen_ai.usage.output_tokens": sum(usage.output for usage in parts),
        "gen_ai.usage.cache_read.input_tokens": read,
        "gen_ai.usage.cache_creation.input_tokens": write,
    } | ({"quarterdeck.cost_usd": sum(costs)} if costs else {})
