"""Define the driver, the writing half of a harness (`base.py` has the reading half).

A driver is as pure as a translator. It says which process to start and which lines to write, and it sees every signal, so
that it can answer what the protocol requires (a handshake, a request of the agent). The deck owns the process, the pipes
and the time. Therefore one piece of I/O code serves all agents (`deck/agents/process.py`), and a driver is tested by
handing it signals and comparing the lines that it returns.

A driver doesn't imitate what its agent can't do. `capabilities` lists what it can; for the rest the deck finds another way
(it queues a text and delivers it after the turn) or refuses with an error.
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
#: Values for the agent's standard input. Each is written as one line of JSON.
Lines: TypeAlias = list[Json]


class Capabilities(Struct, frozen=True, kw_only=True):
    """What an agent can do."""

    steer: bool = False
    interrupt: bool = True
    #: A decision with `resumes=False` ends the agent's turn, so the deck doesn't interrupt it as well.
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
        """The capabilities that the agent has, as `agent_ready` lists them."""
        return tuple(name for name in self.__struct_fields__ if getattr(self, name))


class Start(Struct, frozen=True, kw_only=True):
    """How the deck wants an agent started."""

    cwd: str
    model: str = ""
    mode: str = ""
    #: The conversation to continue; "" for a new one.
    native_session_id: str = ""
    arguments: tuple[str, ...] = ()
    #: Earlier events of the session, for agents that have no memory but our log (`Harness.history`).
    history: tuple[Event, ...] = ()


class Spawn(Struct, frozen=True, kw_only=True):
    """The process to start."""

    argv: tuple[str, ...]
    #: Variables to set in addition to the session's environment.
    environment: Mapping[str, str] = {}


class Decision(Struct, frozen=True, kw_only=True):
    """How a gate was decided."""

    status: Literal["approved", "rejected", "answered", "cancelled"]
    #: A text, the id of an option, or one of these per question.
    answer: Json = None
    reason: str = ""
    always: bool = False
    #: The decision also ends the turn.
    stops: bool = False
    #: Without it the turn doesn't continue now. A call that was allowed may run when the agent asks for it again.
    resumes: bool = True


class NotInstalled(QuarterdeckError):
    """The agent's program isn't installed on this machine."""

    code = "agent_not_installed"

    def __init__(self, agent: str, program: str) -> None:
        super().__init__(f"{agent} isn't installed: program {program} not found", f"Install {program}, then try again.")


class CannotDo(QuarterdeckError):
    """The agent lacks an ability that Quarterdeck can't replace."""

    code = "agent_cannot"

    def __init__(self, agent: str, what: str, hint: str = "`GET /agents` lists what each agent can do.") -> None:
        super().__init__(f"{agent} can't {what}", hint)


class Driver(Protocol):
    """Speaks to one agent process. Every process gets a new driver."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def waits_for_log(self) -> bool:
        """Whether the lines of `respond` must wait until the events of the same signal are durable."""
        ...

    def spawn(self, start: Start) -> Spawn:
        """Return the process to start.

        Raises:
            NotInstalled: the agent's program wasn't found.
        """
        ...

    def open(self, start: Start) -> Lines:
        """Return the first lines, which are written before any signal arrived."""
        ...

    def respond(self, signal: Signal) -> Lines:
        """Return the lines that the protocol requires as a response to a signal."""
        ...

    def prompt(self, text: str, message_id: str, images: tuple[Image, ...] = ()) -> Lines: ...

    def steer(self, text: str, ref: str) -> Lines: ...

    def interrupt(self, kill_tools: KillTools = "killable") -> Lines:
        """End the turn. `kill_tools` is for agents that distinguish calls that may be killed from others."""
        ...

    def answer(self, gate: Gate, decision: Decision) -> Lines: ...

    def switch_model(self, model: str) -> Lines: ...

    def switch_mode(self, mode: str) -> Lines: ...

    def compact(self) -> Lines: ...

    def bash(self, command: str, bash_id: str) -> Lines:
        """Run a shell command of the user."""
        ...

    def quit(self) -> Lines:
        """Return the protocol's own way to stop the agent. Standard input is closed after it."""
        ...
