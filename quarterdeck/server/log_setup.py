"""What the server says of itself: one JSON object a line in `server.log`, readable lines on a terminal.

No line holds a secret or anything that a person or an agent said: messages are constants with ids, names and counts beside
them. An exception is told by its types and places and not by its words, for its words may quote anything. Of libraries only
the first line of the text that stands in their source is taken, without what they put into it.
"""

from __future__ import annotations

import asyncio
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

FILE = "server.log"
ROTATE_AT = 10 * 1024 * 1024
KEPT = 5
GATHER_S = 0.2
_MOST_GATHERED = 1000
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


class LogFile(logging.Handler):
    """The user's own file, a new one when it is full. A disk that takes no more lines costs lines (`lost`), nothing else.

    Lines are gathered for a moment and written together, warnings and worse at once: a call of the system for each line
    can cost as much as the request that it tells of.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.lost = 0
        self._path = path
        self._descriptor = -1
        self._size = 0
        self._gathered: list[bytes] = []
        self._is_due = False
        #: A line was written in part: the next one begins on a line of its own.
        self._is_torn = False

    def emit(self, record: logging.LogRecord) -> None:
        self.add(told(record), record.levelno)

    def add(self, line: dict[str, Any], level: int) -> None:
        """A line that is plain already, as `told` makes it."""
        self._gathered.append(_encode(line) + b"\n")
        loop = _running_loop()
        if loop is None or level >= logging.WARNING or len(self._gathered) >= _MOST_GATHERED:
            self.flush()
        elif not self._is_due:
            self._is_due = True
            loop.call_later(GATHER_S, self.flush)

    def flush(self) -> None:
        """What was gathered is in the file, or lost."""
        with self.lock or contextlib.nullcontext():
            self._is_due = False
            lines, self._gathered = self._gathered, []
            while lines:
                room = max(1, (ROTATE_AT - self._size) // max(map(len, lines)))
                self._write(lines[:room])
                lines = lines[room:]

    def _write(self, lines: list[bytes]) -> None:
        data = b"".join(lines)
        try:
            if self._descriptor < 0 or self._size + len(data) > ROTATE_AT:
                self._open_next(len(data))
            data = b"\n" + data if self._is_torn else data
            written = os.write(self._descriptor, data)
        except OSError:
            self.lost += len(lines)
            return
        self._size += written
        self._is_torn = written < len(data)
        self.lost += data.count(b"\n", written)

    def _open_next(self, wanted: int) -> None:
        self._let_go()
        size = self._path.stat().st_size if self._path.exists() else 0
        if size + wanted > ROTATE_AT and size:
            for number in range(KEPT - 1, 0, -1):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(f"{self._path}.{number}", f"{self._path}.{number + 1}")
            os.replace(self._path, f"{self._path}.1")
            size = 0
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._descriptor, self._size = os.open(self._path, flags, 0o600), size

    def _let_go(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def close(self) -> None:
        self.flush()
        self._let_go()
        super().close()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """None before there is one, after it, and on other threads."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


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


def quick_file() -> LogFile | None:
    """The file, if it is the only place where lines go: whoever writes many may then go around `logging`."""
    handlers = logging.getLogger().handlers
    return _current[0].file if _current and handlers == [_current[0].file] else None


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
