"""Drive the engine's process (`quarterdeck/engine/process.py`) with one JSON line per command."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from msgspec import to_builtins

from quarterdeck.events import Image, Json
from quarterdeck.harness.base import Signal, object_of
from quarterdeck.harness.builtin import history
from quarterdeck.harness.builtin.capabilities import CAPABILITIES
from quarterdeck.harness.builtin.translate import BuiltinTranslator
from quarterdeck.harness.driver import Decision, KillTools, Lines, Spawn, Start
from quarterdeck.harness.registry import Availability, Harness
from quarterdeck.kernel.gate import Gate

#: The prompt of a demo session that was started without one.
FIRST_PROMPT = "Show me what you can do."


class BuiltinDriver:
    """Drives one engine process."""

    capabilities = CAPABILITIES
    #: The engine continues only when the events that it sent are durable, like an agent that writes its own log.
    waits_for_log = True

    def spawn(self, start: Start) -> Spawn:
        # -P keeps the session's directory off sys.path, where a file could shadow a module.
        return Spawn(argv=(sys.executable, "-P", "-m", "quarterdeck.engine", *start.arguments))

    def open(self, start: Start) -> Lines:
        line: dict[str, Json] = {"model": self.model(start.model), "mode": start.mode}
        if not start.native_session_id:
            return [{"op": "open", **line}]
        events = history.bodies_to_restore(start.history, start.native_session_id)
        return [{"op": "restore", "session": start.native_session_id, **line, "events": events}]

    def model(self, name: str) -> str:
        """Return the model to use for what the user asked for."""
        return name

    def respond(self, signal: Signal) -> Lines:
        """Acknowledge events that the engine wants stored. The deck sends this once they are durable."""
        number = object_of(signal.data).get("keep") if signal.src == "stdout" else None
        return [{"op": "kept", "n": number}] if isinstance(number, int) else []

    def prompt(self, text: str, message_id: str, images: tuple[Image, ...] = ()) -> Lines:
        attached = {"images": to_builtins(images)} if images else {}
        return [{"op": "prompt", "id": message_id, "text": text, **attached}]

    def steer(self, text: str, ref: str) -> Lines:
        return [{"op": "steer", "id": ref, "text": text}]

    def interrupt(self, kill_tools: KillTools = "killable") -> Lines:
        return [{"op": "interrupt", "kill_tools": kill_tools}]

    def answer(self, gate: Gate, decision: Decision) -> Lines:
        line: dict[str, Json] = {"op": "answer", "ref": gate.ref, "status": decision.status}
        if decision.status == "answered":
            line["answer"] = decision.answer
        if decision.reason:
            line["reason"] = decision.reason
        if decision.stops or not decision.resumes:
            line["auto_resume"] = False
        return [line]

    def switch_model(self, model: str) -> Lines:
        return [{"op": "model", "model": self.model(model)}]

    def switch_mode(self, mode: str) -> Lines:
        return [{"op": "mode", "mode": mode}]

    def compact(self) -> Lines:
        return [{"op": "compact"}]

    def bash(self, command: str, bash_id: str) -> Lines:
        return [{"op": "bash", "id": bash_id, "command": command}]

    def quit(self) -> Lines:
        return [{"op": "bye"}]


class DemoDriver(BuiltinDriver):
    """Drives an engine whose model follows a script: it needs no key and no network."""

    def model(self, name: str) -> str:
        return name if name.startswith("demo:") else f"demo:{name or 'tour'}"


def _availability(environment: Mapping[str, str]) -> Availability:
    from quarterdeck.engine.setup import ready_providers

    if ready_providers(environment):
        return Availability(login="ok")
    return Availability(login="missing", hint="Set ANTHROPIC_API_KEY, OPENAI_API_KEY or GEMINI_API_KEY.")


def harness(agent: str) -> Harness:
    return Harness(agent, BuiltinDriver, BuiltinTranslator, history.TYPES, _availability)


def demo(agent: str) -> Harness:
    return Harness(
        agent, DemoDriver, BuiltinTranslator, history.TYPES, lambda _: Availability(login="ok"), FIRST_PROMPT
    )
