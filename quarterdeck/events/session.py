"""The session as a durable thing, the process that serves it, and the agent inside that process."""

from __future__ import annotations

from typing import Literal, TypeAlias

from quarterdeck.events.base import Body, Image, Repo

ActivityName: TypeAlias = Literal["initialized", "idle", "active", "exited"]
ActivitySub: TypeAlias = Literal["thinking", "tool_use", "waiting_for_permission", "compacting"]


class SessionOpened(Body):
    """A session was created. With a prompt it is a start of 000; without one it waits for its first message."""

    agent: str
    cwd: str = ""
    prompt: str | None = None
    message_id: str = ""
    images: tuple[Image, ...] = ()
    name: str = ""
    model: str = ""
    mode: str = ""
    repo: Repo | None = None
    owner: Literal["deck", "terminal"] = "deck"
    continues: str = ""
    #: Flags of the agent's own, for its command line.
    arguments: tuple[str, ...] = ()
    #: Whether an environment was given for its agent; what was in it is nowhere.
    own_environment: bool = False


class SessionResumed(Body):
    """A suspended session is active again."""

    by: str = ""


class SessionSuspended(Body):
    """The server stopped, or found this session without its process after a crash."""

    reason: str = ""


class SessionArchived(Body):
    """A person put the session away. `end_reason` is `cancelled` when they ended it."""

    end_reason: str = "archived"


class SessionFailed(Body):
    """A fatal error: the session can never be continued."""

    message: str = ""
    kind: str = "internal"


class SessionRenamed(Body):
    """A new name for the list."""

    name: str


class SessionMarked(Body):
    """What a person marked: pinned, snoozed (0 wakes it), read up to an index. Fields left out stay as they are."""

    pinned: bool | None = None
    snoozed_until: int | None = None
    read_index: int | None = None


class SessionDeleted(Body):
    """The last word about a session, on the stream of all sessions only."""


class OwnerChanged(Body):
    """Another deck process, or another surface, owns this session from here on."""

    epoch: int
    owner: Literal["deck", "terminal"] | None = None


class ProcessStarting(Body):
    """An agent process is being started; pid, start time and nonce are its identity."""

    pid: int | None = None
    started_at: int | None = None
    nonce: str = ""


class ProcessError(Body):
    """The process could not be started, or reported that it failed."""

    message: str = ""


class ProcessExited(Body):
    """The process is gone. `asked` when we ended it ourselves: such an exit is never a failure."""

    code: int | None = None
    signal: str | None = None
    asked: bool = False


class AgentReady(Body):
    """The agent answers and has a session of its own. Said again when that session is replaced (/clear)."""

    native_session_id: str = ""
    model: str = ""
    version: str = ""
    capabilities: tuple[str, ...] = ()
    resumable: bool | None = None


class AgentEnded(Body):
    """The agent said that its session is over. The process may live on."""

    reason: str = ""


class StateChange(Body):
    """003's state, as the translator or the engine derived it; all debounce and counting is done by then."""

    state: ActivityName
    sub: ActivitySub | None = None
