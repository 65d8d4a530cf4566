"""How to speak to the engine's process (quarterdeck/engine/process.py)."""

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
from quarterdeck.harness.registry import Harness, Standing
from quarterdeck.kernel.gate import Gate

#: What a newcomer's first session does, if nobody says anything else.
FIRST_PROMPT = "Show me what you can do."


class BuiltinDriver:
    """Says what a person wants as orders of one line each."""

    capabilities = CAPABILITIES
    waits_for_log = True

    def spawn(self, start: Start) -> Spawn:
        """Without the session's folder on the path, where a file may have the name of a module."""
        return Spawn(argv=(sys.executable, "-P", "-m", "quarterdeck.engine", *start.arguments))

    def opening(self, start: Start) -> Lines:
        line: dict[str, Json] = {"model": self.model(start.model), "mode": start.mode}
        if not start.native_session_id:
            return [{"op": "open", **line}]
        events = history.told(start.history, start.native_session_id)
        return [{"op": "restore", "session": start.native_session_id, **line, "events": events}]

    def model(self, wanted: str) -> str:
        return wanted

    def heard(self, signal: Signal) -> Lines:
        """What it wants kept is answered when it is (`waits_for_log`)."""
        number = object_of(signal.data).get("keep") if signal.src == "stdout" else None
        return [{"op": "kept", "n": number}] if isinstance(number, int) else []

    def prompt(self, text: str, message_id: str, images: tuple[Image, ...] = ()) -> Lines:
        shown = {"images": to_builtins(images)} if images else {}
        return [{"op": "prompt", "id": message_id, "text": text, **shown}]

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

    def farewell(self) -> Lines:
        return [{"op": "bye"}]


class DemoDriver(BuiltinDriver):
    """The same with a model that follows a script: no key, no network."""

    def model(self, wanted: str) -> str:
        return wanted if wanted.startswith("demo:") else f"demo:{wanted or 'tour'}"


def _standing(environment: Mapping[str, str]) -> Standing:
    from quarterdeck.engine.setup import ready_providers

    if ready_providers(environment):
        return Standing(login="ok")
    return Standing(login="missing", hint="Set ANTHROPIC_API_KEY, OPENAI_API_KEY or GEMINI_API_KEY.")


def harness(agent: str) -> Harness:
    return Harness(agent, BuiltinDriver, BuiltinTranslator, history.TYPES, _standing)


def demo(agent: str) -> Harness:
    return Harness(agent, DemoDriver, BuiltinTranslator, history.TYPES, lambda _: Standing(login="ok"), FIRST_PROMPT)
