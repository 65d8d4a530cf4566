"""How an agent is set up: everything that `create_agent` takes and that does not change while it lives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from quarterdeck.engine.tools.base import Tool
from quarterdeck.events import Json


class RetryPolicy(Struct, frozen=True):
    """How often a request that failed in passing is tried again, and after how long: doubled each time, up to a limit."""

    attempts: int = 4
    first_s: float = 1.0
    longest_s: float = 30.0
    #: A provider that asks for more than this is not waited for: the turn fails, and a person is told.
    patience_s: float = 300.0

    def may_wait(self, attempt: int, asked: float | None) -> bool:
        """Whether there is another attempt."""
        return attempt <= self.attempts and (asked is None or asked <= self.patience_s)

    def delay(self, attempt: int, asked: float | None) -> float:
        """Before this attempt; what the provider asks for counts."""
        return asked if asked is not None else min(self.first_s * 2 ** (attempt - 1), self.longest_s)


class SubAgent(Struct, frozen=True, kw_only=True):
    """A kind of sub-agent: what it has of its own. What is left out it has from its parent."""

    description: str = ""
    system_prompt: str | None = None
    model: str | None = None
    tools: Sequence[Tool] | None = None
    max_turns: int | None = None


class Options(Struct, frozen=True, kw_only=True):
    """See docs/agent.md."""

    cwd: Path
    system_prompt: str = ""
    max_turns: int = 100
    max_tokens: int | None = None
    max_steering_queue: int = 3
    thinking: str = ""
    mode: str = ""
    sandbox: str = ""
    response_format: dict[str, Json] | None = None
    user_data: Json = None
    allowed_paths: tuple[Path, ...] = ()
    environment: Mapping[str, str] | None = None
    store: Path | None = None
    subagents: Mapping[str, SubAgent] = {}
    immune: frozenset[str] = frozenset()
    retry: RetryPolicy = RetryPolicy()
    #: Seconds without a chunk.
    stall_s: float = 120.0
    subagent_s: float = 120.0
    #: Seconds that a plugin may think about one question.
    hook_s: float = 60.0
    #: Tokens that the model's context holds; unknown unless somebody says it.
    context_limit: int | None = None
    #: How full it may be before the conversation is shortened.
    compact_at: float = 0.8
    #: How many of the newest messages stay as they are then.
    keep_messages: int = 6
