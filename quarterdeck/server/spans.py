"""Turns, requests and tools as spans, by OpenTelemetry's conventions for generative AI: a fold over events.

    invoke_agent AGENT      a turn, or a sub-agent at work
      chat MODEL            a request to the model
        execute_tool TOOL   a call that this reply asked for

A turn is a trace. Ids are made from the events themselves, so the same events always give the same spans. No clock and no
I/O: times are the events' own, and what is open can be kept and taken up again (`open`), so a restart loses nothing.
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
Path: TypeAlias = tuple[str, ...]

_json = msgspec.json.Encoder().encode


class Agent(Struct, frozen=True):
    """Who is at work in a session."""

    name: str = ""
    version: str = ""
    model: str = ""


class Span(Struct, kw_only=True):
    """Open until it has an end. `told` are the attributes that are known only from what happened in it."""

    operation: Operation
    #: The agent, the model or the tool.
    subject: str
    session: str
    agent: Agent
    trace: str
    id: str
    began: int
    parent: str = ""
    ended: int = 0
    path: Path = ()
    call: str = ""
    #: The reply that a request brought, and the class of the error that it ended with.
    reply: str = ""
    error: str = ""
    model: str = ""
    #: By message: what is said again replaces what was said before.
    usage: dict[str, TokenUsage] = field(default_factory=dict[str, TokenUsage])
    told: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def name(self) -> str:
        return f"{self.operation} {self.subject}".rstrip()


class Spans:
    """`fold` takes events in order and gives the spans that are whole. `describe` says who is at work in a session.

    With `contents` prompts, replies, arguments and results are attributes too.
    """

    def __init__(
        self,
        describe: Callable[[str], Agent],
        contents: bool = False,
        unfinished: dict[str, list[Span]] | None = None,
        prompts: dict[str, str] | None = None,
    ) -> None:
        self._describe = describe
        self._contents = contents
        #: session → its spans that are not whole yet
        self.open = unfinished if unfinished is not None else {}
        #: session → the prompt whose turn has not begun
        self.prompts = prompts if prompts is not None else {}

    def fold(self, event: Event) -> list[Span]:
        """The spans that this event made whole."""
        step = _STEPS.get(type(event.body))
        return [] if step is None else step(self, event, event.body)

    # --- agents

    def agent_start(self, event: Event, body: Body) -> list[Span]:
        done: list[Span] = []
        found = self._agent(event, body.agent_path)
        if found is not None:
            if body.agent_path:
                return done
            done = self._close(event, lambda span: not span.path and span.operation != "execute_tool", "unfinished")
        self._begin_agent(event, body.agent_path, self._above(event, body.agent_path[:-1]))
        return done

    def _begin_agent(self, event: Event, path: Path, above: Span | None) -> Span:
        span = self._opened(event, "invoke_agent", self._describe(event.session_id).name, path, above)
        prompt = self.prompts.pop(event.session_id, "") if not path else ""
        if prompt:
            span.told["gen_ai.input.messages"] = _message("user", prompt)
        return span

    def prompt_received(self, event: Event, body: ev.PromptReceived) -> list[Span]:
        if self._contents:
            self.prompts[event.session_id] = body.text
        return []

    def subagent_start(self, event: Event, body: ev.SubagentStart) -> list[Span]:
        path = (*body.agent_path, body.child_sid)
        if self._agent(event, path) is None:
            above = self._call(event, body.call_id) or self._above(event, body.agent_path)
            span = self._begin_agent(event, path, above)
            span.told["gen_ai.agent.id"] = body.child_sid
            if self._contents and body.description:
                span.told["gen_ai.agent.description"] = body.description
        return []

    def subagent_end(self, event: Event, body: ev.SubagentEnd) -> list[Span]:
        path = (*body.agent_path, body.child_sid)
        span = self._agent(event, path)
        if span is not None and not body.ok:
            span.error = "failed"
        return self._end_path(event, path)

    def background_ended(self, event: Event, body: ev.BackgroundEnded) -> list[Span]:
        chosen = [one.path for one in self.open.get(event.session_id, ()) if one.path[-1:] == (body.id,)]
        return self._end_path(event, chosen[0]) if body.kind == "subagent" and chosen else []

    def _end_path(self, event: Event, path: Path) -> list[Span]:
        """A sub-agent, and whatever of it is still open, its own sub-agents too."""
        agent = self._agent(event, path)
        done = self._close(event, lambda span: span is not agent and span.path[: len(path)] == path, "unfinished")
        return done + self._close(event, lambda span: span is agent)

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

    def _end_turn(self, event: Event, path: Path, outcome: str) -> list[Span]:
        """The turn and its last request. Calls that still run go on in the background."""
        span = self._agent(event, path)
        if span is None:
            return []
        span.told["quarterdeck.outcome"] = outcome
        error = "" if outcome == "completed" else span.error or outcome
        done = self._close(event, lambda one: one.path == path and one.operation == "chat", error)
        return done + self._close(event, lambda one: one is span)

    def over(self, event: Event, _: Body) -> list[Span]:
        """The process is gone, or the session is put away: nothing of it goes on."""
        self.prompts.pop(event.session_id, None)
        return self._close(event, lambda _: True, "process_exited")

    # --- requests

    def request_start(self, event: Event, body: ev.RequestStart) -> list[Span]:
        agent = self._agent(event, body.agent_path)
        if agent is None:
            return []
        done = self._close(event, lambda one: one.path == body.agent_path and one.operation == "chat")
        model = body.model or agent.agent.model
        span = self._opened(event, "chat", model, body.agent_path, agent)
        span.model = model
        return done

    def response_complete(self, event: Event, body: ev.ResponseComplete) -> list[Span]:
        span = self._answered(event, body, body.message_id)
        if span is not None:
            if body.stop_reason:
                span.told["gen_ai.response.finish_reasons"] = [body.stop_reason]
            if self._contents:
                text = "".join(block.text for block in body.blocks if block.kind == "text")
                span.told["gen_ai.output.messages"] = _message("assistant", text, body.stop_reason)
        return []

    def message_aborted(self, event: Event, body: ev.MessageAborted) -> list[Span]:
        self._answered(event, body, body.message_id, "aborted")
        return []

    def stream_error(self, event: Event, body: Body) -> list[Span]:
        self._answered(event, body, "", "stream_error")
        return []

    def context_overflow(self, event: Event, body: Body) -> list[Span]:
        self._answered(event, body, "", "context_overflow")
        return []

    def _answered(self, event: Event, body: Body, reply: str, error: str = "") -> Span | None:
        """A request has its answer, but waits for what it used, which agents tell afterwards."""
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
                request.told["gen_ai.response.model"] = body.model
        return []

    # --- tools

    def tool_start(self, event: Event, body: ev.ToolExecutionStart) -> list[Span]:
        agent = self._above(event, body.agent_path)
        if agent is None or self._call(event, body.call_id) is not None:
            return []
        above = self._request(event, body.agent_path) or agent
        span = self._opened(event, "execute_tool", body.name, body.agent_path, above)
        span.call = body.call_id
        if self._contents and body.args is not None:
            span.told["gen_ai.tool.call.arguments"] = _text(body.args)
        return []

    def tool_end(self, event: Event, body: ev.ToolExecutionEnd) -> list[Span]:
        span = self._call(event, body.call_id)
        if span is not None and self._contents and body.result is not None:
            span.told["gen_ai.tool.call.result"] = _text(body.result)
        return self._end_call(event, body.call_id, "" if body.ok else "tool_error")

    def tool_killed(self, event: Event, body: ev.ToolKilled) -> list[Span]:
        return self._end_call(event, body.call_id, "killed")

    def tool_blocked(self, event: Event, body: ev.ToolBlocked) -> list[Span]:
        return self._end_call(event, body.call_id, "blocked")

    def tool_skipped(self, event: Event, body: ev.ToolSkippedForSteering) -> list[Span]:
        return self._end_call(event, body.call_id, "skipped")

    def _end_call(self, event: Event, call: str, error: str) -> list[Span]:
        return self._close(event, lambda one: one.operation == "execute_tool" and one.call == call, error)

    # --- what is open

    def _opened(self, event: Event, operation: Operation, subject: str, path: Path, above: Span | None) -> Span:
        key = f"{event.session_id} {event.index} {event.at}"
        span = Span(
            operation=operation,
            subject=subject,
            session=event.session_id,
            agent=self._describe(event.session_id),
            trace=above.trace if above is not None else _digest(f"trace {key}", 16),
            id=_digest(f"span {key}", 8),
            parent=above.id if above is not None else "",
            began=event.at,
            path=path,
        )
        self.open.setdefault(event.session_id, []).append(span)
        return span

    def _close(self, event: Event, chosen: Callable[[Span], bool], error: str = "") -> list[Span]:
        """These are whole. One that had its end already keeps it; `error` is of those that had none."""
        done: list[Span] = []
        kept: list[Span] = []
        for span in self.open.get(event.session_id, ()):
            (done if chosen(span) else kept).append(span)
        for span in done:
            if not span.ended:
                span.ended, span.error = event.at, span.error or error
        if kept:
            self.open[event.session_id] = kept
        else:
            self.open.pop(event.session_id, None)
        return done

    def _find(self, event: Event, wanted: Callable[[Span], bool]) -> Span | None:
        return next((one for one in reversed(self.open.get(event.session_id, ())) if wanted(one)), None)

    def _agent(self, event: Event, path: Path) -> Span | None:
        return self._find(event, lambda one: one.operation == "invoke_agent" and one.path == path)

    def _request(self, event: Event, path: Path) -> Span | None:
        return self._find(event, lambda one: one.operation == "chat" and one.path == path)

    def _call(self, event: Event, call: str) -> Span | None:
        return self._find(event, lambda one: one.operation == "execute_tool" and one.call == call) if call else None

    def _above(self, event: Event, path: Path) -> Span | None:
        """The nearest agent that is at work: this one, or whoever started it."""
        while True:
            span = self._agent(event, path)
            if span is not None or not path:
                return span
            path = path[:-1]


_STEPS: dict[type[Body], Callable[[Spans, Event, Any], list[Span]]] = {
    ev.PromptReceived: Spans.prompt_received,
    ev.AgentStart: Spans.agent_start,
    ev.AgentEnd: Spans.agent_end,
    ev.AgentAbort: Spans.agent_abort,
    ev.TurnFailed: Spans.turn_failed,
    ev.RequestStart: Spans.request_start,
    ev.ResponseComplete: Spans.response_complete,
    ev.MessageAborted: Spans.message_aborted,
    ev.StreamError: Spans.stream_error,
    ev.ContextOverflow: Spans.context_overflow,
    ev.Usage: Spans.usage,
    ev.ToolExecutionStart: Spans.tool_start,
    ev.ToolExecutionEnd: Spans.tool_end,
    ev.ToolKilled: Spans.tool_killed,
    ev.ToolBlocked: Spans.tool_blocked,
    ev.ToolSkippedForSteering: Spans.tool_skipped,
    ev.SubagentStart: Spans.subagent_start,
    ev.SubagentEnd: Spans.subagent_end,
    ev.BackgroundEnded: Spans.background_ended,
    ev.ProcessExited: Spans.over,
    ev.SessionSuspended: Spans.over,
    ev.SessionArchived: Spans.over,
    ev.SessionFailed: Spans.over,
    ev.SessionDeleted: Spans.over,
}

#: The events that matter here, by their names in the log.
TYPES = frozenset(NAMES[kind] for kind in _STEPS)


def _digest(text: str, size: int) -> str:
    return hashlib.blake2b(text.encode(), digest_size=size).hexdigest()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _json(value).decode()


def _message(role: str, text: str, reason: str = "") -> str:
    """A message as the conventions write it."""
    message: dict[str, Any] = {"role": role, "parts": [{"type": "text", "content": text}]}
    return _json([message | {"finish_reason": reason} if reason else message]).decode()


# --- attributes

#: How models are called, and who offers them. What is not known is not claimed.
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
    """By the model's name, or by the agent that has only one provider."""
    for name in (model.rpartition("/")[2].lower(), agent.lower()):
        for prefix, owner in _PROVIDERS:
            if name.startswith(prefix):
                return owner
    return UNKNOWN


def attributes(span: Span) -> dict[str, Any]:
    """By the conventions; what is ours alone begins with `quarterdeck.`."""
    agent = span.agent
    found: dict[str, Any] = {
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
        found |= {"gen_ai.tool.name": span.subject, "gen_ai.tool.call.id": span.call, "gen_ai.tool.type": "function"}
        del found["gen_ai.request.model"]
    return {name: value for name, value in (found | _used(span) | span.told).items() if value not in ("", [])}


def _used(span: Span) -> dict[str, Any]:
    """The conventions count cached input as input; our four buckets never overlap."""
    if not span.usage:
        return {}
    used = span.usage.values()
    read, write = sum(one.cache_read for one in used), sum(one.cache_write for one in used)
    costs = [one.cost_usd for one in used if one.cost_usd is not None]
    return {
        "gen_ai.usage.input_tokens": sum(one.input for one in used) + read + write,
        "gen_ai.usage.output_tokens": sum(one.output for one in used),
        "gen_ai.usage.cache_read.input_tokens": read,
        "gen_ai.usage.cache_creation.input_tokens": write,
    } | ({"quarterdeck.cost_usd": sum(costs)} if costs else {})
