"""Provide agents that differ from the scripted agent in one respect each. `known` registers them."""

from __future__ import annotations

import sys

import pytest
from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.events import Image
from quarterdeck.harness import registry
from quarterdeck.harness.base import Object, text_of
from quarterdeck.harness.driver import Decision, Lines, NotInstalled, Spawn, Start
from quarterdeck.harness.registry import Harness
from quarterdeck.kernel.gate import Gate
from quarterdeck.testing.harness import TestDriver, TestTranslator

NAMES = ("plain", "forgetful", "nameless", "missing", "mute", "early", "gated", "twin", "able", "lying", "holding")


def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register these agents by name, for the duration of a test."""
    for name in NAMES:
        monkeypatch.setitem(registry.HARNESSES, name, "tests.support.scripted_agents:harness")


class PlainDriver(TestDriver):
    """An agent that can't be steered and doesn't accept images."""

    capabilities = replace(TestDriver.capabilities, steer=False, images=False)


class PlainTranslator(TestTranslator):
    def read_ready(self, line: Object) -> None:
        self.tracker.report_ready(text_of(line, "session"), "test-model", "1", (), resumable=True)


class ForgetfulDriver(TestDriver):
    """An agent that can't resume an earlier conversation, and reports so."""

    capabilities = replace(TestDriver.capabilities, resume=False)

    def spawn(self, start: Start) -> Spawn:
        return super().spawn(replace(start, native_session_id=""))


class ForgetfulTranslator(TestTranslator):
    def read_ready(self, line: Object) -> None:
        self.tracker.report_ready(text_of(line, "session"), "test-model", "1", ("steer",), resumable=False)


class LyingTranslator(TestTranslator):
    """An agent that reports itself resumable although its driver can't resume it."""


class NamelessTranslator(TestTranslator):
    """An agent that reports itself resumable but doesn't report a session id."""

    def read_ready(self, line: Object) -> None:
        self.tracker.report_ready("", "test-model", "1", ("steer",), resumable=True)


class MissingDriver(TestDriver):
    """An agent whose program isn't installed."""

    def spawn(self, start: Start) -> Spawn:
        raise NotInstalled("missing", "missing-cli")


class MuteDriver(TestDriver):
    """An agent that starts and writes nothing."""

    def spawn(self, start: Start) -> Spawn:
        return Spawn(argv=(sys.executable, "-c", "import time; time.sleep(600)"))


class EarlyDriver(TestDriver):
    """An agent that writes an error and exits before it is ready."""

    def spawn(self, start: Start) -> Spawn:
        words = "import sys; sys.stderr.write('no such model\\n'); sys.stderr.flush(); sys.exit(3)"
        return Spawn(argv=(sys.executable, "-c", words))


_WAITS = """
import os, runpy, sys, time
while not os.path.exists("go"):
    time.sleep(0.01)
sys.argv = ["agent", *sys.argv[1:]]
runpy.run_module("quarterdeck.testing.agent", run_name="__main__")
"""


class GatedDriver(TestDriver):
    """An agent that becomes ready when its folder contains a file `go`."""

    def spawn(self, start: Start) -> Spawn:
        rest = super().spawn(start).argv[3:]
        return Spawn(argv=(sys.executable, "-c", _WAITS, *rest))


class TwinDriver(TestDriver):
    """An agent whose processes all share one conversation."""

    def spawn(self, start: Start) -> Spawn:
        return super().spawn(replace(start, native_session_id="twin"))


class HoldingDriver(TestDriver):
    """An agent that ends its turn by itself if the decision requires it."""

    capabilities = replace(TestDriver.capabilities, holds=True)

    def answer(self, gate: Gate, decision: Decision) -> Lines:
        return [{**line, "resumes": decision.resumes} for line in super().answer(gate, decision)]


class AbleDriver(TestDriver):
    """An agent with the capabilities that the scripted agent lacks."""

    capabilities = replace(
        TestDriver.capabilities, images=True, compact=True, bash=True, modes=("plan", "ask", "edits", "auto", "bypass")
    )

    def prompt(self, text: str, message_id: str, images: tuple[Image, ...] = ()) -> Lines:
        seen = f"; say saw {len(images)} images" if images else ""
        return super().prompt(text + seen, message_id)

    def switch_mode(self, mode: str) -> Lines:
        return [{"op": "model", "model": f"in mode {mode}"}]

    def compact(self) -> Lines:
        return [{"op": "model", "model": "compacted"}]

    def bash(self, command: str, bash_id: str) -> Lines:
        return [{"op": "model", "model": f"ran {command}"}]


class AbleTranslator(TestTranslator):
    def read_model(self, line: Object) -> None:
        self.tracker.emit(ev.Notice(text=text_of(line, "model"), level="info", source="agent"))


_MADE = {
    "plain": (PlainDriver, PlainTranslator),
    "forgetful": (ForgetfulDriver, ForgetfulTranslator),
    "lying": (ForgetfulDriver, LyingTranslator),
    "nameless": (TestDriver, NamelessTranslator),
    "missing": (MissingDriver, TestTranslator),
    "mute": (MuteDriver, TestTranslator),
    "early": (EarlyDriver, TestTranslator),
    "gated": (GatedDriver, TestTranslator),
    "twin": (TwinDriver, TestTranslator),
    "holding": (HoldingDriver, TestTranslator),
    "able": (AbleDriver, AbleTranslator),
}


def harness(agent: str) -> Harness:
    return Harness(agent, *_MADE[agent])
