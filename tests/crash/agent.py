"""The scripted agent with evidence: `write FILE TEXT` adds a line to a file, so that a text which ran twice is seen.

As a program it is the agent; imported, it gives the harness that starts it.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from quarterdeck.harness.driver import Spawn, Start
from quarterdeck.harness.registry import Harness
from quarterdeck.testing import agent
from quarterdeck.testing.harness import TestDriver, TestTranslator

NAME = "crash"
#: The built-in agent (engine.py), which is imported only by whoever starts it.
ENGINE = "engine"


class WritingAgent(agent.ScriptedAgent):
    """Names are unique over restarts, as those of real agents are."""

    def next_id(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}-{os.getpid()}-{self.session}"

    def say(self, kind: str, **fields: Any) -> None:
        """A text that reached it during a turn leaves its evidence too."""
        if kind == "steered":
            self.run_command(str(fields.get("text", "")).partition(";")[0].strip())
        super().say(kind, **fields)

    def do_write(self, rest: str) -> None:
        path, _, text = rest.partition(" ")
        with open(path, "ab", buffering=0) as file:
            file.write(text.encode() + b"\n")


class WritingDriver(TestDriver):
    def spawn(self, start: Start) -> Spawn:
        resume = ("--resume", start.native_session_id) if start.native_session_id else ()
        return Spawn(argv=(sys.executable, __file__, *resume))


def harness(name: str) -> Harness:
    return Harness(name, WritingDriver, TestTranslator)


if __name__ == "__main__":
    agent.ScriptedAgent = WritingAgent
    agent.main()
