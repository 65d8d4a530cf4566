"""A conversation over standard streams for tests: lines of the agent and of ours, one after the other.

talk = StreamTalk("pi").out({"type": "agent_start"})
talk.wait(0.2)
assert talk.phase == "streaming"
"""

from __future__ import annotations

from typing import Any, Self

from quarterdeck import events as ev
from tests.talk import Talk

_STEP_S = 0.001


class StreamTalk(Talk):
    """Lines in, views out; each step answers itself, so that a test reads as a story."""

    def opened(self, prompt: str) -> Self:
        """The session was made with a prompt, so it is being created."""
        self._told([ev.SessionOpened(agent=self.agent, prompt=prompt)], "supervisor")
        return self

    def out(self, *lines: Any, src: str = "stdout") -> Self:
        """The agent says this, a moment apart."""
        for line in lines:
            self.feed(src, line, _STEP_S)
        return self

    def send(self, *lines: Any) -> Self:
        """We send this to the agent."""
        return self.out(*lines, src="stdin")

    def proc(self, event: str, **fields: Any) -> Self:
        """Something happens to the process."""
        return self.out({"event": event, **fields}, src="proc")

    def after(self, seconds: float) -> Self:
        """Time passes."""
        self.wait(seconds)
        return self
