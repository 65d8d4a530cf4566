"""What a session is, as opposed to what it does: who serves it, where, under which name and settings."""

from __future__ import annotations

from msgspec import Struct

from quarterdeck.events import Repo

#: Modes in which the agent approves things by itself.
AUTO_MODES = frozenset({"auto", "bypass"})
NAME_LENGTH = 40


class Changes(Struct, frozen=True, gc=False):
    """What the session changed in its repository."""

    files: int = 0
    added: int = 0
    removed: int = 0


class Context(Struct, frozen=True, gc=False):
    """How full the model's context is; None is unknown."""

    tokens: int | None = None
    limit: int | None = None
    percent: float | None = None


class Failure(Struct, frozen=True, gc=False):
    """Why the session shows an error. A reset time that nobody told stays unknown."""

    kind: str
    message: str
    resets_at: int | None = None


class Profile(Struct, frozen=True, gc=False):
    """Everything here changes rarely and by an event of its own."""

    id: str = ""
    agent: str = ""
    cwd: str = ""
    name: str = ""
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
    resumable: bool = False
    #: No agent was ever ready for it.
    unmet: bool = False
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
        """The agent can go on in its conversation; or there is none yet, and a start is all that is missing."""
        return self.resumable or self.unmet

    @property
    def approves_itself(self) -> bool:
        return self.auto_approve or self.mode in AUTO_MODES


def label(prompt: str) -> str:
    """A name for a session that nobody named: the prompt's first line, cut."""
    line = prompt.strip().partition("\n")[0].strip()
    return line if len(line) <= NAME_LENGTH else line[: NAME_LENGTH - 1].rstrip() + "…"
