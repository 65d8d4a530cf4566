"""Set up the server's log: JSON lines in `server.log`, and readable lines on a terminal.

No line holds a secret, or text of a user or an agent. Our messages are constants; ids, names and counts are fields beside
them. An exception is logged by its types and places and not by its message, which may quote anything. Of libraries, only the
first line of the format string is logged, without its arguments.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Any

import msgspec

from quarterdeck.errors import QuarterdeckError

FILE_NAME = "server.log"
ROTATE_AT = 10 * 1024 * 1024
#: How many older files are kept.
BACKUPS = 5
ROOT_LOGGER = "quarterdeck"

#: Attributes that every record has; the others come from `extra`.
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_VALUE_LIMIT = 200
_FRAME_LIMIT = 12
#: A safeguard: no line of ours should hold a secret.
_SECRET = re.compile(r"(?i)(token=|code=|bearer[\s:]+|quarterdeck=|secret[=:]\s*)[^\s&;,'\"<>\\]+")
_encode_json = msgspec.json.Encoder().encode


# --- Lines


def log_line(record: logging.LogRecord) -> dict[str, Any]:
    """Return a record as the fields of a line."""
    line: dict[str, Any] = {
        "at": int(record.created * 1000),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": _message(record),
    }
    for name, value in vars(record).items():
        if name not in _STANDARD_FIELDS:
            line[name] = _plain_value(value)
    if record.exc_info and record.exc_info[1] is not None:
        line |= _exception_fields(record.exc_info[1])
    return line


def _message(record: logging.LogRecord) -> str:
    is_ours = record.name == ROOT_LOGGER or record.name.startswith(f"{ROOT_LOGGER}.")
    text = record.getMessage() if is_ours else str(record.msg).partition("\n")[0]
    return _SECRET.sub(r"\1…", text)


def _plain_value(value: object) -> Any:
    if isinstance(value, str):
        return _SECRET.sub(r"\1…", value[:_VALUE_LIMIT])
    return value if isinstance(value, int | float | bool | None) else type(value).__name__


def _exception_fields(error: BaseException) -> dict[str, Any]:
    """Return the types of an exception and its causes, and where it was raised."""
    types: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(types) < _FRAME_LIMIT:
        types.append(cause.code if isinstance(cause, QuarterdeckError) else type(cause).__name__)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    frames = traceback.extract_tb(error.__traceback__)[-_FRAME_LIMIT:]
    places = [f"{'/'.join(Path(frame.filename).parts[-2:])}:{frame.lineno} {frame.name}" for frame in frames]
    return {"error": types, "where": places}


class TextFormatter(logging.Formatter):
    """Formats a line for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        line = log_line(record)
        level = "" if record.levelno == logging.INFO else f"{line['level']}: "
        fields = "".join(
            f" {name}={value}"
            for name, value in line.items()
            if name not in ("at", "level", "logger", "message", "where")
        )
        frames = "".join(f"\n    {frame}" for frame in line.get("where", ()))
        return f"{self.formatTime(record, '%H:%M:%S')} {level}{line['message']}{fields}{frames}"


# --- The file


class LogFile(logging.Handler):
    """Writes lines to a file that only the user can read, and rotates it.

    If the disk is full, lines are dropped and counted, and the server goes on.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        #: How many lines couldn't be written.
        self.dropped = 0
        self._path = path
        self._descriptor = -1
        self._size = 0
        #: Whether the last line was written in part, so that the next one must begin with a line break.
        self._is_cut = False

    def emit(self, record: logging.LogRecord) -> None:
        data = _encode_json(log_line(record)) + b"\n"
        try:
            if self._descriptor < 0 or self._size + len(data) > ROTATE_AT:
                self._open_next(len(data))
            data = b"\n" + data if self._is_cut else data
            written = os.write(self._descriptor, data)
        except OSError:
            self.dropped += 1
            return
        self._size += written
        self._is_cut = written < len(data)
        self.dropped += self._is_cut

    def _open_next(self, needed: int) -> None:
        self._close_file()
        size = self._path.stat().st_size if self._path.exists() else 0
        if size + needed > ROTATE_AT and size:
            for number in range(BACKUPS - 1, 0, -1):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(f"{self._path}.{number}", f"{self._path}.{number + 1}")
            os.replace(self._path, f"{self._path}.1")
            size = 0
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._descriptor, self._size = os.open(self._path, flags, 0o600), size

    def _close_file(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def close(self) -> None:
        self._close_file()
        super().close()


# --- Setup


class LogSetup:
    """The handlers that `configure` added."""

    def __init__(self, file: LogFile, handlers: list[logging.Handler]) -> None:
        self.file = file
        self._handlers = handlers

    def close(self) -> None:
        """Remove the handlers and close the file."""
        for handler in self._handlers:
            logging.getLogger().removeHandler(handler)
            handler.close()


_current: LogSetup | None = None


def configure(home: Path, to_terminal: bool, level: int | str = logging.INFO) -> LogSetup:
    """Send the log of this process to `server.log` in `home`, and with `to_terminal` to standard error too.

    Libraries log warnings only. A second call replaces the first.
    """
    global _current
    if _current is not None:
        _current.close()
    file = LogFile(home / FILE_NAME)
    handlers: list[logging.Handler] = [file]
    if to_terminal:
        terminal = logging.StreamHandler(sys.stderr)
        terminal.setFormatter(TextFormatter())
        handlers.append(terminal)
    for handler in handlers:
        logging.getLogger().addHandler(handler)
    logging.getLogger(ROOT_LOGGER).setLevel(level)
    _current = LogSetup(file, handlers)
    return _current
