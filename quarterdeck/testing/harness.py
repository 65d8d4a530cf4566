"""The scripted agent's harness: the smallest whole one there is, translator and driver."""

from __future__ import annotations

import sys
from typing import Literal, TypeAlias

import msgspec

from quarterdeck import events as ev
from quarterdeck.events import Image, Json
from quarterdeck.harness.base import BaseTranslator, Object, Signal, list_of, object_of, text_of
from quarterdeck.harness.driver import CannotDo, Capabilities, Decision, KillTools, Lines, Spawn, Start
from quarterdeck.harness.registry import Harness
from quarterdeck.kernel.gate import Gate

Method: TypeAlias = Literal["select", "confirm", "input", "editor"]
_METHODS: dict[str, Method] = {"select": "select", "confirm": "confirm", "input": "input", "editor": "editor"}


CAPABILITIES = Capabilities(
    steer=True,
    approvals=True,
    questions=True,
    dialogs=True,
    resume=True,
    images=True,
    switch_model=True,
    modes=("ask", "auto"),
)


class TestTranslator(BaseTranslator):
    """What quarterdeck.testing.agent says."""

    __test__ = False  # not a test, whatever pytest thinks of the name

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[str, str] = {}
        self.readers |= {"stdout": self.read_line, "stdin": self.read_input}

    def read_line(self, data: Json) -> bool:
        line = object_of(data)
        reader = getattr(self, f"told_{text_of(line, 'type')}", None)
        if reader is None:
            return isinstance(data, str)
        reader(line)
        return True

    def read_input(self, data: Json) -> bool:
        """What we answered is known before the agent says that it heard it."""
        line = object_of(data)
        name = text_of(line, "id")
        kind = self.asked.get(name) if text_of(line, "op") == "answer" else None
        by = text_of(line, "by")
        if kind == "approval":
            self.tracker.resolve_approval(name, "approved" if line.get("allow") else "rejected", by=by)
        elif kind == "question":
            self.tracker.answer_question(name, line.get("text"), by=by, message_id=text_of(line, "message_id"))
        elif kind == "dialog":
            self.tracker.close_dialog(name, line.get("value"), "cancelled" if line.get("cancelled") else "answered", by)
        return True

    def told_ready(self, line: Object) -> None:
        self.tracker.report_ready(text_of(line, "session"), "test-model", "1", CAPABILITIES.names, resumable=True)

    def told_turn_start(self, line: Object) -> None:
        images = tuple(
            Image(media_type=text_of(one, "media_type"), data=text_of(one, "data"), path=text_of(one, "path"))
            for one in map(object_of, list_of(line, "images"))
        )
        self.tracker.record_prompt(text_of(line, "text"), text_of(line, "id"), images=images)
        self.tracker.start_request()

    def told_turn_end(self, line: Object) -> None:
        outcome = text_of(line, "outcome")
        if outcome == "interrupted":
            self.tracker.abort_turn("interrupted")
        elif outcome == "failed":
            self.tracker.fail_turn("api", text_of(line, "message"))
        else:
            self.tracker.end_turn()

    def told_text(self, line: Object) -> None:
        self.tracker.add_text(text_of(line, "id"), 0, text_of(line, "delta"))

    def told_text_end(self, line: Object) -> None:
        self.tracker.finish_message(text_of(line, "id"))

    def told_thought(self, line: Object) -> None:
        self.tracker.add_thinking(text_of(line, "id"), 0, text_of(line, "delta"))

    def told_thought_end(self, line: Object) -> None:
        self.tracker.finish_message(text_of(line, "id"))

    def told_call(self, line: Object) -> None:
        self.tracker.open_call(text_of(line, "id"), text_of(line, "name"), line.get("args"))

    def told_call_start(self, line: Object) -> None:
        self.tracker.start_call(text_of(line, "id"), text_of(line, "name"), line.get("args"))

    def told_call_end(self, line: Object) -> None:
        self.tracker.end_call(text_of(line, "id"), bool(line.get("ok")), line.get("result"))

    def told_may_i(self, line: Object) -> None:
        name = text_of(line, "id")
        self.asked[name] = "approval"
        self.tracker.open_approval(name, text_of(line, "name"), line.get("args"), text_of(line, "call"), "command")

    def told_question(self, line: Object) -> None:
        name = text_of(line, "id")
        self.asked[name] = "question"
        self.tracker.open_question(name, text_of(line, "text"))

    def told_dialog(self, line: Object) -> None:
        name, found = text_of(line, "id"), text_of(line, "method")
        self.asked[name] = "dialog"
        self.tracker.open_dialog(name, _METHODS.get(found, "confirm"), text_of(line, "title"))

    def told_background(self, line: Object) -> None:
        self.tracker.start_background("shell", text_of(line, "id"), text_of(line, "title"))

    def told_background_end(self, line: Object) -> None:
        self.tracker.end_background(text_of(line, "id"), bool(line.get("ok")))

    def told_heard(self, line: Object) -> None:
        self.asked.pop(text_of(line, "id"), None)

    def told_steered(self, line: Object) -> None:
        self.tracker.emit(
            ev.SteeringApplied(refs=(text_of(line, "id"),), count=1, turn_id=self.tracker.turn_id or None)
        )

    def told_model(self, line: Object) -> None:
        self.tracker.emit(ev.ModelSwitched(to=text_of(line, "model")))

    def told_deaf(self, line: Object) -> None:
        """For whoever must know when it hears nothing any more."""
        self.tracker.emit(ev.StatusUpdate(text="deaf"))

    def told_complaint(self, line: Object) -> None:
        self.tracker.add_notice(text_of(line, "text"), "warning")


