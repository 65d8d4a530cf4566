"""Feed both sides of an ACP conversation to a translator in tests, and check the view after each message.

talk = AcpTalk("gemini").opened()
talk.prompt("hi")
talk.says("Hello")
talk.ends("end_turn")
assert talk.phase == "completed"
"""

from __future__ import annotations

from typing import Any, Self

from quarterdeck import events as ev
from quarterdeck.events import Body
from tests.support.translator_session import Talk

OPTIONS = [
    {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
    {"optionId": "always", "name": "Always", "kind": "allow_always"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]
#: The relevant part of each agent's answer to `initialize`.
INITIALIZED: dict[str, dict[str, Any]] = {
    "acp": {"agentInfo": {"name": "somebody", "version": "9"}},
    "gemini": {"agentInfo": {"name": "gemini-cli", "version": "0.61.0"}},
    "opencode": {"agentInfo": {"name": "OpenCode", "version": "1.18.33"}},
    "kilo": {"agentInfo": {"name": "Kilo", "version": "7.7.7"}},
    "cline": {"agentInfo": {"name": "cline", "version": "2.18.0"}},
}


class AcpTalk(Talk):
    """Both sides of one ACP connection."""

    def __init__(self, agent: str = "acp") -> None:
        super().__init__(agent)
        self._ids = 0
        self.last_prompt = 0

    # --- our side

    def request(self, method: str, params: Any = None) -> int:
        self._ids += 1
        self.feed("stdin", {"jsonrpc": "2.0", "id": self._ids, "method": method, "params": params or {}})
        return self._ids

    def notify(self, method: str, **params: Any) -> list[Body]:
        return self.feed("stdin", {"jsonrpc": "2.0", "method": method, "params": params})

    def reply(self, key: Any, result: Any = None, error: Any = None) -> list[Body]:
        return self.feed("stdin", _answer(key, result, error))

    def choose(self, key: Any, option: str) -> list[Body]:
        return self.reply(key, {"outcome": {"outcome": "selected", "optionId": option}})

    def prompt(self, text: str = "hi", session: str = "s1", **more: Any) -> int:
        blocks = [{"type": "text", "text": text}]
        self.last_prompt = self.request("session/prompt", {"sessionId": session, "prompt": blocks, **more})
        return self.last_prompt

    def cancel(self, session: str = "s1") -> list[Body]:
        return self.notify("session/cancel", sessionId=session)

    # --- the agent's side

    def answer(self, key: Any, result: Any = None, error: Any = None) -> list[Body]:
        return self.feed("stdout", _answer(key, result, error))

    def update(self, what: str, session: str = "s1", **fields: Any) -> list[Body]:
        params = {"sessionId": session, "update": {"sessionUpdate": what, **fields}}
        return self.feed("stdout", {"jsonrpc": "2.0", "method": "session/update", "params": params})

    def says(self, text: str, **fields: Any) -> list[Body]:
        return self.update("agent_message_chunk", content={"type": "text", "text": text}, **fields)

    def thinks(self, text: str, **fields: Any) -> list[Body]:
        return self.update("agent_thought_chunk", content={"type": "text", "text": text}, **fields)

    def user_said(self, text: str, **fields: Any) -> list[Body]:
        return self.update("user_message_chunk", content={"type": "text", "text": text}, **fields)

    def calls(self, call_id: str = "c1", status: str = "pending", **fields: Any) -> list[Body]:
        fields = {"title": "bash", "kind": "execute", **fields}
        return self.update("tool_call", toolCallId=call_id, status=status, **fields)

    def call_is(self, status: str, call_id: str = "c1", **fields: Any) -> list[Body]:
        return self.update("tool_call_update", toolCallId=call_id, status=status, **fields)

    def asks(self, key: Any = 0, call_id: str = "c1", session: str = "s1", **call: Any) -> list[Body]:
        params = {
            "sessionId": session,
            "toolCall": {"toolCallId": call_id, "title": "ls", "kind": "execute", "status": "pending", **call},
            "options": OPTIONS,
        }
        return self.wants("session/request_permission", params, key)

    def wants(self, method: str, params: Any, key: Any) -> list[Body]:
        return self.feed("stdout", {"jsonrpc": "2.0", "id": key, "method": method, "params": params})

    def ends(self, stop: str = "end_turn", key: Any = None, **more: Any) -> list[Body]:
        return self.answer(self.last_prompt if key is None else key, {"stopReason": stop, **more})

    # --- openings

    def started(self) -> Self:
        """Start the process and answer `initialize`."""
        self.feed("proc", {"event": "start"})
        self.answer(self.request("initialize"), INITIALIZED[self.agent])
        return self

    def opened(self, session: str = "s1", **result: Any) -> Self:
        """Open a new session that is ready for a prompt."""
        self.started()
        self.answer(self.request("session/new"), {"sessionId": session, **result})
        return self

    def prompted(self, text: str = "hi") -> Self:
        """Open a session and send its first prompt."""
        self.opened()
        self.prompt(text)
        return self

    # --- the result

    def activities(self) -> list[str]:
        """Return all activities in order."""
        changes = self.events_of(ev.StateChange)
        return [f"{body.state}/{body.sub}" if body.sub else body.state for body in changes]


def _answer(key: Any, result: Any, error: Any) -> dict[str, Any]:
    how = {"error": error} if error is not None else {"result": {} if result is None else result}
    return {"jsonrpc": "2.0", "id": key, **how}
