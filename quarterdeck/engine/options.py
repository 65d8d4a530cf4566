"""Declare the options of the built-in agent.

`AgentOptions` types the keyword arguments of `create_agent` and `resume`. `ResolvedOptions` is their validated form, with
the defaults; the agent's turns read it, and it doesn't change while the agent runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TypeAlias, TypedDict, cast

from msgspec import Struct
from msgspec.structs import fields

from quarterdeck.engine.errors import InvalidOption
from quarterdeck.engine.model import Model
from quarterdeck.engine.plugins.base import Plugin
from quarterdeck.engine.tools.base import Tool
from quarterdeck.events import Json

#: Returns the model for a name such as `anthropic:NAME` and the provider's options, and the provider's own name of it.
ModelResolver: TypeAlias = Callable[[str, Mapping[str, Json]], tuple[Model, str]]


class RetryPolicy(Struct, frozen=True):
    """How often a request that failed transiently is repeated. The delay doubles with each attempt, up to a limit."""

    attempts: int = 4
    first_s: float = 1.0
    longest_s: float = 30.0
    #: The turn fails if the provider asks for a longer delay than this.
    patience_s: float = 300.0

    def may_retry(self, attempt: int, retry_after: float | None) -> bool:
        return attempt <= self.attempts and (retry_after is None or retry_after <= self.patience_s)

    def delay(self, attempt: int, retry_after: float | None) -> float:
        """Return the seconds to wait before this attempt. A delay that the provider asked for takes precedence."""
        return retry_after if retry_after is not None else min(self.first_s * 2 ** (attempt - 1), self.longest_s)


class SubAgent(Struct, frozen=True, kw_only=True):
    """A kind of sub-agent. Fields that aren't set are inherited from the parent."""

    description: str = ""
    system_prompt: str | None = None
    model: str | None = None
    tools: Sequence[Tool] | None = None
    max_turns: int | None = None


class AgentOptions(TypedDict, total=False):
    """Keyword arguments of `create_agent` and `resume`. docs/agent.md describes each of them."""

    tools: Sequence[Tool] | None
    plugins: Sequence[Plugin]
    subagents: Mapping[str, SubAgent]
    system_prompt: str
    working_dir: str | PathLike[str]
    cwd: str | PathLike[str]
    max_turns: int
    max_tokens: int | None
    max_steering_queue: int
    event_buffer_size: int
    interrupt_immune_tools: Sequence[str]
    user_data: Json
    response_format: dict[str, Json] | None
    provider_opts: Mapping[str, Json]
    thinking: str
    mode: str
    sandbox: str
    allowed_paths: Sequence[str | PathLike[str]]
    environment: Mapping[str, str] | None
    store: str | PathLike[str] | None
    retry: RetryPolicy
    stall_after: float
    subagent_timeout: float
    hook_timeout: float
    context_limit: int | None
    compact_at: float
    keep_messages: int
    resolve: ModelResolver | None


class ResolvedOptions(Struct, frozen=True, kw_only=True):
    """Validated options with their defaults. The names are those of `AgentOptions`."""

    cwd: Path
    system_prompt: str = ""
    max_turns: int = 100
    max_tokens: int | None = None
    max_steering_queue: int = 3
    event_buffer_size: int = 0
    thinking: str = ""
    mode: str = ""
    sandbox: str = ""
    response_format: dict[str, Json] | None = None
    user_data: Json = None
    allowed_paths: tuple[Path, ...] = ()
    environment: Mapping[str, str] | None = None
    store: Path | None = None
    subagents: Mapping[str, SubAgent] = {}
    interrupt_immune_tools: frozenset[str] = frozenset()
    retry: RetryPolicy = RetryPolicy()
    #: Seconds without a chunk after which a request counts as stalled.
    stall_after: float = 120.0
    subagent_timeout: float = 120.0
    #: Seconds that a plugin's hook may take.
    hook_timeout: float = 60.0
    #: Size of the model's context in tokens, if the caller knows it.
    context_limit: int | None = None
    #: Fraction of the context that may be used before the conversation is compacted.
    compact_at: float = 0.8
    #: Number of newest messages that compaction keeps unchanged.
    keep_messages: int = 6


#: Smallest allowed value of each integer option.
_MINIMUMS = {"max_turns": 1, "max_steering_queue": 0, "event_buffer_size": 0, "keep_messages": 2}
_RESOLVED = frozenset(field.name for field in fields(ResolvedOptions))


def resolve_options(options: AgentOptions) -> ResolvedOptions:
    """Validate the options of an agent and fill in the defaults.

    Raises:
        InvalidOption: an option is unknown or has an invalid value.
    """
    _check_names(options)
    values = {name: value for name, value in options.items() if name in _RESOLVED}
    values["cwd"] = _resolve_cwd(options)
    values["allowed_paths"] = tuple(Path(path).resolve() for path in options.get("allowed_paths", ()))
    values["interrupt_immune_tools"] = frozenset(options.get("interrupt_immune_tools", ()))
    values["subagents"] = options.get("subagents") or {}
    values["retry"] = options.get("retry") or RetryPolicy()
    store = options.get("store")
    values["store"] = None if store is None else Path(store)
    for name, minimum in _MINIMUMS.items():
        value = cast("int", values.get(name, minimum))
        if value < minimum:
            raise InvalidOption(f"{name} can't be {value}", f"Use {minimum} or more.")
    hook_timeout = options.get("hook_timeout", 60.0)
    if not hook_timeout > 0:
        raise InvalidOption(f"hook_timeout can't be {hook_timeout}", "Use a number of seconds greater than 0.")
    return ResolvedOptions(**cast("dict[str, object]", values))  # type: ignore[arg-type]


def _check_names(options: AgentOptions) -> None:
    """Reject an option that doesn't exist, and suggest the one that was probably meant."""
    names = AgentOptions.__annotations__
    unknown = next((name for name in options if name not in names), None)
    if unknown is not None:
        from difflib import get_close_matches

        similar = get_close_matches(unknown, names, 1)
        hint = f"Did you mean {similar[0]}?" if similar else f"Options: {', '.join(sorted(names))}."
        raise InvalidOption(f"unknown option {unknown!r}", hint)


def _resolve_cwd(options: AgentOptions) -> Path:
    cwd = os.path.realpath(options.get("cwd") or options.get("working_dir") or ".")
    if not os.path.isdir(cwd):
        raise InvalidOption(f"{cwd} isn't a folder", "Pass the folder that the agent works in as cwd.")
    return Path(cwd)
