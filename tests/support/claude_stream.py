"""Feed a conversation over standard streams to a translator in tests: lines of the agent and of ours.

talk = StreamTalk("pi").out({"type": "agent_start"})
talk.wait(0.2)
assert talk.phase == "streaming"
"""

from __future__ import annotations

from typing import Any, Self

from quarterdeck import events as ev
from tests.support.translator_session import Talk

_STEP_S = 0.001


class StreamTalk(Talk):
    """A conversation whose steps return the object itself, so that they can be chained."""

    def opened(self, prompt: str) -> Self:
        """Open the session with a prompt, so it is being created."""
        self._fold([ev.SessionOpened(agent=self.agent, prompt=prompt)], "supervisor")
        return self

    def out(self, *lines: Any, src: str = "stdout") -> Self:
        """Feed lines of the agent, shortly after each other."""
        for line in lines:
            self.feed(src, line, _STEP_S)
        return self

    def send(self, *lines: Any) -> Self:
        """Feed lines that we send to the agent."""
        return self.out(*lines, src="stdin")

    def proc(self, event: str, **fields: Any) -> Self:
        """Feed an event of the process."""
        return self.out({"event": event, **fields}, src="proc")

    def after(self, seconds: float) -> Self:
        """Let time pass."""
        self.wait(seconds)
        return self
