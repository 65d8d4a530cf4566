"""The JSON of the API as types: a session as `GET /sessions/ID` shows it, and what surrounds sessions."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from quarterdeck.events import Plan, Todo
from quarterdeck.kernel.profile import Context
from quarterdeck.kernel.queue import Queue
from quarterdeck.kernel.summary import GateShown, Summary
from quarterdeck.kernel.turn import Task
from quarterdeck.kernel.usage import Ledger


class SessionView(Summary, frozen=True):
    """One session: the summary that stands in lists, and its details."""

    gates: tuple[GateShown, ...]
    stale_gates: tuple[GateShown, ...]
    queue: Queue
    # The view replaces two fields of the summary by what they count (contract section 2).
    background: tuple[Task, ...]  # pyright: ignore[reportIncompatibleVariableOverride]
    usage: Ledger  # pyright: ignore[reportIncompatibleVariableOverride]
    capabilities: tuple[str, ...]
    todos: tuple[Todo, ...]
    plan: Plan | None
    context: Context | None
    thinking: str | None
    deletes_at: int | None
    native_session_id: str
    fold_version: int


class AgentInfo(Struct, frozen=True):
    """An agent that the server knows."""

    name: str
    #: Whether sessions with this agent can be started from here.
    driven: bool
    modes: tuple[str, ...] = ()
    #: None if it can't be determined.
    installed: bool | None = None
    login: Literal["ok", "missing", "unknown"] = "unknown"
    #: What to do about a missing installation or login.
    hint: str = ""
    #: The prompt that a session starts with if the user gives none.
    prompt: str = ""


class EnvironmentInfo(Struct, frozen=True):
    """Where agents get their environment from. Its variables are never sent."""

    source: str
    shell: str
    asked_at: int
    variables: int
    #: Why the login shell couldn't be asked; empty if it could.
    problem: str
