"""What the server says of itself: one JSON object a line in `server.log`, readable lines on a terminal.

No line holds a secret or anything that a person or an agent said: messages are constants with ids, names and counts beside
them. An exception is told by its types and places and not by its words, for its words may quote anything. Of libraries only
the first line of the text that stands in their source is taken, without what they put into it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import traceback
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import msgspec

from quarterdeck.errors import QuarterdeckError

FILE = "server.log"
ROTATE_AT = 10 * 1024 * 1024
KEPT = 5
OURS = "quarterdeck"

#: What a record has by itself; the rest came with `extra`.
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_PLAIN = (str, int, float, bool, type(None))
_LONGEST = 200
_FRAMES = 12
#: No line of ours has one. Should one ever come, it is cut out all the same.
_SECRET = re.compile(r"(?i)(token=|code=|bearer[\s:]+|quarterdeck=|secret[=:]\s*)[^\s&;,'\"<>\\]+")
_encode = msgspec.json.Encoder().encode


def told(record: logging.LogRecord) -> dict[str, Any]:
    """A record as the file has it."""
    line: dict[str, Any] = {
        "at": int(record.created * 1000),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": _message(record),
    }
    for name, value in vars(record).items():
        if name not in _OWN:
            line[name] = _plain(value)
    if record.exc_info and record.exc_info[1] is not None:
        line |= _failure(record.exc_info[1])
    return line


def _message(record: logging.LogRecord) -> str:
    is_ours = record.name == OURS or record.name.startswith(f"{OURS}.")
    text = record.getMessage() if is_ours else str(record.msg).partition("\n")[0]
    return _SECRET.sub(r"\1…", text)


def _plain(value: object) -> Any:
    if isinstance(value, str):
        return _SECRET.sub(r"\1…", value[:_LONGEST])
    return value if isinstance(value, _PLAIN) else type(value).__name__


def _failure(error: BaseException) -> dict[str, Any]:
    """The types of the exception and of what caused it, and where the first of them was raised; never its words."""
    kinds: list[str] = []
    found: BaseException | None = error
    while found is not None and len(kinds) < _FRAMES:
        kinds.append(found.code if isinstance(found, QuarterdeckError) else type(found).__name__)
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    where = [f"{'/'.join(Path(one.filename).parts[-2:])}:{one.lineno} {one.name}" for one in frames]
    return {"error": kinds, "where": where}


class AsJson(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        return _encode(told(record)).decode()


class AsText(logging.Formatter):
    """For a person who watches."""

    def format(self, record: logging.LogRecord) -> str:
        line = told(record)
        level = "" if record.levelno == logging.INFO else f"{line['level']}: "
        more = "".join(
            f" {name}={value}"
            for name, value in line.items()
            if name not in ("at", "level", "logger", "message", "where")
        )
        where = "".join(f"\n    {one}" for one in line.get("where", ()))
        return f"{self.formatTime(record, '%H:%M:%S')} {level}{line['message']}{more}{where}"


class LogFile(RotatingFileHandler):
    """The user's own file. A disk that takes no more lines costs lines (`lost`), and nothing else."""

    def __init__(self, path: Path) -> None:
        self.lost = 0
        super().__init__(path, maxBytes=ROTATE_AT, backupCount=KEPT, encoding="utf-8", delay=True)
        self.setFormatter(AsJson())

    def _open(self) -> TextIOWrapper:
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return open(descriptor, "a", encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        self.lost += 1
        # what is left in the buffer would be tried again with the next line, and half of it is written already
        stream, self.stream = self.stream, None
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.close()


class Logbook:
    """What `configure` set up, for whoever wants to end it."""

    def __init__(self, file: LogFile, handlers: list[logging.Handler]) -> None:
        self.file = file
        self._handlers = handlers

    def close(self) -> None:
        """Nothing more is written."""
        for handler in self._handlers:
            logging.getLogger().removeHandler(handler)
            handler.close()


_current: list[Logbook] = []


def configure(home: Path, to_terminal: bool, level: int | str = logging.INFO) -> Logbook:
    """All loggers of this process from now on: to `server.log` of this home, and to standard error if a person watches.

    Of libraries warnings only. Again replaces what was there before.
    """
    while _current:
        _current.pop().close()
    file = LogFile(home / FILE)
    handlers: list[logging.Handler] = [file]
    if to_terminal:
        screen = logging.StreamHandler(sys.stderr)
        screen.setFormatter(AsText())
        handlers.append(screen)
    root = logging.getLogger()
    for handler in handlers:
        root.addHandler(handler)
    logging.getLogger(OURS).setLevel(level)
    _current.append(Logbook(file, handlers))
    return _current[0]
