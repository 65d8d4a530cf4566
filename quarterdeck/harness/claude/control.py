"""The control protocol, and what we write to the agent's input.

Requests go both ways. Ours are remembered until they are answered, because an answer names only the request's id; those of
Claude Code (can_use_tool, elicitation, hook_callback) are answered by us, and our answers are read here too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from quarterdeck import events as ev
from quarterdeck.events import Image, Json
from quarterdeck.harness.base import Object, int_of, list_of, object_of, text_of
from quarterdeck.harness.claude import tables
from quarterdeck.harness.claude.agents import texts_in
from quarterdeck.harness.claude.replies import Replies

#: What an answer looks like whose request we did not see.
_BY_FIELD = (
    ("current_permission_mode", "initialize"),
    ("totalTokens", "get_context_usage"),
    ("still_queued", "interrupt"),
    ("model", "set_model"),
    ("mode", "set_permission_mode"),
    ("title", "generate_session_title"),
)


class Control(Replies):
    """Requests and answers in both directions."""

    def new_process(self) -> None:
        Replies.new_process(self)
        self.commands: dict[str, str] = {}
        #: callbacks that wait for our answer → (event, what it is about)
        self.callbacks: dict[str, tuple[str, str]] = {}

    # --- what we send

    def read_stdin(self, data: Json) -> bool:
        found = object_of(data)
        kind = text_of(found, "type")
        if kind == "user":
            self.user_sent(found)
        elif kind == "control_request":
            self.commands[text_of(found, "request_id")] = text_of(object_of(found, "request"), "subtype")
            self.steerable = True
        elif kind == "control_response":
            self.we_answered(object_of(found, "response"))
        return kind in ("user", "control_request", "control_response") or kind in tables.QUIET_INPUT

    def user_sent(self, found: Object) -> None:
        """A text of ours. Text on stdin can be sent at any time, so the agent can be steered."""
        if self.gone:
            return
        content = object_of(found, "message").get("content")
        text, images = content_of(content)
        self.steerable = True
        if text or images:
            self.sends(text, text_of(found, "uuid") or self.named("prompt"), images)

    def we_answered(self, response: Object) -> None:
        """Our answer to a request of Claude Code."""
        request_id, answer = text_of(response, "request_id"), object_of(response, "response")
        call_id = self.requests.pop(request_id, None)
        callback = self.callbacks.pop(request_id, None)
        if self.gone:
            return
        if call_id is not None:
            self.decision(call_id, answer)
        elif callback is not None:
            self.replied(*callback, answer)
        elif request_id in self.form_requests:
            self.form_closes(self.form_requests.pop(request_id), text_of(answer, "action"), answer.get("content"))

    # --- what Claude Code asks of us

    def control_request(self, found: Object) -> bool:
        request = object_of(found, "request")
        reader = _REQUESTS.get(text_of(request, "subtype"))
        if reader is not None:
            reader(self, text_of(found, "request_id"), request)
        return True

    def can_use_tool(self, request_id: str, request: Object) -> None:
        tool, args = text_of(request, "tool_name"), request.get("input")
        path = self.path_of(text_of(request, "agent_id")) if text_of(request, "agent_id") else ()
        call_id = text_of(request, "tool_use_id") or self.call_like(tool, args, path) or self.named("call")
        known = self.tracker.calls.get(call_id)
        self.requests[request_id] = call_id
        self.asks(
            call_id,
            tool,
            args,
            known.path if known is not None else path,
            list_of(request, "permission_suggestions"),
            text_of(request, "decision_reason", "description"),
        )

    def elicitation(self, request_id: str, request: Object) -> None:
        self.form_requests[request_id] = self.form_opens(request, request_id)

    def hook_callback(self, request_id: str, request: Object) -> None:
        """A hook of the SDK. Its envelope names the call, also where the payload does not."""
        payload = object_of(request, "input")
        event = text_of(payload, "hook_event_name")
        if event == "PermissionRequest" and text_of(request, "tool_use_id"):
            payload = {**payload, "tool_use_id": request["tool_use_id"]}
        before = self.pending[-1] if self.pending else None
        self.read_hook(payload)
        about = self.pending.pop().ref if self.pending and self.pending[-1] is not before else ""
        self.callbacks[request_id] = (event, about)

    def control_cancel_request(self, found: Object) -> bool:
        """Somebody else answered, or the turn is over."""
        request_id = text_of(found, "request_id")
        call_id = self.requests.pop(request_id, None)
        if call_id is not None:
            self.withdraws(call_id)
        form = self.form_requests.pop(request_id, None)
        if form is not None:
            self.withdraws(form)
        return True

    # --- what Claude Code answers us

    def control_response(self, found: Object) -> bool:
        response = object_of(found, "response")
        request_id, answer = text_of(response, "request_id"), object_of(response, "response")
        command = self.commands.pop(request_id, None) or next(
            (name for field, name in _BY_FIELD if field in answer), ""
        )
        if text_of(response, "subtype") == "error":
            self.tracker.emit(ev.CommandFailed(command_id=request_id, message=text_of(response, "error")))
            return True
        reader = _ANSWERS.get(command)
        if reader is not None:
            reader(self, answer)
        return True

    def initialized(self, answer: Object) -> None:
        self.steerable = True
        account = object_of(answer, "account")
        if text_of(account, "subscriptionType"):
            self.billing = "plan"
        self.ready(version=text_of(answer, "claude_code_version"))
        self.told_mode(text_of(answer, "current_permission_mode"))

    def interrupt_taken(self, _answer: Object) -> None:
        self.interrupted = bool(self.tracker.turn_id)

    def model_set(self, answer: Object) -> None:
        self.told_model(text_of(answer, "model"))

    def mode_set(self, answer: Object) -> None:
        self.told_mode(text_of(answer, "mode"))

    def context_told(self, answer: Object) -> None:
        tokens, limit = int_of(answer, "totalTokens"), int_of(answer, "maxTokens", "rawMaxTokens")
        percent = 100 * tokens / limit if limit else None
        self.tracker.emit(ev.ContextUsage(tokens=tokens, limit=limit or None, percent=percent))

    def title_made(self, answer: Object) -> None:
        title = text_of(answer, "title")
        if title:
            self.tracker.emit(ev.TitleGenerated(title=title))


def content_of(content: Json) -> tuple[str, tuple[Image, ...]]:
    """The text and the images of a message: a text as it is, or a list of blocks."""
    if isinstance(content, str):
        return content, ()
    if not isinstance(content, list):
        return "", ()
    parts = cast("list[Any]", content)
    sources = [object_of(part, "source") for part in parts if object_of(part).get("type") == "image"]
    images = tuple(Image(media_type=text_of(one, "media_type"), data=text_of(one, "data")) for one in sources)
    return texts_in(parts), images


#: What Claude Code asks of us.
_REQUESTS: dict[str, Callable[[Control, str, Object], None]] = {
    "can_use_tool": Control.can_use_tool,
    "elicitation": Control.elicitation,
    "hook_callback": Control.hook_callback,
}
#: What it answers, by our command.
_ANSWERS: dict[str, Callable[[Control, Object], None]] = {
    "initialize": Control.initialized,
    "interrupt": Control.interrupt_taken,
    "set_model": Control.model_set,
    "set_permission_mode": Control.mode_set,
    "get_context_usage": Control.context_told,
    "generate_session_title": Control.title_made,
}
