"""Codes that stand for a token once and for a minute. A browser is started with one, because everybody on the machine can
read its command line, and an address with a code is worth nothing after it was opened."""

from __future__ import annotations

import secrets
from collections.abc import Callable

LIFE_S = 60.0
_MOST = 100


class Codes:
    """Kept in memory only."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._tokens: dict[str, tuple[str, float]] = {}

    def made(self, token: str) -> str:
        """A new code for whoever has this token."""
        while len(self._tokens) >= _MOST:
            self._tokens.pop(next(iter(self._tokens)))
        code = secrets.token_urlsafe(32)
        self._tokens[code] = (token, self._now() + LIFE_S)
        return code

    def taken(self, code: str) -> str:
        """The token that it stands for, this once; "" when it stands for none."""
        token, until = self._tokens.pop(code, ("", 0.0))
        return token if self._now() < until else ""
