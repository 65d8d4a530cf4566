"""Run the scripted agent with one more command: `write FILE TEXT` appends a line to a file.

A message that was executed twice shows up as a second line. Run as a program, this module is the agent. Imported, it
provides the harness that starts the agent.
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
#: The built-in agent. Its module, engine.py, is imported only when a session uses it.
ENGINE = "engine"


class WritingAgent(agent.ScriptedAgent):
    """The scripted agent with ids that are unique over restarts, as those of real agents are."""

    def next_id(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}-{os.getpid()}-{self.session}"

    def say(self, kind: str, **fields: Any) -> None:
        """Execute the first command of a steering message too, so that it leaves evidence."""
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