class TestDriver:
    """How to speak to it."""

    __test__ = False

    capabilities = CAPABILITIES
    waits_for_log = False

    def spawn(self, start: Start) -> Spawn:
        resume = ("--resume", start.native_session_id) if start.native_session_id else ()
        return Spawn(argv=(sys.executable, "-m", "quarterdeck.testing.agent", *resume, *start.arguments))

    def opening(self, start: Start) -> Lines:
        return [{"op": "model", "model": start.model}] if start.model else []

    def heard(self, signal: Signal) -> Lines:
        return []

    def prompt(self, text: str, message_id: str, images: tuple[Image, ...] = ()) -> Lines:
        shown = {"images": msgspec.to_builtins(images)} if images else {}
        return [{"op": "prompt", "id": message_id, "text": text, **shown}]

    def steer(self, text: str, ref: str) -> Lines:
        return [{"op": "steer", "id": ref, "text": text}]

    def interrupt(self, kill_tools: KillTools = "killable") -> Lines:
        return [{"op": "interrupt", "kill_tools": kill_tools}]

    def answer(self, gate: Gate, decision: Decision) -> Lines:
        if gate.kind == "approval":
            return [{"op": "answer", "id": gate.ref, "allow": decision.status == "approved"}]
        if gate.kind == "dialog":
            cancelled = decision.status == "cancelled"
            return [{"op": "answer", "id": gate.ref, "value": decision.answer, "cancelled": cancelled}]
        return [{"op": "answer", "id": gate.ref, "text": decision.answer}]

    def switch_model(self, model: str) -> Lines:
        return [{"op": "model", "model": model}]

    def switch_mode(self, mode: str) -> Lines:
        raise CannotDo("test", "switch its mode while it runs")

    def compact(self) -> Lines:
        raise CannotDo("test", "compact")

    def bash(self, command: str, bash_id: str) -> Lines:
        raise CannotDo("test", "run shell commands of yours")

    def farewell(self) -> Lines:
        return [{"op": "bye"}]


def harness(agent: str) -> Harness:
    return Harness(agent, TestDriver, TestTranslator)
