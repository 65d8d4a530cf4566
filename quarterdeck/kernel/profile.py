"""Hold what a session is, as opposed to what it does: its agent, folder, name and settings."""

from __future__ import annotations

from msgspec import Struct

from quarterdeck.events import Repo

#: Modes in which the agent approves calls by itself.
AUTO_MODES = frozenset({"auto", "bypass"})
NAME_LENGTH = 40


class Changes(Struct, frozen=True, gc=False):
    """What the session changed in its repository."""

    files: int = 0
    added: int = 0
    removed: int = 0


class Context(Struct, frozen=True, gc=False):
    """How full the model's context is. None means unknown."""

    tokens: int | None = None
    limit: int | None = None
    percent: float | None = None


class Failure(Struct, frozen=True, gc=False):
    """Why the session shows an error. `resets_at` is None unless the agent reported a reset time."""

    kind: str
    message: str
    resets_at: int | None = None


# The stored name of a renamed field stays, so that snapshots written before the rename can be read.
class Profile(Struct, frozen=True, gc=False, rename={"never_ready": "unmet"}):
    """Properties of a session that change rarely, each by an event of its own."""

    id: str = ""
    agent: str = ""
    cwd: str = ""
    name: str = ""
    #: Where the name comes from: user, agent or prompt.
    named_by: str = ""
    model: str = ""
    mode: str = ""
    thinking: str | None = None
    auto_approve: bool = False
    repo: Repo | None = None
    owner: str = "deck"
    epoch: int = 0
    created_at: int = 0
    native_session_id: str = ""
    agent_version: str = ""
    capabilities: tuple[str, ...] = ()
    #: The agent can continue its conversation after a restart.
    resumable: bool = False
    #: No agent of this session was ever ready.
    never_ready: bool = False
    end_reason: str | None = None
    pinned: bool = False
    snoozed_until: int | None = None
    read_index: int = 0
    changes: Changes = Changes()
    context: Context | None = None
    continues: str = ""
    arguments: tuple[str, ...] = ()

    @property
    def can_resume(self) -> bool:
        """Whether the session can be resumed. Without a conversation yet, starting an agent is enough."""
        return self.resumable or self.never_ready

    @property
    def approves_itself(self) -> bool:
        return self.auto_approve or self.mode in AUTO_MODES


def label(prompt: str) -> str:
    """Derive a session's name from its first prompt: the first line, shortened."""
    line = prompt.strip().partition("\n")[0].strip()
    return line if len(line) <= NAME_LENGTH else line[: NAME_LENGTH - 1].rstrip() + "…"
