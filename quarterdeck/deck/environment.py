"""Choose the environment variables that an agent process starts with: the session's own, or the deck's default.

A session's own environment may hold secrets. It stays in memory and is used for every process of that session until the deck
closes. After a restart it's lost, and the session says so when its agent starts again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from quarterdeck.deck.login import Source
from quarterdeck.events import SessionOpened
from quarterdeck.files import write_atomic
from quarterdeck.log.base import Log

LOST = (
    "This session's custom environment was lost when the server restarted. "
    "Using your login shell's environment instead."
)
_KEY_BYTES = 32


class EnvironmentSource(Protocol):
    """Where the default environment of agents comes from."""

    @property
    def source(self) -> Source: ...
    @property
    def shell(self) -> str: ...
    @property
    def problem(self) -> str: ...
    @property
    def asked_at(self) -> int: ...
    @property
    def variables(self) -> int: ...

    async def current(self) -> Mapping[str, str]:
        """Return the environment as it is now."""
        ...

    async def refresh(self) -> None:
        """Read the environment again."""
        ...

    async def close(self) -> None: ...


class FixedEnvironment:
    """An environment that the caller passed in and that never changes."""

    shell = problem = ""
    asked_at = 0

    def __init__(self, environment: Mapping[str, str], source: Source = "caller") -> None:
        self._environment = dict(environment)
        self.source: Source = source

    @property
    def variables(self) -> int:
        return len(self._environment)

    async def current(self) -> Mapping[str, str]:
        return self._environment

    async def refresh(self) -> None:
        """Do nothing: a fixed environment has no source to read again."""

    async def close(self) -> None:
        """Do nothing: no process has to be ended."""


class ProcessEnvironment(NamedTuple):
    """The environment for one process, and a notice for the session if it isn't the expected one."""

    variables: Mapping[str, str]
    notice: str = ""


class Environments:
    """The environments of all sessions of a deck."""

    def __init__(self, usual: EnvironmentSource, log: Log) -> None:
        self.usual = usual
        self._log = log
        self._own: dict[str, Mapping[str, str]] = {}

    def __len__(self) -> int:
        return len(self._own)

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._own

    def add(self, session_id: str, own: Mapping[str, str]) -> None:
        """Set a session's own environment. If it has one already, nothing changes: the creation was repeated."""
        self._own.setdefault(session_id, dict(own))

    def forget(self, session_id: str) -> None:
        self._own.pop(session_id, None)

    async def for_session(self, session_id: str) -> ProcessEnvironment:
        """Return the environment for a process of this session that starts now."""
        own = self._own.get(session_id)
        if own is not None:
            return ProcessEnvironment(own)
        variables = await self.usual.current()
        notices = [LOST] if await self._had_own(session_id) else []
        if self.usual.problem:
            used = "its previous output" if self.usual.source == "login_shell" else "the server's own environment"
            notices.append(f"Your login shell's environment can't be read ({self.usual.problem}). Using {used}.")
        return ProcessEnvironment(variables, " ".join(notices))

    async def _had_own(self, session_id: str) -> bool:
        first = await self._log.read(session_id, 0, 1)
        return bool(first) and isinstance(first[0].body, SessionOpened) and first[0].body.own_environment


# --- fingerprints


class EnvironmentFingerprint:
    """Recognizes an environment without storing it, by a keyed hash.

    A repeated creation must be recognized as the same one, but the log must never hold the environment. The key is a file in
    the deck's home and isn't in the log, so a copy or an export of the log can't be used to guess what was hashed.
    """

    def __init__(self, key_file: Path) -> None:
        self._key_file = key_file
        self._key = b""

    def of(self, variables: Mapping[str, str]) -> str:
        """Return the fingerprint, which is the same for the same environment in every deck of this home."""
        self._key = self._key or _load_key(self._key_file)
        # Hash the bytes that a process gets: they need not be UTF-8.
        encoded = b"\0".join(os.fsencode(f"{name}={value}") for name, value in sorted(variables.items()))
        return hashlib.blake2b(encoded, digest_size=16, key=self._key).hexdigest()


def _load_key(file: Path) -> bytes:
    """Read the key, or create one.

    If it can't be stored, it still serves this deck. The next deck then doesn't recognize its fingerprints and refuses the
    repeated creation, which is the safe answer.
    """
    with contextlib.suppress(OSError):
        key = file.read_bytes()
        if len(key) == _KEY_BYTES:
            return key
    key = secrets.token_bytes(_KEY_BYTES)
    with contextlib.suppress(OSError):
        write_atomic(file, key)
    return key
