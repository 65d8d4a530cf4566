"""Claude Code by hand: signals go in, the view folds along, and every view is held against the rules.

agent = Session().starts().hook("SessionStart", source="startup").prompts("hello")
assert agent.activity == "active/thinking"
"""

from __future__ import annotations

from typing import Any

from quarterdeck import events as ev
from quarterdeck.events import Body, Event, type_of
from quarterdeck.harness.base import Signal, origin_of
from quarterdeck.harness.claude.translate import claude
from quarterdeck.kernel.state import State
from quarterdeck.kernel.timeline import Entry, window
from quarterdeck.kernel.view import View, fold
from tests.fuzz.legal import unclosed, violations

ID = "5e55"
WRITE = {"file_path": "a.txt", "content": "x"}


class Session:
    """One session, its translator and its view. `said` holds what the last signal brought about."""

    def __init__(self) -> None:
        self.translator = claude()
        self.now = 0.0
        self.view = fold(View(), Event("s", 1, 0, "supervisor", ev.SessionOpened(agent="claude")))
        self.bodies: list[Body] = []
        self.said: list[Body] = []

    def feed(self, src: str, data: Any, after: float = 0.01) -> Session:
        """One signal, a moment later; deadlines that are due before it fire."""
        self.passes(after)
        self._take(self.translator.feed(Signal(src, data), self.now), src)
        return self

    def passes(self, seconds: float) -> Session:
        """Time goes by."""
        until = self.now + seconds
        while (due := self.translator.deadline()) is not None and due <= until:
            self.now = due
            self._take(self.translator.tick(due), "supervisor")
        self.now = until
        return self

    def _take(self, bodies: list[Body], src: str) -> None:
        self.said = bodies
        for body in bodies:
            event = Event("s", self.view.index + 1, int(self.now * 1000), origin_of(src), body)
            self.view = fold(self.view, event)
        self.bodies += bodies
        assert not violations(self.view)
        assert not unclosed(self.bodies)

    # --- short words for what comes often

    def starts(self) -> Session:
        return self.feed("proc", {"event": "start"})

    def exits(self, code: int | None = 0, **more: Any) -> Session:
        return self.feed("proc", {"event": "exit", "code": code, **more})

    def hook(self, name: str, session_id: str = ID, after: float = 0.01, **fields: Any) -> Session:
        return self.feed("hook", {"hook_event_name": name, "session_id": session_id, **fields}, after)

    def reply(self, event: str, **answer: Any) -> Session:
        return self.feed("hook.reply", {"event": event, "answer": answer})

    def opens(self) -> Session:
        """A process with an idle session, by hooks."""
        return self.starts().hook("SessionStart", source="startup")

    def prompts(self, text: str = "go", prompt_id: str = "p1") -> Session:
        return self.hook("UserPromptSubmit", prompt=text, prompt_id=prompt_id)

    def calls(self, call_id: str = "c1", tool: str = "Write", **args: Any) -> Session:
        return self.hook("PreToolUse", tool_name=tool, tool_use_id=call_id, tool_input=args or WRITE)

    def asks(self, tool: str = "Write", **args: Any) -> Session:
        return self.hook("PermissionRequest", tool_name=tool, tool_input=args or WRITE)

    def decides(self, behaviour: str, **more: Any) -> Session:
        decision = {"behavior": behaviour, **more}
        return self.reply("PermissionRequest", hookSpecificOutput={"decision": decision})

    def line(self, kind: str, **fields: Any) -> Session:
        """A line of stdout."""
        return self.feed("stdout", {"type": kind, "session_id": ID, **fields})

    def system(self, subtype: str, **fields: Any) -> Session:
        return self.line("system", subtype=subtype, **fields)

    def init(self, **fields: Any) -> Session:
        return self.system("init", model="opus", permissionMode="default", **fields)

    def sends(self, text: str, **fields: Any) -> Session:
        """A line of ours."""
        return self.feed("stdin", {"type": "user", "message": {"role": "user", "content": text}, **fields})

    def replies(self, *blocks: dict[str, Any], message_id: str = "m1", **fields: Any) -> Session:
        message = {"id": message_id, "model": "opus", "content": list(blocks), "usage": {"input_tokens": 10}}
        return self.line("assistant", message=message, **fields)

    def results(self, call_id: str = "c1", text: str = "ok", error: bool = False, **fields: Any) -> Session:
        part = {"type": "tool_result", "tool_use_id": call_id, "content": text, "is_error": error}
        return self.line("user", message={"content": [part]}, **fields)

    def result(self, subtype: str = "success", **fields: Any) -> Session:
        return self.line("result", subtype=subtype, **fields)

    # --- what shows

    @property
    def state(self) -> State:
        return self.view.state

    @property
    def phase(self) -> str:
        return self.state.phase.value

    @property
    def activity(self) -> str:
        return self.state.activity.value

    @property
    def gates(self) -> int:
        return len(self.state.gates.open)

    @property
    def kinds(self) -> list[str]:
        """The names of what the last signal brought about."""
        return [type_of(body) for body in self.said]

    @property
    def changes(self) -> list[str]:
        """The activities that the last signal brought about, in 003's words."""
        found = [body for body in self.said if isinstance(body, ev.StateChange)]
        return [f"{body.state}/{body.sub}" if body.sub else body.state for body in found]

    @property
    def entries(self) -> list[Entry]:
        return window(self.view.timeline)

    def texts(self, *kinds: str) -> list[str]:
        return [entry.text for entry in self.entries if entry.kind in kinds and not entry.path]

    def tools(self) -> list[tuple[str, str]]:
        steps = [entry.tool_step for entry in self.entries if not entry.path]
        return [(step.tool_name, step.phase) for step in steps if step is not None]

    def all_of(self, kind: type[Body]) -> list[Any]:
        return [body for body in self.bodies if isinstance(body, kind)]


def tool_use(call_id: str = "c1", name: str = "Write", **args: Any) -> dict[str, Any]:
    """A block that announces a call."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": args or WRITE}


def text(words: str) -> dict[str, Any]:
    """A block of text."""
    return {"type": "text", "text": words}
