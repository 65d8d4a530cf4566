"""Restrict tools to the working directory and the allowed folders.

A path is resolved once, which shows where it leads and whether that is inside. But resolving is only a hint: a process that
can write in the folder may replace a part of the path with a link a moment later. So files are opened from a descriptor of
the root folder, one component at a time, each relative to the one before and none followed if it is a link. That leaves no
moment between the check and the use that could be exploited.
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

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Non-blocking: if the file was replaced with a FIFO, opening it would otherwise wait for a writer forever.
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY

#: The kernel's limit for a path. Step by step we could go deeper, and create files that no other program can open.
_PATH_MAX = 4_096

_FILE_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a link"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class PathRefused(QuarterdeckError):
    """A path that a tool can't use. Subclasses give the reason."""

    code = "path_refused"


class OutsidePath(PathRefused):
    """The path leads out of the folders that the session may use."""

    code = "outside_path"

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is outside the working directory", "Use a path inside it.")


class NoSuchPath(PathRefused):
    """There is no such file or folder."""

    code = "no_such_path"

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} doesn't exist", "Use ls or glob to see which files exist.")


class WrongKind(PathRefused):
    """The path is a folder, a device or another kind of file than the tool needs."""

    code = "wrong_kind_of_file"


class ResolvedPath(NamedTuple):
    """A path inside one of the allowed folders."""

    #: The allowed folder.
    root: str
    #: The components below the root.
    parts: tuple[str, ...]
    #: The path as the model wrote it.
    shown: str
    #: The path was written with a slash at its end, so it can only be a folder.
    is_folder: bool

    @property
    def real(self) -> str:
        return os.path.join(self.root, *self.parts)

    def name_of(self, below: str = "") -> str:
        """Return a path that other tools accept, for this path or for a file below it."""
        name = os.path.normpath(self.shown)
        if not below:
            return name
        return os.path.join("" if name == "." else name, below)


# -------------------------------------------------------------------------------------------------------- resolving


def resolve(path: str, context: ToolContext) -> ResolvedPath:
    """Resolve a path relative to the working directory.

    Raises:
        OutsidePath: the path leads out of the allowed folders.
        PathRefused: the text isn't a valid path.
    """
    if not path or "\0" in path:
        problem = "the path is empty" if not path else "the path contains a NUL character"
        raise PathRefused(problem, "Give the path of a file.")
    try:
        resolved = os.path.realpath(os.path.join(context.cwd, _expand_home(path, context)))
        if len(os.fsencode(resolved)) >= _PATH_MAX:
            raise OSError(errno.ENAMETOOLONG, "too long")
    except OSError as error:
        raise path_error(error, path) from None
    except ValueError as error:
        raise PathRefused(f"{path!r} isn't a valid path: {error}", "Give the path of a file.") from None
    # Use the shortest root: every component below the root is opened without following links, those above aren't.
    for root in sorted({os.path.realpath(folder) for folder in (context.cwd, *context.allowed_paths)}, key=len):
        if resolved == root:
            return ResolvedPath(root, (), path, True)
        if resolved.startswith(root.rstrip(os.sep) + os.sep):
            parts = tuple(resolved[len(root) :].strip(os.sep).split(os.sep))
            return ResolvedPath(root, parts, path, path.endswith((os.sep, os.sep + ".")))
    raise OutsidePath(path)


def _expand_home(path: str, context: ToolContext) -> str:
    home = context.environment.get("HOME", "")
    return home + path[1:] if home and (path == "~" or path.startswith("~/")) else path


def printable(name: str) -> str:
    """Replace bytes of a file name that aren't UTF-8, because models and logs can't take them."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


# ---------------------------------------------------------------------------------------------------------- opening


@contextlib.contextmanager
def open_folder(path: ResolvedPath) -> Generator[int]:
    """Open a folder and yield its descriptor."""
    with _explained_errors(path.shown):
        descriptor = _enter(path.root, path.parts, create=False)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def open_parent(path: ResolvedPath, *, create: bool = False) -> Generator[tuple[int, str]]:
    """Open the folder that contains, or will contain, a file. Yield its descriptor and the file's name.

    With `create`, missing folders on the way are created. Errors of the system are explained as PathRefused.
    """
    if not path.parts or path.is_folder:
        raise WrongKind(f"{path.shown} is a folder, not a file", "Give the path of a file.")
    with _explained_errors(path.shown):
        descriptor = _enter(path.root, path.parts[:-1], create=create)
    try:
        with _explained_errors(path.shown):
            yield descriptor, path.parts[-1]
    finally:
        os.close(descriptor)


def open_file(parent: int, name: str, shown: str) -> int:
    """Open a regular file for reading and return its descriptor.

    Raises:
        NoSuchPath: there is no such file.
        WrongKind: it isn't a regular file.
    """
    with _explained_errors(shown):
        # Check before opening: opening some devices already has an effect.
        _expect_regular(os.stat(name, dir_fd=parent, follow_symlinks=False), shown)
        descriptor = os.open(name, _FILE_FLAGS, dir_fd=parent)
    try:
        # Check again: it may have been replaced in between.
        _expect_regular(os.fstat(descriptor), shown)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_path(path: ResolvedPath) -> int:
    """Open a regular file for reading by its path; see `open_file`."""
    with open_parent(path) as (parent, name):
        return open_file(parent, name, path.shown)


def stat_file(parent: int, name: str, shown: str) -> os.stat_result | None:
    """Return the status of a regular file, or None if there isn't one.

    Raises:
        WrongKind: something else has that name.
    """
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
    _expect_regular(status, shown)
    return status


def _expect_regular(status: os.stat_result, shown: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for test, name in _FILE_KINDS if test(status.st_mode)), "something else")
        raise WrongKind(f"{shown} is {kind}, not a file", "Only regular files can be read and written.")


def _enter(root: str, parts: tuple[str, ...], *, create: bool) -> int:
    descriptor = os.open(root, _FOLDER_FLAGS)
    for part in parts:
        try:
            below = _enter_one(descriptor, part, create=create)
        finally:
            os.close(descriptor)
        descriptor = below
    return descriptor


def _enter_one(descriptor: int, part: str, *, create: bool) -> int:
    try:
        return os.open(part, _FOLDER_FLAGS, dir_fd=descriptor)
    except FileNotFoundError:
        if not create:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(part, dir_fd=descriptor)
    return os.open(part, _FOLDER_FLAGS, dir_fd=descriptor)


# ----------------------------------------------------------------------------------------------------------- errors


@contextlib.contextmanager
def _explained_errors(shown: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise path_error(error, shown) from error


def path_error(error: OSError, shown: str) -> PathRefused:
    """Explain an error of the system."""
    match error.errno:
        case errno.ENOENT:
            return NoSuchPath(shown)
        case errno.ENOTDIR | errno.ELOOP:
            return WrongKind(
                f"{shown}: a part of the path isn't a folder, or is a link", "Use ls to see what is there."
            )
        case errno.ENAMETOOLONG:
            return PathRefused(f"{shown[:100]}… is too long for a path", "Use a shorter name.")
        case _:
            return PathRefused(f"{shown}: {error.strerror or error}")
