"""Who may come in: tokens with a role. Of every token but the first only a hash is kept.

`token` (0600) is the owner's own, made at the first start; the command line reads it. Others are made by name, for a
phone or a script, and can be revoked one by one; they are shown once, when they are made.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from quarterdeck.errors import QuarterdeckError
from quarterdeck.files import locked, write_atomic
from quarterdeck.server.owner import NotAToken, owner_token
from quarterdeck.server.token_watch import ring

log = logging.getLogger("quarterdeck.server")

Role: TypeAlias = Literal["view", "operate"]

OWNER = "owner"
#: The name of the cookie in which a browser has its token.
COOKIE = "quarterdeck"
_LENGTH = 32
#: For how long agents' secrets may outlive a rotation.
KEY_S = 0.25


class TokensUnreadable(QuarterdeckError):
    """The file of tokens is damaged. Nobody but the owner gets in until it is mended."""

    code = "tokens_unreadable"

    def __init__(self, path: Path, why: str, then: str = "only the owner's token is left") -> None:
        super().__init__(f"{path} cannot be read: {why}", f"Mend the file, or remove it: then {then}.")


class NoSuchToken(QuarterdeckError):
    """No token of this name."""

    code = "no_such_token"

    def __init__(self, name: str) -> None:
        super().__init__(f"no token is called {name!r}", "tokens.json in the home has their names.")


class TokenExists(QuarterdeckError):
    """A token of this name is there already."""

    code = "token_exists"

    def __init__(self, name: str) -> None:
        super().__init__(f"a token is called {name!r} already", "Choose another name, or revoke that one first.")


class Named(Struct, frozen=True):
    """A token as it is kept."""

    name: str
    role: Role
    hash: str
    created_at: int


class Visitor(Struct, frozen=True):
    """Who is behind a request. `hash` is that of the token, so that a token of the same name is not the same."""

    name: str
    role: Role
    hash: str = ""


def _hashed(token: str) -> str:
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


class Tokens:
    """The tokens of a home. Other processes may change the files; every look sees what they hold."""

    def __init__(self, home: Path) -> None:
        self._owner_file = home / "token"
        self._file = home / "tokens.json"
        #: Rung when a token was made, changed or revoked.
        self.bell = home / "tokens.bell"
        #: Called when the files are seen to hold something else than before.
        self.on_change: Callable[[], None] = lambda: None
        self._seen: tuple[tuple[int, int, int] | None, tuple[int, int, int] | None] | None = None
        self._known: tuple[Named, ...] = ()
        self._owner_token = ""
        self._key_until = 0.0
        self._owner_hash = ""

    def owner(self) -> str:
        """The owner's token, made if there is none."""
        try:
            token = owner_token(self._owner_file)
        except FileNotFoundError:
            return self.rotate()
        except (OSError, NotAToken) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise TokensUnreadable(self._owner_file, why, "a new one is made") from None
        # an empty file would let in whoever says nothing
        return token or self.rotate()

    def rotate(self) -> str:
        """A new token for the owner; the old one is worth nothing from now on."""
        token = secrets.token_urlsafe(_LENGTH)
        write_atomic(self._owner_file, f"{token}\n".encode())
        ring(self.bell)
        return token

    def create(self, name: str, role: Role, now: int) -> str:
        """A token of another name, which is told this once only."""
        token = secrets.token_urlsafe(_LENGTH)
        with self._alone():
            named = self.named()
            if name == OWNER or any(one.name == name for one in named):
                raise TokenExists(name)
            self._keep((*named, Named(name, role, _hashed(token), now)))
        return token

    def revoke(self, name: str) -> None:
        """It is worth nothing from now on."""
        with self._alone():
            named = self.named()
            kept = tuple(one for one in named if one.name != name)
            if len(kept) == len(named):
                raise NoSuchToken(name)
            self._keep(kept)

    def named(self) -> tuple[Named, ...]:
        """All but the owner's."""
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=tuple[Named, ...])
        except FileNotFoundError:
            return ()
        except (msgspec.MsgspecError, OSError, UnicodeError) as error:
            raise TokensUnreadable(self._file, str(error)) from None

    def visitor(self, token: str) -> Visitor | None:
        """Who this token belongs to. Every kept hash is compared, so that the time tells nothing."""
        self._look()
        hashed = _hashed(token)
        found: Visitor | None = None
        if hmac.compare_digest(hashed, self._owner_hash):
            found = Visitor(OWNER, "operate", hashed)
        for one in self._known:
            if hmac.compare_digest(hashed, one.hash):
                found = Visitor(one.name, one.role, hashed)
        return found if token else None

    def is_current(self, visitor: Visitor) -> bool:
        """Whether the token of somebody who came in earlier is still worth what it was."""
        try:
            self._look()
        except TokensUnreadable:
            return False
        if visitor.hash == self._owner_hash:
            return True
        return any(visitor.hash == one.hash and visitor.role == one.role for one in self._known)

    def key(self) -> str:
        """The owner's token as the file had it a moment ago: hooks come in hundreds, and a look costs more than they do."""
        now = time.monotonic()
        if now >= self._key_until:
            self._look()
            self._key_until = now + KEY_S
        return self._owner_token

    def _look(self) -> None:
        seen = (_stamp(self._owner_file), _stamp(self._file))
        if seen == self._seen:
            return
        self._owner_token = self.owner()
        self._owner_hash = _hashed(self._owner_token)
        try:
            self._known = self.named()
        except TokensUnreadable as error:
            # the owner still gets in, nobody else does
            log.warning("%s", error.message)
            self._known = ()
        is_first, self._seen = self._seen is None, seen  # from before the reading: what changed meanwhile is read again
        if not is_first:
            self.on_change()

    @contextmanager
    def _alone(self) -> Generator[None]:
        """Two who change the list at once must not undo each other: a revoked token would be back."""
        with locked(self._file.with_suffix(".lock")):
            yield

    def _keep(self, named: tuple[Named, ...]) -> None:
        write_atomic(self._file, msgspec.json.encode(named))
        ring(self.bell)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
