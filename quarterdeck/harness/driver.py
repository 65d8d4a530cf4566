"""The other half of a harness: the Driver, which knows how to speak to an agent.

A driver is as pure as a translator: it says what to start and which lines to write, and hears every signal so that it can
answer what the protocol wants answered (a handshake, a request of the agent). The deck owns the process, the pipes and
the time. So a driver is tested by handing it signals and reading what it would say, and one piece of I/O code serves all
agents (deck/process.py).

What an agent cannot do, its driver does not pretend: `capabilities` says it, and the deck does it instead (queues a text,
delivers it at the end of the turn) or refuses with a clear error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct

from quarterdeck.config import Mode
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Event, Image, Json
from quarterdeck.harness.base import Signal
from quarterdeck.kernel.gate import Gate

KillTools: TypeAlias = Literal["killable", "all", "none"]
#: Lines for the agent's standard input; each is written as one JSON line.
Lines: TypeAlias = list[Json]


class Capabilities(Struct, frozen=True, kw_only=True):
    """What an agent can do, as data. Everything that is not said is not there."""

    steer: bool = False
    interrupt: bool = True
    #: A decision that does not resume ends its turn: it need not be interrupted besides.
    holds: bool = False
    approvals: bool = False
    questions: bool = False
    dialogs: bool = False
    resume: bool = False
    images: bool = False
    switch_model: bool = False
    compact: bool = False
    bash: bool = False
    modes: tuple[Mode, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Those that it has, as agent_ready tells them."""
        return tuple(name for name in self.__struct_fields__ if getattr(self, name))


class Start(Struct, frozen=True, kw_only=True):
    """What the deck wants started. `native_session_id` is set when an earlier conversation is to go on."""

    cwd: str
    model: str = ""
    mode: str = ""
    native_session_id: str = ""
    arguments: tuple[str, ...] = ()
    #: What the session did so far, for agents whose only memory is our log (Harness.history).
    history: tuple[Event, ...] = ()


class Spawn(Struct, frozen=True, kw_only=True):
    """The process to start: its arguments and what its environment must hold besides the caller's."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = {}


class Decision(Struct, frozen=True, kw_only=True):
    """How a gate is decided. `answer` is a text, an option's id, or a list of them per question; `stops` ends the turn.

    Without `resumes` the decision is kept and the turn does not go on by it: a call that was allowed may run when it comes
    again.
    """

    status: Literal["approved", "rejected", "answered", "cancelled"]
    answer: Json = None
    reason: str = ""
    always: bool = False
    stops: bool = False
    resumes: bool = True


class NotInstalled(QuarterdeckError):
    """The agent's program is not on this machine."""

    code = "agent_not_installed"

    def __init__(self, agent: str, program: str) -> None:
        super().__init__(f"{agent} is not installed: no program {program}", f"Install {program}, then try again.")


class CannotDo(QuarterdeckError):
    """The agent has no such ability, and nobody can do it for it."""

    code = "agent_cannot"

    def __init__(self, agent: str, what: str, hint: str = "`GET /agents` lists what each agent can do.") -> None:
        super().__init__(f"{agent} cannot {what}", hint)


class Driver(Protocol):
    """How to speak to one agent process. A new driver for every process."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def waits_for_log(self) -> bool:
        """Whether the lines of `heard` must be written only after the events of the same signal are durable."""
        ...

    def spawn(self, start: Start) -> Spawn:
        """What to start; NotInstalled when its program is not there."""
        ...

    def opening(self, start: Start) -> Lines:
        """What is said first, before anything came."""
        ...

    def heard(self, signal: Signal) -> Lines:
        """What the protocol wants said in answer to this, if anything."""
        ...

    def prompt(self, text: str, message_id: str, images: tuple[Image, ...] = ()) -> Lines: ...

    def steer(self, text: str, ref: str) -> Lines: ...

    def interrupt(self, kill_tools: KillTools = "killable") -> Lines:
        """Ends the turn. `kill_tools` is for agents that can tell calls which may be killed from others."""
        ...

    def answer(self, gate: Gate, decision: Decision) -> Lines: ...

    def switch_model(self, model: str) -> Lines: ...

    def switch_mode(self, mode: str) -> Lines: ...

    def compact(self) -> Lines: ...

    def bash(self, command: str, bash_id: str) -> Lines: ...

    def farewell(self) -> Lines:
        """The protocol's own way to stop, before standard input is closed."""
        ...
