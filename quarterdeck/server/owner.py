"""The owner's token as it lies in its file. The server and the command line read it here, so that both read the same.

The command line reads it at every call: nothing heavy may be imported here.
"""

from __future__ import annotations

from pathlib import Path


class NotAToken(ValueError):
    """What the file holds cannot be sent in a header, or would be something else there."""


def owner_token(path: Path) -> str:
    """What is around it (blanks, ends of lines) is not of it; empty when the file is. OSError, NotAToken."""
    try:
        token = path.read_bytes().decode("ascii").strip()
    except UnicodeError:
        raise NotAToken("it has letters that are not ASCII") from None
    if not all("!" <= letter <= "~" for letter in token):
        raise NotAToken("a token is one word, and this is more")
    return token
