"""stdout: one JSON object a line (stream-json).

`system/init` is printed once per turn, `result` when the turn is over. A reply comes as one `assistant` line per block;
with partial messages its pieces come before it as `stream_event`s. A call runs from the line that announces it (nothing on
the stream says more) until its tool_result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, cast

from quarterdeck import events as ev
from quarterdeck.events import Json
from quarterdeck.harness.base import Object, int_of, list_of, object_of, text_of
from quarterdeck.harness.claude import tables
from quarterdeck.harness.claude.control import content_of
from quarterdeck.harness.claude.results import Results
from quarterdeck.harness.claude.spending import Share
from quarterdeck.harness.tracker import AgentPath

Reader: TypeAlias = Callable[["Stream", Object], bool]
_MESSAGES_KEPT = 64
#: Replies that end a turn, unless a hook objects.
_LAST_WORDS = frozenset({"end_turn", "stop_sequence", "max_tokens", "refusal"})
#: In text mode the result of a turn is printed only when its background work is done: after this long it is over.
LINGERS_S = 1.0


class Stream(Results):
    """Replies, calls and their results."""

    def new_process(self) -> None:
        Results.new_process(self)
        #: the message that each agent streams now
        self.streaming: dict[AgentPath, str] = {}
        #: how many blocks of a message came whole
        self.blocks: dict[str, int] = {}

    def read_stdout(self, data: Json) -> bool:
        if not isinstance(data, dict):
            return True
        found = cast(Object, data)
        kind = found.get("type")
        reader = _LINES.get(kind) if isinstance(kind, str) else None
        if reader is None:
            return "raw" in found
        if self.gone:
            return True
        return reader(self, found)

    # --- replies in pieces

    def stream_event(self, found: Object) -> bool:
        event = found.get("event")
        kind = cast(Object, event).get("type") if isinstance(event, dict) else None
        reader = _PARTS.get(kind) if isinstance(kind, str) else None
        return reader is not None and reader(self, found)

    def message_start(self, found: Object) -> bool:
        message = object_of(found, "event", "message")
        path = self.path_in(found)
        message_id = text_of(message, "id") or self.named("message")
        self.streaming[path] = message_id
        self.replies_with(message_id, path)
        self.spent(self.spending.message(message_id, object_of(message, "usage"), text_of(message, "model"), path))
        return True

    def replies_with(self, message_id: str, path: AgentPath) -> None:
        """The model answers. Without partial messages this is also all that is known of the request before it."""
        if message_id in self.blocks:
            return
        self.blocks[message_id] = 0
        while len(self.blocks) > _MESSAGES_KEPT:
            del self.blocks[next(iter(self.blocks))]
        if path:
            return
        self.clear_timer("lingers")
        self.working()
        if not self.requested:
            self.requests_model()
        self.requested = False

    def content_block_start(self, found: Object) -> bool:
        event = object_of(found, "event")
        block = object_of(event, "content_block")
        if text_of(block, "type") == "tool_use":
            path = self.path_in(found)
            call_id, name = text_of(block, "id"), text_of(block, "name")
            self.call_announced(call_id, name, None, self.streaming.get(path, ""), int_of(event, "index"), path)
        return True

    def content_block_delta(self, found: Object) -> bool:
        event = cast(Object, found["event"])
        delta, index = event.get("delta"), event.get("index")
        if not isinstance(delta, dict) or not isinstance(index, int):
            return True
        piece = cast(Object, delta)
        kind = piece.get("type")
        reader = _DELTAS.get(kind) if isinstance(kind, str) else None
        if reader is None:
            return isinstance(kind, str) and kind in tables.QUIET_DELTAS
        path: AgentPath = ()
        if found.get("parent_tool_use_id") or found.get("agent_id"):
            path = self.path_in(found)
        reader(self, piece, index, path)
        return True

    def text_delta(self, piece: Object, index: int, path: AgentPath) -> None:
        text, message_id = piece.get("text"), self.streaming.get(path)
        if isinstance(text, str) and message_id is not None and (self.tracker.turn_id or path):
            self.tracker.add_text(message_id, index, text, path)

    def thinking_delta(self, piece: Object, index: int, path: AgentPath) -> None:
        text, message_id = piece.get("thinking"), self.streaming.get(path)
        if isinstance(text, str) and message_id is not None and (self.tracker.turn_id or path):
            self.tracker.add_thinking(message_id, index, text, path)

    def message_delta(self, found: Object) -> bool:
        event, path = object_of(found, "event"), self.path_in(found)
        message_id = self.streaming.get(path)
        if message_id is not None:
            self.spent(self.spending.message(message_id, object_of(event, "usage"), self.model, path))
            self.stop_reason = text_of(object_of(event, "delta"), "stop_reason")
        return True

    def message_stop(self, found: Object) -> bool:
        path = self.path_in(found)
        message_id = self.streaming.pop(path, None)
        if message_id is None:
            return True
        self.tracker.finish_message(message_id, stop_reason=self.stop_reason, path=path)
        if not path and self.stop_reason in _LAST_WORDS and self.tracker.background:
            self.set_timer("lingers", LINGERS_S)
        if "abandoned_blocks" in found and self.tracker.turn_id and not path and not self.interrupted:
            self.tracker.emit(ev.StreamError(reason="the reply was cut off", turn_id=self.tracker.turn_id))
        return True

    def spent(self, shares: Iterator[Share]) -> None:
        """Tokens and cost are told as sums."""
        for one in shares:
            self.tracker.record_usage(one.tokens, one.name, one.model, self.billing, one.path)

    def on_lingers(self) -> None:
        if self.tracker.turn_id and not self.is_busy():
            self.ends_before_its_result()

    # --- replies by blocks

    def assistant(self, found: Object) -> bool:
        message = object_of(found, "message")
        path = self.path_in(found)
        blocks = list_of(message, "content")
        if text_of(message, "model") == "<synthetic>":
            self.own_words(found, blocks)
            return True
        message_id = text_of(message, "id") or self.named("message")
        self.replies_with(message_id, path)
        if self.streaming.get(path) != message_id:
            usage = object_of(message, "usage")
            self.spent(self.spending.message(message_id, usage, text_of(message, "model"), path))
        for block in blocks:
            self.block(message_id, object_of(block), path)
        if self.streaming.get(path) != message_id:
            self.tracker.finish_message(message_id, stop_reason=text_of(message, "stop_reason"), path=path)
        return True

    def block(self, message_id: str, found: Object, path: AgentPath) -> None:
        """One block of a reply, whole."""
        index = self.blocks.get(message_id, 0)
        self.blocks[message_id] = index + 1
        kind = text_of(found, "type")
        if kind in ("tool_use", "server_tool_use", "mcp_tool_use"):
            call_id, name = text_of(found, "id") or self.named("call"), text_of(found, "name")
            self.call_announced(call_id, name, found.get("input"), message_id, index, path)
            if kind == "tool_use":
                self.call_runs(call_id, name, found.get("input"), path)
        elif kind == "text" and (path or self.tracker.turn_id):
            self.tracker.update_text(message_id, index, text_of(found, "text"), path)
        elif kind == "thinking" and (path or self.tracker.turn_id):
            self.tracker.update_thinking(message_id, index, text_of(found, "thinking"), path)

    def own_words(self, found: Object, blocks: list[Any]) -> None:
        """What Claude Code puts in by itself: why a request failed, or what a local command printed."""
        text = content_of(blocks)[0]
        if found.get("is_api_error_message") is True or text_of(found, "error"):
            names = text_of(found, "error"), text_of(found, "api_error_type")
            self.failing_with(text, int_of(found, "api_error_status"), names)
        else:
            self.tracker.add_notice(text)

    # --- what comes back to the model

    def user(self, found: Object) -> bool:
        content = object_of(found, "message").get("content")
        path = self.path_in(found)
        for one in cast("list[Any]", content) if isinstance(content, list) else ():
            part = object_of(one)
            if text_of(part, "type") == "tool_result":
                self.tool_result(found, part, path)
        if not path:
            text, _ = content_of(content)
            if text:
                self.user_text(found, text)
        return True

    def tool_result(self, found: Object, part: Object, path: AgentPath) -> None:
        call_id = text_of(part, "tool_use_id")
        if not call_id or call_id in self.over:
            return
        ok = part.get("is_error") is not True
        if not path:
            # a deferred call is run by the resumed process before anything else of its turn is printed
            self.working()
            self.forms_gone()
        self.call_over(call_id, ok, part.get("content"), path=path, response=found.get("tool_use_result"))

    def user_text(self, found: Object, text: str) -> None:
        """A text in the user's role: an interrupt, a command's output, an echo of ours, or words of a hook."""
        ref = text_of(found, "uuid")
        if text.startswith(tables.INTERRUPTED):
            self.interrupted = bool(self.tracker.turn_id)
        elif text.startswith(tables.LOCAL_OUTPUT):
            printed = text.partition(">")[2].rpartition("</")[0]
            # the switch itself is told besides
            self.tracker.add_notice("" if printed.startswith("Set model to") else printed)
        elif found.get("isReplay") is True:
            if ref in self.sent:
                self.reads(ref)
        elif found.get("isSynthetic") is True and text.startswith("Stop hook feedback:"):
            self.goes_on()
            self.tracker.emit(ev.Intervention(prompt=text, turn_id=self.tracker.turn_id or None))

    # --- other lines

    def command_lifecycle(self, found: Object) -> bool:
        ref = text_of(found, "command_uuid")
        self.lifecycle = True
        if text_of(found, "state") == "started" and ref in self.sent:
            self.reads(ref)
        elif text_of(found, "state") in ("cancelled", "dropped") and ref in self.sent:
            sent = self.sent.pop(ref)
            self.tracker.emit(ev.PromptDropped(text=sent.text, message_id=ref))
        return True

    def tool_progress(self, found: Object) -> bool:
        call_id = text_of(found, "tool_use_id")
        call = self.tracker.calls.get(call_id)
        if call is not None and not call.running:
            self.call_runs(call_id, call.name, self.args.get(call_id), call.path)
        return True


def quiet(_: Stream, _found: Object) -> bool:
    """A line that is known and says nothing about the state."""
    return True


#: Lines of stdout, by their type.
_LINES: dict[str, Reader] = {
    "system": Stream.read_system,
    "stream_event": Stream.stream_event,
    "assistant": Stream.assistant,
    "user": Stream.user,
    "result": Stream.result,
    "control_request": Stream.control_request,
    "control_response": Stream.control_response,
    "control_cancel_request": Stream.control_cancel_request,
    "command_lifecycle": Stream.command_lifecycle,
    "conversation_reset": Stream.conversation_reset,
    "tool_progress": Stream.tool_progress,
    "rate_limit_event": Stream.rate_limit_event,
    **dict.fromkeys(tables.QUIET_LINES, quiet),
}
#: Pieces of a reply, by their type.
_PARTS: dict[str, Reader] = {
    "message_start": Stream.message_start,
    "content_block_start": Stream.content_block_start,
    "content_block_delta": Stream.content_block_delta,
    "message_delta": Stream.message_delta,
    "message_stop": Stream.message_stop,
    **dict.fromkeys(tables.QUIET_EVENTS, quiet),
}
_DELTAS: dict[str, Callable[[Stream, Object, int, AgentPath], None]] = {
    "text_delta": Stream.text_delta,
    "thinking_delta": Stream.thinking_delta,
}
