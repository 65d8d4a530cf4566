"""Feed a Codex session to a translator in tests: its own streams, its hooks and its telemetry.

talk = CodexTalk()
talk.record("user_prompt", prompt="hi")         # telemetry
talk.hook("PreModelRequest", turn_id="t1")      # a hook
talk.opened(); talk.notes("turn/started", turn={"id": "u1"})   # codex app-server
"""

from __future__ import annotations

from typing import Any, Self

from quarterdeck.events import Body
from tests.support.translator_session import Talk

THREAD = "thread-1"
_TOKENS = {"input_token_count": "100", "output_token_count": "30", "cached_token_count": 20}


class CodexTalk(Talk):
    """One session of Codex."""

    def __init__(self) -> None:
        super().__init__("codex")
        self._ids = 0

    # --- the result

    @property
    def signal(self) -> str:
        return self.state.signal.value

    @property
    def run(self) -> str:
        return self.state.run.value

    @property
    def gates(self) -> list[str]:
        return [gate.id for gate in self.state.gates.open]

    @property
    def background(self) -> list[str]:
        return [task.id for task in self.state.background]

    def last(self, kind: type[Body]) -> Any:
        """Return the newest event of this type."""
        return self.events_of(kind)[-1]

    # --- telemetry

    def record(self, name: str, conversation: str = THREAD, after: float = 0.01, **attributes: Any) -> list[Body]:
        fields = {"event.name": f"codex.{name}", "conversation.id": conversation, **attributes}
        return self.feed("otlp.log", {"attributes": fields}, after)

    def sse(self, kind: str, after: float = 0.01, **attributes: Any) -> list[Body]:
        return self.record("sse_event", after=after, **{"event.kind": kind, **attributes})

    def completed(self, after: float = 0.01, **attributes: Any) -> list[Body]:
        """Feed a completed response with tokens."""
        return self.sse("response.completed", after, **{**_TOKENS, **attributes})

    def decided(self, decision: str, call_id: str = "call_a", **attributes: Any) -> list[Body]:
        return self.record("tool_decision", decision=decision, call_id=call_id, tool_name="exec_command", **attributes)

    def result(self, call_id: str = "call_a", success: str = "true", **attributes: Any) -> list[Body]:
        return self.record("tool_result", call_id=call_id, tool_name="exec_command", success=success, **attributes)

    # --- hooks

    def hook(self, name: str, session: str = THREAD, after: float = 0.01, **fields: Any) -> list[Body]:
        return self.feed("hook", {"hook_event_name": name, "session_id": session, **fields}, after)

    def notify(self, thread: str = THREAD, turn: str = "u1", text: str = "", after: float = 0.01) -> list[Body]:
        fields = {"type": "agent-turn-complete", "thread-id": thread, "turn-id": turn, "last-assistant-message": text}
        return self.feed("notify", fields, after)

    # --- the app-server

    def request(self, method: str, **params: Any) -> int:
        self._ids += 1
        self.feed("stdin", {"id": self._ids, "method": method, "params": params})
        return self._ids

    def answers(self, request_id: int, result: Any) -> list[Body]:
        return self.feed("stdout", {"id": request_id, "result": result})

    def refuses(self, request_id: int, message: str) -> list[Body]:
        return self.feed("stdout", {"id": request_id, "error": {"code": -32600, "message": message}})

    def notes(self, method: str, thread: str = THREAD, **params: Any) -> list[Body]:
        return self.feed("stdout", {"method": method, "params": {"threadId": thread, **params}})

    def asks(self, method: str, request_id: Any = 0, thread: str = THREAD, **params: Any) -> list[Body]:
        return self.feed("stdout", {"method": method, "id": request_id, "params": {"threadId": thread, **params}})

    def replies(self, result: Any, request_id: Any = 0) -> list[Body]:
        return self.feed("stdin", {"id": request_id, "result": result})

    def opened(self, method: str = "thread/start", thread: str = THREAD, **fields: Any) -> Self:
        """Request a thread and answer the request."""
        asked = self.request(method, **({} if method == "thread/start" else {"threadId": thread}))
        status = fields.pop("status", {"type": "idle"})
        settings = {"model": "gpt-5.5", "approvalPolicy": "on-request", "sandbox": {"type": "workspaceWrite"}}
        self.answers(asked, {"thread": {"id": thread, "status": status, **fields}, **settings})
        return self

    def turn(self, turn_id: str = "u1", text: str = "hi", thread: str = THREAD) -> Self:
        """Begin a turn and read its prompt."""
        self.notes("thread/status/changed", thread, status={"type": "active", "activeFlags": []})
        self.notes("turn/started", thread, turn={"id": turn_id})
        return self.item("userMessage", f"m-{turn_id}", thread, content=[{"type": "text", "text": text}])

    def item(self, item_type: str, name: str, thread: str = THREAD, done: bool = False, **fields: Any) -> Self:
        """Start an item, or complete it."""
        method = "item/completed" if done else "item/started"
        self.notes(method, thread, item={"type": item_type, "id": name, **fields})
        return self

    def says(self, text: str, name: str = "msg_1", thread: str = THREAD) -> Self:
        self.item("agentMessage", name, thread, text="")
        self.notes("item/agentMessage/delta", thread, itemId=name, delta=text)
        return self.item("agentMessage", name, thread, done=True, text=text)

    def ends(self, status: str = "completed", thread: str = THREAD, **turn: Any) -> Self:
        self.notes("thread/status/changed", thread, status={"type": "systemError" if status == "failed" else "idle"})
        self.notes("turn/completed", thread, turn={"id": "u1", "status": status, **turn})
        return self

    def asking(self, call_id: str = "call_a", request_id: Any = 0, **params: Any) -> Self:
        """Let a command ask for approval, with messages in the server's order."""
        self.notes("thread/status/changed", status={"type": "active", "activeFlags": ["waitingOnApproval"]})
        self.item("commandExecution", call_id, command="/bin/bash -lc 'make test'", status="inProgress", source="agent")
        self.asks("item/commandExecution/requestApproval", request_id, itemId=call_id, command="make test", **params)
        return self

    def resolved(self, request_id: Any = 0) -> Self:
        self.notes("serverRequest/resolved", requestId=request_id)
        self.notes("thread/status/changed", status={"type": "active", "activeFlags": []})
        return self
