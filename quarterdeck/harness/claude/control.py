"""Read the control protocol of stream-json, and everything that we write to Claude Code's standard input.

Requests go both ways. Ours are remembered until they are answered, because an answer names only the id of its request.
Claude Code's requests (can_use_tool, elicitation, hook_callback) are answered by us, and our answers are read here too.
"""

from __future__ import annotations

from typing import Any, cast

from quarterdeck import events as ev
from quarterdeck.events import Image, Json
from quarterdeck.harness.base import Object, int_of, list_of, object_of, text_of
from quarterdeck.harness.claude import tables
from quarterdeck.harness.claude.approvals import Approvals
from quarterdeck.harness.claude.calls import Calls
from quarterdeck.harness.claude.hooks import Hooks
from quarterdeck.harness.claude.session import ClaudeSession, Prompts
from quarterdeck.harness.claude.subagents import Subagents, joined_texts

#: Recognises an answer whose request wasn't seen: a field of the answer → our request.
_REQUEST_BY_FIELD = (
    ("current_permission_mode", "initialize"),
    ("totalTokens", "get_context_usage"),
    ("still_queued", "interrupt"),
    ("model", "set_model"),
    ("mode", "set_permission_mode"),
    ("title", "generate_session_title"),
)


class Control:
    """Reads requests and answers in both directions."""

    def __init__(
        self,
        session: ClaudeSession,
        prompts: Prompts,
        calls: Calls,
        approvals: Approvals,
        subagents: Subagents,
        hooks: Hooks,
    ) -> None:
        self.session = session
        self.tracker = session.tracker
        self.prompts = prompts
        self.calls = calls
        self.approvals = approvals
        self.subagents = subagents
        self.hooks = hooks
        self.reset()

    def reset(self) -> None:
        #: Our requests that aren't answered yet → their subtype.
        self._requests: dict[str, str] = {}
        #: Hook callbacks that wait for our answer → (event, what it is about).
        self._callbacks: dict[str, tuple[str, str]] = {}

    # ------------------------------------------------------------------------------------------------------------------
    # What we send
    # ------------------------------------------------------------------------------------------------------------------

    def read_stdin(self, data: Json) -> bool:
        line = object_of(data)
        kind = text_of(line, "type")
        if kind == "user":
            self._read_text(line)
        elif kind == "control_request":
            self._requests[text_of(line, "request_id")] = text_of(object_of(line, "request"), "subtype")
            self.session.is_steerable = True
        elif kind == "control_response":
            self._read_our_answer(object_of(line, "response"))
        return kind in ("user", "control_request", "control_response") or kind in tables.QUIET_INPUT

    def _read_text(self, line: Object) -> None:
        if self.session.has_exited:
            return
        text, images = content_of(object_of(line, "message").get("content"))
        # Texts on stdin can be sent at any time, so the agent can be steered.
        self.session.is_steerable = True
        if text or images:
            self.prompts.send(text, text_of(line, "uuid") or self.session.new_id("prompt"), images)

    def _read_our_answer(self, response: Object) -> None:
        """Apply our answer to a request of Claude Code."""
        request_id, answer = text_of(response, "request_id"), object_of(response, "response")
        call_id = self.approvals.requests.pop(request_id, None)
        callback = self._callbacks.pop(request_id, None)
        if self.session.has_exited:
            return
        if call_id is not None:
            self.approvals.apply_decision(call_id, answer)
        elif callback is not None:
            event, ref = callback
            self.hooks.apply_answer(event, ref, answer)
        elif request_id in self.approvals.form_requests:
            ref = self.approvals.form_requests.pop(request_id)
            self.approvals.close_form(ref, text_of(answer, "action"), answer.get("content"))

    # ------------------------------------------------------------------------------------------------------------------
    # What Claude Code asks
    # ------------------------------------------------------------------------------------------------------------------

    def read_request(self, line: Object) -> bool:
        request_id, request = text_of(line, "request_id"), object_of(line, "request")
        kind = text_of(request, "subtype")
        if kind == "can_use_tool":
            self._can_use_tool(request_id, request)
        elif kind == "elicitation":
            self.approvals.form_requests[request_id] = self.approvals.open_form(request, request_id)
        elif kind == "hook_callback":
            self._hook_callback(request_id, request)
        return True

    def _can_use_tool(self, request_id: str, request: Object) -> None:
        tool, args = text_of(request, "tool_name"), request.get("input")
        agent_id = text_of(request, "agent_id")
        path = self.subagents.path_of(agent_id) if agent_id else ()
        call_id = text_of(request, "tool_use_id") or self.calls.find(tool, args, path) or self.session.new_id("call")
        known = self.tracker.calls.get(call_id)
        self.approvals.requests[request_id] = call_id
        self.approvals.open(
            call_id,
            tool,
            args,
            known.path if known is not None else path,
            list_of(request, "permission_suggestions"),
            text_of(request, "decision_reason", "description"),
        )

    def _hook_callback(self, request_id: str, request: Object) -> None:
        """Read a hook of the SDK. Its envelope names the call, also where the payload doesn't."""
        payload = object_of(request, "input")
        event = text_of(payload, "hook_event_name")
        if event == "PermissionRequest" and text_of(request, "tool_use_id"):
            payload = {**payload, "tool_use_id": request["tool_use_id"]}
        pending = self.hooks.pending
        last = pending[-1] if pending else None
        self.hooks.read(payload)
        # The answer arrives as a control_response with this request's id, so it isn't matched like a hook's reply.
        ref = pending.pop().ref if pending and pending[-1] is not last else ""
        self._callbacks[request_id] = (event, ref)

    def read_cancel(self, line: Object) -> bool:
        """Withdraw a request that was answered elsewhere, or whose turn is over."""
        request_id = text_of(line, "request_id")
        for requests in (self.approvals.requests, self.approvals.form_requests):
            ref = requests.pop(request_id, None)
            if ref is not None:
                self.approvals.withdraw(ref)
        return True

    # ------------------------------------------------------------------------------------------------------------------
    # What Claude Code answers
    # ------------------------------------------------------------------------------------------------------------------

    def read_answer(self, line: Object) -> bool:
        response = object_of(line, "response")
        request_id, answer = text_of(response, "request_id"), object_of(response, "response")
        by_field = next((name for field, name in _REQUEST_BY_FIELD if field in answer), "")
        request = self._requests.pop(request_id, None) or by_field
        if text_of(response, "subtype") == "error":
            self.tracker.emit(ev.CommandFailed(command_id=request_id, message=text_of(response, "error")))
        elif request == "initialize":
            self._initialized(answer)
        elif request == "interrupt":
            self.session.interrupted = self.session.turn_is_open
        elif request == "set_model":
            self.session.set_model(text_of(answer, "model"))
        elif request == "set_permission_mode":
            self.session.set_mode(text_of(answer, "mode"))
        elif request == "get_context_usage":
            self._context_usage(answer)
        elif request == "generate_session_title":
            self.session.set_title(text_of(answer, "title"))
        return True

    def _initialized(self, answer: Object) -> None:
        self.session.is_steerable = True
        if text_of(object_of(answer, "account"), "subscriptionType"):
            self.session.billing = "plan"
        self.session.report_ready(version=text_of(answer, "claude_code_version"))
        self.session.set_mode(text_of(answer, "current_permission_mode"))

    def _context_usage(self, answer: Object) -> None:
        tokens, limit = int_of(answer, "totalTokens"), int_of(answer, "maxTokens", "rawMaxTokens")
        percent = 100 * tokens / limit if limit else None
        self.tracker.emit(ev.ContextUsage(tokens=tokens, limit=limit or None, percent=percent))


def content_of(content: Json) -> tuple[str, tuple[Image, ...]]:
    """Return the text and the images of a message's content, which is a string or a list of blocks."""
    if isinstance(content, str):
        return content, ()
    if not isinstance(content, list):
        return "", ()
    blocks = cast("list[Any]", content)
    sources = [object_of(block, "source") for block in blocks if object_of(block).get("type") == "image"]
    images = tuple(Image(media_type=text_of(source, "media_type"), data=text_of(source, "data")) for source in sources)
    return joined_texts(blocks), images
