"""Drive and read the scripted agent (`quarterdeck.testing.agent`). This is the smallest complete harness."""

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
    """Reads the lines of `quarterdeck.testing.agent`. Each type of line has a method `read_TYPE`."""

    __test__ = False  # Keeps pytest from collecting this class because of its name.

    def __init__(self) -> None:
        super().__init__()
        #: Gates that the agent waits for → their kind.
        self.open_gates: dict[str, str] = {}
        self.readers |= {"stdout": self._read_stdout, "stdin": self._read_stdin}

    def _read_stdout(self, data: Json) -> bool:
        line = object_of(data)
        reader = getattr(self, f"read_{text_of(line, 'type')}", None)
        if reader is None:
            return isinstance(data, str)
        reader(line)
        return True

    def _read_stdin(self, data: Json) -> bool:
        """Read our answer to a gate, before the agent confirms it."""
        line = object_of(data)
        gate_id = text_of(line, "id")
        kind = self.open_gates.get(gate_id) if text_of(line, "op") == "answer" else None
        by = text_of(line, "by")
        if kind == "approval":
            self.tracker.resolve_approval(gate_id, "approved" if line.get("allow") else "rejected", by=by)
        elif kind == "question":
            self.tracker.answer_question(gate_id, line.get("text"), by=by, message_id=text_of(line, "message_id"))
        elif kind == "dialog":
            self.tracker.close_dialog(
                gate_id, line.get("value"), "cancelled" if line.get("cancelled") else "answered", by
            )
        return True

    def read_ready(self, line: Object) -> None:
        self.tracker.report_ready(text_of(line, "session"), "test-model", "1", CAPABILITIES.names, resumable=True)

    def read_turn_start(self, line: Object) -> None:
        images = tuple(
            Image(media_type=text_of(image, "media_type"), data=text_of(image, "data"), path=text_of(image, "path"))
            for image in map(object_of, list_of(line, "images"))
        )
        self.tracker.record_prompt(text_of(line, "text"), text_of(line, "id"), images=images)
        self.tracker.start_request()

    def read_turn_end(self, line: Object) -> None:
        outcome = text_of(line, "outcome")
        if outcome == "interrupted":
            self.tracker.abort_turn("interrupted")
        elif outcome == "failed":
            self.tracker.fail_turn("api", text_of(line, "message"))
        else:
            self.tracker.end_turn()

    def read_text(self, line: Object) -> None:
        self.tracker.add_text(text_of(line, "id"), 0, text_of(line, "delta"))

    def read_text_end(self, line: Object) -> None:
        self.tracker.finish_message(text_of(line, "id"))

    def read_thought(self, line: Object) -> None:
        self.tracker.add_thinking(text_of(line, "id"), 0, text_of(line, "delta"))

    def read_thought_end(self, line: Object) -> None:
        self.tracker.finish_message(text_of(line, "id"))

    def read_call(self, line: Object) -> None:
        self.tracker.open_call(text_of(line, "id"), text_of(line, "name"), line.get("args"))

    def read_call_start(self, line: Object) -> None:
        self.tracker.start_call(text_of(line, "id"), text_of(line, "name"), line.get("args"))

    def read_call_end(self, line: Object) -> None:
        self.tracker.end_call(text_of(line, "id"), bool(line.get("ok")), line.get("result"))

    def read_may_i(self, line: Object) -> None:
        gate_id = text_of(line, "id")
        self.open_gates[gate_id] = "approval"
        self.tracker.open_approval(gate_id, text_of(line, "name"), line.get("args"), text_of(line, "call"), "command")

    def read_question(self, line: Object) -> None:
        gate_id = text_of(line, "id")
        self.open_gates[gate_id] = "question"
        self.tracker.open_question(gate_id, text_of(line, "text"))

    def read_dialog(self, line: Object) -> None:
        gate_id, method = text_of(line, "id"), text_of(line, "method")
        self.open_gates[gate_id] = "dialog"
        self.tracker.open_dialog(gate_id, _METHODS.get(method, "confirm"), text_of(line, "title"))

    def read_background(self, line: Object) -> None:
        self.tracker.start_background("shell", text_of(line, "id"), text_of(line, "title"))

    def read_background_end(self, line: Object) -> None:
        self.tracker.end_background(text_of(line, "id"), bool(line.get("ok")))

    def read_heard(self, line: Object) -> None:
        self.open_gates.pop(text_of(line, "id"), None)

    def read_steered(self, line: Object) -> None:
        self.tracker.emit(
            ev.SteeringApplied(refs=(text_of(line, "id"),), count=1, turn_id=self.tracker.turn_id or None)
        )

    def read_model(self, line: Object) -> None:
        self.tracker.emit(ev.ModelSwitched(to=text_of(line, "model")))

    def read_deaf(self, line: Object) -> None:
        """Report that the agent stopped reading its input, for tests that must wait for that."""
        self.tracker.emit(ev.StatusUpdate(text="deaf"))

    def read_complaint(self, line: Object) -> None:
        self.tracker.add_notice(text_of(line, "text"), "warning")


class TestDriver:
    """Drives one process of the scripted agent."""

    __test__ = False

    capabilities = CAPABILITIES
    waits_for_log = False

    def spawn(self, start: Start) -> Spawn:
        resume = ("--resume", start.native_session_id) if start.native_session_id else ()
        return Spawn(argv=(sys.executable, "-m", "quarterdeck.testing.agent", *resume, *start.arguments))

    def open(self, start: Start) -> Lines:
        return [{"op": "model", "model": start.model}] if start.model else []

    def respond(self, signal: Signal) -> Lines:
        return []

    def prompt(self, text: str, message_id: str, images: tuple[Image, ...] = ()) -> Lines:
        attached = {"images": msgspec.to_builtins(images)} if images else {}
        return [{"op": "prompt", "id": message_id, "text": text, **attached}]

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
        raise CannotDo("test", "run shell commands")

    def quit(self) -> Lines:
        return [{"op": "bye"}]


def harness(agent: str) -> Harness:
    """Return the scripted agent's harness."""
    return Harness(agent, TestDriver, TestTranslator)
