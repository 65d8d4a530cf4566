"""What must never be kept, and must be known again: a keyed hash of it.

The key is a file of the home, of which the log knows nothing: whoever has the log alone (a copy, an export) cannot try out
what a hash was made of.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from quarterdeck.files import write_atomic

_BYTES = 32


class Seal:
    """The key is made when it is first needed."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._key = b""

    def of(self, variables: Mapping[str, str]) -> str:
        """The same for the same environment, in every deck of this home."""
        self._key = self._key or _kept(self._file)
        # as a process gets them: these are bytes, and need not be UTF-8
        encoded = b"\0".join(os.fsencode(f"{name}={value}") for name, value in sorted(variables.items()))
        return hashlib.blake2b(encoded, digest_size=16, key=self._key).hexdigest()


def _kept(file: Path) -> bytes:
    """The key of the file, or a new one. One that cannot be kept serves this deck; the next will not know its hashes again,
    and says no rather than yes."""
    with contextlib.suppress(OSError):
        found = file.read_bytes()
        if len(found) == _BYTES:
            return found
    key = secrets.token_bytes(_BYTES)
    with contextlib.suppress(OSError):
        write_atomic(file, key)
    return key
