"""Record events in a test: index and time are assigned automatically, and the view is folded along.

tape = Tape().opened("Fix the bug").add(AgentReady(), AgentStart())
assert tape.view.state.phase.value == "streaming"
"""

from __future__ import annotations

from quarterdeck.events import ApprovalRequired, Body, Event, GateRequest, Origin, SessionOpened
from quarterdeck.kernel.state import State
from quarterdeck.kernel.summary import Summary, summary
from quarterdeck.kernel.timeline import Entry, window
from quarterdeck.kernel.view import View, fold

#: Time of a tape's first event, and the interval between two events, in ms.
START = 1_700_000_000_000
STEP = 1_000


class Tape:
    """The events of one session, and the view after the last of them."""

    def __init__(self, session_id: str = "s1") -> None:
        self.session_id = session_id
        self.events: list[Event] = []
        self.view = View()

    def add(self, *bodies: Body, origin: Origin = "engine", after: int = STEP) -> Tape:
        """Add an event for each body, `after` ms apart."""
        for body in bodies:
            at = self.view.at + after if self.events else START
            event = Event(self.session_id, len(self.events) + 1, at, origin, body)
            self.events.append(event)
            self.view = fold(self.view, event)
        return self

    def opened(self, prompt: str | None = None, agent: str = "builtin") -> Tape:
        """Add session_opened. With a prompt, the session's phase becomes creating."""
        return self.add(SessionOpened(agent=agent, prompt=prompt, message_id="m0" if prompt else ""), origin="user")

    def phases(self, *bodies: Body) -> list[str]:
        """Add these bodies. Return the phases that are shown meanwhile, starting with the current one, without repeats."""
        seen = [self.phase]
        for body in bodies:
            self.add(body)
            if self.phase != seen[-1]:
                seen.append(self.phase)
        return seen

    @property
    def state(self) -> State:
        return self.view.state

    @property
    def phase(self) -> str:
        """The phase that a user sees."""
        return self.view.state.phase.value

    @property
    def row(self) -> Summary:
        """The session's row in the list."""
        return summary(self.view)

    @property
    def entries(self) -> list[Entry]:
        """The entries of the timeline."""
        return window(self.view.timeline)


def approval(gate_id: str = "g1", call_id: str = "", *, path: tuple[str, ...] = ()) -> ApprovalRequired:
    """Create the event of a call that needs approval."""
    return ApprovalRequired(gate=GateRequest(gate_id=gate_id, tool="shell", call_id=call_id), agent_path=path)


def tape(*bodies: Body, prompt: str | None = None) -> Tape:
    """Create a tape with session_opened and these bodies."""
    return Tape().opened(prompt).add(*bodies)
