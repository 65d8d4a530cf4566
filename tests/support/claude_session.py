"""Feed signals of Claude Code to its translator in tests, and check the view after each one.

agent = Session().starts().hook("SessionStart", source="startup").prompts("hello")
assert agent.activity == "active/thinking"
"""

from __future__ import annotations

from typing import Any, Self

from quarterdeck import events as ev
from quarterdeck.events import Body, Origin
from tests.support.translator_session import Talk, kinds

ID = "5e55"
WRITE = {"file_path": "a.txt", "content": "x"}


class Session(Talk):
    """One session whose steps return it, so that they can be chained. `said` has the events of the last signal."""

    def __init__(self) -> None:
        self.said: list[Body] = []
        super().__init__("claude")

    def feed(self, src: str, data: Any, after: float = 0.01) -> Self:
        """Feed a signal a moment later. Deadlines that are due before it fire first."""
        super().feed(src, data, after)
        return self

    def passes(self, seconds: float) -> Self:
        """Let time pass."""
        self.wait(seconds)
        return self

    def _fold(self, bodies: list[Body], origin: Origin) -> list[Body]:
        self.said = bodies
        return super()._fold(bodies, origin)

    # --- common signals

    def starts(self) -> Self:
        return self.feed("proc", {"event": "start"})

    def exits(self, code: int | None = 0, **more: Any) -> Self:
        return self.feed("proc", {"event": "exit", "code": code, **more})

    def hook(self, name: str, session_id: str = ID, after: float = 0.01, **fields: Any) -> Self:
        return self.feed("hook", {"hook_event_name": name, "session_id": session_id, **fields}, after)

    def reply(self, event: str, **answer: Any) -> Self:
        return self.feed("hook.reply", {"event": event, "answer": answer})

    def opens(self) -> Self:
        """Start a process and report an idle session by hooks."""
        return self.starts().hook("SessionStart", source="startup")

    def prompts(self, text: str = "go", prompt_id: str = "p1") -> Self:
        return self.hook("UserPromptSubmit", prompt=text, prompt_id=prompt_id)

    def calls(self, call_id: str = "c1", tool: str = "Write", **args: Any) -> Self:
        return self.hook("PreToolUse", tool_name=tool, tool_use_id=call_id, tool_input=args or WRITE)

    def asks(self, tool: str = "Write", **args: Any) -> Self:
        return self.hook("PermissionRequest", tool_name=tool, tool_input=args or WRITE)

    def decides(self, behaviour: str, **more: Any) -> Self:
        decision = {"behavior": behaviour, **more}
        return self.reply("PermissionRequest", hookSpecificOutput={"decision": decision})

    def line(self, kind: str, **fields: Any) -> Self:
        """Feed a line of stdout."""
        return self.feed("stdout", {"type": kind, "session_id": ID, **fields})

    def system(self, subtype: str, **fields: Any) -> Self:
        return self.line("system", subtype=subtype, **fields)

    def init(self, **fields: Any) -> Self:
        return self.system("init", model="opus", permissionMode="default", **fields)

    def sends(self, text: str, **fields: Any) -> Self:
        """Feed a line that we send."""
        return self.feed("stdin", {"type": "user", "message": {"role": "user", "content": text}, **fields})

    def replies(self, *blocks: dict[str, Any], message_id: str = "m1", **fields: Any) -> Self:
        message = {"id": message_id, "model": "opus", "content": list(blocks), "usage": {"input_tokens": 10}}
        return self.line("assistant", message=message, **fields)

    def results(self, call_id: str = "c1", text: str = "ok", error: bool = False, **fields: Any) -> Self:
        part = {"type": "tool_result", "tool_use_id": call_id, "content": text, "is_error": error}
        return self.line("user", message={"content": [part]}, **fields)

    def result(self, subtype: str = "success", **fields: Any) -> Self:
        return self.line("result", subtype=subtype, **fields)

    # --- the result

    @property
    def gates(self) -> int:
        return len(self.state.gates.open)

    @property
    def kinds(self) -> list[str]:
        """Return the names of the last signal's events."""
        return kinds(self.said)

    @property
    def changes(self) -> list[str]:
        """Return the activities in the last signal's events, named as in 003."""
        found = [body for body in self.said if isinstance(body, ev.StateChange)]
        return [f"{body.state}/{body.sub}" if body.sub else body.state for body in found]


def tool_use(call_id: str = "c1", name: str = "Write", **args: Any) -> dict[str, Any]:
    """Create a block that announces a call."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": args or WRITE}


def text(words: str) -> dict[str, Any]:
    """Create a block of text."""
    return {"type": "text", "text": words}
