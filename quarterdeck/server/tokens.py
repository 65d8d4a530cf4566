"""Store the tokens that give access to the server.

`token` (0600) is the owner's own. It is created at the first start, and the command line reads it. Other tokens have a name
and a role, for a phone or a script, and can be revoked one by one. They are shown once, when they are created; the server
stores only their hashes, in `tokens.json`.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from quarterdeck.errors import QuarterdeckError
from quarterdeck.files import locked, write_atomic
from quarterdeck.server.server_file import InvalidTokenFile, read_owner_token

log = logging.getLogger("quarterdeck.server")

Role: TypeAlias = Literal["view", "operate"]

OWNER = "owner"
#: Name of the cookie that holds a browser's token.
COOKIE = "quarterdeck"
_TOKEN_BYTES = 32


class TokensUnreadable(QuarterdeckError):
    """A file of tokens is damaged. Until it is fixed, at most the owner's token works."""

    code = "tokens_unreadable"

    def __init__(self, path: Path, problem: str, consequence: str) -> None:
        super().__init__(f"{path} can't be read: {problem}", f"Fix the file, or remove it; then {consequence}.")


class NoSuchToken(QuarterdeckError):
    """There is no token with this name."""

    code = "no_such_token"

    def __init__(self, name: str) -> None:
        super().__init__(f"no token is called {name!r}", "Look up the names in tokens.json in the home.")


class TokenExists(QuarterdeckError):
    """There is a token with this name already."""

    code = "token_exists"

    def __init__(self, name: str) -> None:
        super().__init__(f"a token is already called {name!r}", "Choose another name, or revoke that token first.")


class StoredToken(Struct, frozen=True):
    """A named token as `tokens.json` has it."""

    name: str
    role: Role
    hash: str
    created_at: int


class Visitor(Struct, frozen=True):
    """The owner of the token that a request carries."""

    name: str
    role: Role
    #: Hash of the token. A revoked token and a new one of the same name differ in it.
    hash: str = ""


class _FileStamp(NamedTuple):
    """Changes when a file is replaced."""

    inode: int
    modified_at: int
    size: int

    @classmethod
    def of(cls, path: Path) -> _FileStamp | None:
        try:
            stat = path.stat()
        except FileNotFoundError:
            return None
        return cls(stat.st_ino, stat.st_mtime_ns, stat.st_size)


class Tokens:
    """The tokens of a home. Other processes may change the files at any time; every check sees their current state."""

    def __init__(self, home: Path) -> None:
        self._owner_file = home / "token"
        self._file = home / "tokens.json"
        #: Held while the list is changed: two processes could otherwise undo each other, and bring back a revoked token.
        self._lock_file = home / "tokens.lock"
        #: Named pipe that gets a byte whenever a token was created, rotated or revoked (token_watch.py).
        self.change_pipe = home / "tokens.bell"
        #: Called when the files are found to have changed.
        self.on_change: Callable[[], None] = lambda: None
        self._stamps: tuple[_FileStamp | None, _FileStamp | None] | None = None
        self._stored: tuple[StoredToken, ...] = ()
        self._owner_token = ""
        self._owner_hash = ""

    # Changing tokens

    def owner(self) -> str:
        """Return the owner's token. Create it if there is none.

        Raises:
            TokensUnreadable: the file is damaged.
        """
        try:
            token = read_owner_token(self._owner_file)
        except FileNotFoundError:
            return self.rotate()
        except (OSError, InvalidTokenFile) as error:
            problem = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise TokensUnreadable(self._owner_file, problem, "a new one is created") from None
        # Replace an empty token, because it would match a request without any.
        return token or self.rotate()

    def rotate(self) -> str:
        """Replace the owner's token. The old one stops working at once."""
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        write_atomic(self._owner_file, f"{token}\n".encode())
        self._notify()
        return token

    def create(self, name: str, role: Role, now: int) -> str:
        """Create a named token and return it. It can't be shown again.

        Raises:
            TokenExists: the name is taken.
        """
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        with locked(self._lock_file):
            stored = self.stored()
            if name == OWNER or any(other.name == name for other in stored):
                raise TokenExists(name)
            self._store((*stored, StoredToken(name, role, _hash(token), now)))
        return token

    def revoke(self, name: str) -> None:
        """Remove a named token. It stops working at once.

        Raises:
            NoSuchToken: there is no token with this name.
        """
        with locked(self._lock_file):
            stored = self.stored()
            remaining = tuple(token for token in stored if token.name != name)
            if len(remaining) == len(stored):
                raise NoSuchToken(name)
            self._store(remaining)

    def stored(self) -> tuple[StoredToken, ...]:
        """Return all named tokens.

        Raises:
            TokensUnreadable: the file is damaged.
        """
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=tuple[StoredToken, ...])
        except FileNotFoundError:
            return ()
        except (msgspec.MsgspecError, OSError, UnicodeError) as error:
            raise TokensUnreadable(self._file, str(error), "only the owner's token works") from None

    # Checking tokens

    def visitor(self, token: str) -> Visitor | None:
        """Return whom a token belongs to, or None if it isn't valid.

        Every stored hash is compared in constant time, so that the response time doesn't reveal anything.
        """
        self._refresh()
        token_hash = _hash(token)
        visitor: Visitor | None = None
        if hmac.compare_digest(token_hash, self._owner_hash):
            visitor = Visitor(OWNER, "operate", token_hash)
        for stored in self._stored:
            if hmac.compare_digest(token_hash, stored.hash):
                visitor = Visitor(stored.name, stored.role, token_hash)
        return visitor if token else None

    def is_current(self, visitor: Visitor) -> bool:
        """Return whether a visitor's token still exists and has the same role."""
        try:
            self._refresh()
        except TokensUnreadable:
            return False
        if visitor.hash == self._owner_hash:
            return True
        return any(visitor.hash == stored.hash and visitor.role == stored.role for stored in self._stored)

    def current_owner_token(self) -> str:
        """Return the owner's token, which the secrets of agents are derived from."""
        self._refresh()
        return self._owner_token

    def _refresh(self) -> None:
        """Read the files again if they changed."""
        # Take the stamps before reading: a change that happens in between is then read the next time.
        stamps = (_FileStamp.of(self._owner_file), _FileStamp.of(self._file))
        if stamps == self._stamps:
            return
        self._owner_token = self.owner()
        self._owner_hash = _hash(self._owner_token)
        try:
            self._stored = self.stored()
        except TokensUnreadable as error:
            # Let only the owner in, who can fix the file.
            log.warning("%s", error.message)
            self._stored = ()
        is_first, self._stamps = self._stamps is None, stamps
        if not is_first:
            self.on_change()

    # Writing files

    def _store(self, tokens: tuple[StoredToken, ...]) -> None:
        write_atomic(self._file, msgspec.json.encode(tokens))
        self._notify()

    def _notify(self) -> None:
        """Notify the server that tokens changed. Do nothing if no server listens."""
        with contextlib.suppress(OSError):
            descriptor = os.open(self.change_pipe, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(descriptor, b"!")
            finally:
                os.close(descriptor)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()
