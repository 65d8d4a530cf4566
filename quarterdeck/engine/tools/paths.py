"""Where a tool may reach: the working directory and the folders that were allowed, and nothing else.

A path is resolved once, which says where it leads and whether that is inside. Resolving is only a hint, because whoever
writes in the folder may swap a part of the path for a link a moment later. What counts is how the file is then opened:
from a descriptor of the root, one component at a time, each relative to the one before and none of them followed if it is
a link. So there is no moment between a check and a use that somebody could win.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Generator
from typing import NamedTuple

from quarterdeck.engine.tools.base import ToolContext
from quarterdeck.errors import QuarterdeckError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Not blocking: whoever swaps a file for a pipe would otherwise have us wait for a writer that never comes.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY

#: Step by step we could reach further than this, and make what no other program can open or remove.
_LONGEST = 4_096

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a link"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class PathRefused(QuarterdeckError):
    """A path that a tool cannot use; its subclasses say why."""

    code = "path_refused"


class OutsidePath(PathRefused):
    """It leads out of the folders that the session may use."""

    code = "outside_path"

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is outside the working directory", "Use a path inside it.")


class NoSuchPath(PathRefused):
    """Nothing is there."""

    code = "no_such_path"

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} does not exist", "Look with ls or glob what is there.")


class WrongKind(PathRefused):
    """Something else is there than what was asked for."""

    code = "wrong_kind_of_file"


class Place(NamedTuple):
    """A path that leads inside: its root, the way from there, and how it was written."""

    root: str
    parts: tuple[str, ...]
    shown: str
    #: It was written with a slash at its end, so it can only be a folder.
    is_folder: bool

    @property
    def real(self) -> str:
        return os.path.join(self.root, *self.parts)

    def named(self, below: str = "") -> str:
        """How it, or what was found below it, is called: other tools have to find it by that name."""
        name = os.path.normpath(self.shown)
        return os.path.join("" if name == "." and below else name, below) if below else name


# --- where a path leads


def located(path: str, context: ToolContext) -> Place:
    """Where this path leads, seen from the working directory. OutsidePath, or PathRefused if it is none."""
    if not path or "\0" in path:
        raise PathRefused("the path is empty" if not path else "the path has a NUL in it", "Give the path of a file.")
    try:
        resolved = os.path.realpath(os.path.join(context.cwd, _with_home(path, context)))
        if len(os.fsencode(resolved)) >= _LONGEST:
            raise OSError(errno.ENAMETOOLONG, "too long")
    except OSError as error:
        raise refusal(error, path) from None
    except ValueError as error:
        raise PathRefused(f"{path!r} is no path: {error}", "Give the path of a file.") from None
    roots = sorted({os.path.realpath(one) for one in (context.cwd, *context.allowed_paths)}, key=len)
    # the shortest: of the parts below the root nobody has to be trusted
    for root in roots:
        if resolved == root:
            return Place(root, (), path, True)
        if resolved.startswith(root.rstrip(os.sep) + os.sep):
            parts = tuple(resolved[len(root) :].strip(os.sep).split(os.sep))
            return Place(root, parts, path, path.endswith((os.sep, os.sep + ".")))
    raise OutsidePath(path)


def _with_home(path: str, context: ToolContext) -> str:
    home = context.environment.get("HOME", "")
    return home + path[1:] if home and (path == "~" or path.startswith("~/")) else path


def readable(name: str) -> str:
    """Names are bytes; what is no UTF-8 in them cannot be told to a model, or written to a log."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


# --- opening


@contextlib.contextmanager
def folder_at(place: Place) -> Generator[int]:
    """A descriptor of the folder."""
    with _told(place.shown):
        descriptor = _entered(place.root, place.parts, create=False)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def parent_of(place: Place, *, create: bool = False) -> Generator[tuple[int, str]]:
    """A descriptor of the folder in which the file is (or is to be), and its name there."""
    if not place.parts or place.is_folder:
        raise WrongKind(f"{place.shown} is a folder, not a file", "Give the path of a file.")
    with _told(place.shown):
        descriptor = _entered(place.root, place.parts[:-1], create=create)
    try:
        with _told(place.shown):
            yield descriptor, place.parts[-1]
    finally:
        os.close(descriptor)


def opened(parent: int, name: str, shown: str) -> int:
    """A descriptor of a regular file, to read from. A device is not even opened: for some that alone does something."""
    with _told(shown):
        _expect_file(os.stat(name, dir_fd=parent, follow_symlinks=False), shown)
        descriptor = os.open(name, _FILE, dir_fd=parent)
    try:
        _expect_file(os.fstat(descriptor), shown)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def opened_at(place: Place) -> int:
    """The same, for a place."""
    with parent_of(place) as (parent, name):
        return opened(parent, name, place.shown)


def found_at(parent: int, name: str, shown: str) -> os.stat_result | None:
    """The regular file that is there now, or None. WrongKind if it is something else."""
    try:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
    _expect_file(found, shown)
    return found


def kind_of(mode: int) -> str:
    return next((name for test, name in _KINDS if test(mode)), "a file")


def _expect_file(found: os.stat_result, shown: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise WrongKind(f"{shown} is {kind_of(found.st_mode)}, not a file", "Only files can be read and written.")


def _entered(root: str, parts: tuple[str, ...], *, create: bool) -> int:
    descriptor = os.open(root, _FOLDER)
    for part in parts:
        try:
            below = _step(descriptor, part, create=create)
        finally:
            os.close(descriptor)
        descriptor = below
    return descriptor


def _step(descriptor: int, part: str, *, create: bool) -> int:
    try:
        return os.open(part, _FOLDER, dir_fd=descriptor)
    except FileNotFoundError:
        if not create:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(part, dir_fd=descriptor)
    return os.open(part, _FOLDER, dir_fd=descriptor)


# --- what the system says, as a person would


@contextlib.contextmanager
def _told(shown: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise refusal(error, shown) from error


def refusal(error: OSError, shown: str) -> PathRefused:
    """The system's number in words."""
    match error.errno:
        case errno.ENOENT:
            return NoSuchPath(shown)
        case errno.ENOTDIR | errno.ELOOP:
            return WrongKind(f"{shown}: a part of it is no folder, or became a link", "Look with ls what is there.")
        case errno.ENAMETOOLONG:
            return PathRefused(f"{shown[:100]}… is too long for a path", "Use a shorter name.")
        case _:
            return PathRefused(f"{shown}: {error.strerror or error}")
