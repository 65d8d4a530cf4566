"""What the server says of itself: a JSON object a line for programs, a short line for a terminal. Never a token.

A message with `extra={"session": ID}` carries the session's id, and so any other field.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

_ROTATE_AT = 10 * 1024 * 1024
#: What a record has by itself; the rest came with `extra`.
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
#: Where a token can stand in a text: an address, a header, a cookie.
_SECRET = re.compile(r"(?i)(token=|login\?code=|bearer[\s:]+|quarterdeck=)[^\s&;,'\"<>\\]+")


def redacted(text: str, secrets: tuple[str, ...] = ()) -> str:
    """The text without what would let its reader in."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "…")
    return _SECRET.sub(r"\1…", text)


class _Formatter(logging.Formatter):
    def __init__(self, secrets: Callable[[], tuple[str, ...]]) -> None:
        super().__init__()
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        return redacted(self.line(record), self._secrets())

    def line(self, record: logging.LogRecord) -> str:
        raise NotImplementedError


class AsJson(_Formatter):
    """One object a line."""

    def line(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "at": int(record.created * 1000),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        told |= {name: value for name, value in vars(record).items() if name not in _OWN}
        if record.exc_info:
            told["error"] = self.formatException(record.exc_info)
        return json.dumps(told, ensure_ascii=False, default=str)


class AsText(_Formatter):
    """For a person who watches."""

    def line(self, record: logging.LogRecord) -> str:
        more = "".join(f" {name}={value}" for name, value in vars(record).items() if name not in _OWN)
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        error = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{self.formatTime(record, '%H:%M:%S')} {level}{record.getMessage()}{more}{error}"


def begin(file: Path | None, secrets: Callable[[], tuple[str, ...]]) -> None:
    """All loggers of this process from now on: to the file, or without one to standard error."""
    handler: logging.Handler
    if file is not None:
        file.touch(mode=0o600)
        handler = RotatingFileHandler(file, maxBytes=_ROTATE_AT, backupCount=1, encoding="utf-8")
    else:
        handler = logging.StreamHandler(sys.stderr)
    is_terminal = file is None and sys.stderr.isatty()
    handler.setFormatter(AsText(secrets) if is_terminal else AsJson(secrets))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(True)
