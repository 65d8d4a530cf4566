"""What can be set, with its defaults (design section 9). Defaults < config.toml < environment < options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from quarterdeck.errors import QuarterdeckError
from quarterdeck.kernel.routing import STEERING_LIMIT
from quarterdeck.log.tail import TAIL

#: Seed 002's own name for the idle timeout, in minutes.
IDLE_TIMEOUT = "AGENT_SESSION_IDLE_TIMEOUT"


Seconds: TypeAlias = Annotated[float, Meta(gt=0)]
Count: TypeAlias = Annotated[int, Meta(ge=0)]
#: Absolute: the server is started from anywhere.
Folder: TypeAlias = Annotated[str, Meta(pattern="^[/~]")]


class InvalidSetting(QuarterdeckError):
    """A setting that cannot be read."""

    code = "invalid_setting"


class Settings(Struct, frozen=True, kw_only=True):
    """Seconds, unless the name says otherwise."""

    running_limit: Annotated[int, Meta(ge=1)] = 8
    start_timeout: Seconds = 30.0
    stop_grace: Seconds = 5.0
    shutdown_within: Seconds = 10.0
    idle_timeout: Seconds = 30 * 60.0
    reaper_every: Seconds = 5 * 60.0
    retention_every: Seconds = 24 * 60 * 60.0
    #: A session whose background work never ends is not kept awake by it for longer than this.
    background_cap: Seconds = 6 * 60 * 60.0
    #: After the machine slept, deadlines and the reaper wait this long.
    pause_after_sleep: Seconds = 60.0
    #: Sessions may be started in these folders and below; empty is anywhere.
    workspace: tuple[Folder, ...] = ()
    #: Whether snapshots of the sessions' repositories are taken, to tell what changed.
    track_changes: bool = True
    steering_limit: Count = STEERING_LIMIT
    tail: Count = TAIL
    text_limit: Count = 4 * 1024 * 1024
    images_limit: Count = 20 * 1024 * 1024
    delivery_retries: Count = 3
    #: What is said to an agent when a person presses Resume and says nothing.
    continue_text: str = "Continue where you left off."


def settings_from(environment: Mapping[str, str], **options: object) -> Settings:
    """The defaults with what the environment and the caller say; InvalidSetting names what cannot be read."""
    values = dict(options)
    minutes = environment.get(IDLE_TIMEOUT)
    if minutes is not None and "idle_timeout" not in values:
        values["idle_timeout"] = _minutes(minutes)
    return Settings(**values)  # type: ignore[arg-type]


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = -1.0
    if not 0 < minutes < 1e6:
        raise InvalidSetting(f"{IDLE_TIMEOUT} is {text!r}", "Give the idle time of a process in minutes, such as 30.")
    return minutes * 60
