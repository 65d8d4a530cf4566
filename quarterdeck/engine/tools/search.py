"""The tools ls, glob and grep.

grep uses ripgrep if it is installed, else our own search (`scan`). Both run as processes, so they can be killed.

ripgrep opens files by path, and a folder that is replaced with a link meanwhile would lead it outside. So it runs twice:
first for the names of files with matches, which shows no content, then for the lines, in files that we opened ourselves
component by component and pass as descriptors.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import stat
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from quarterdeck.engine.tools.base import Outcome, ToolContext
from quarterdeck.engine.tools.function import tool
from quarterdeck.engine.tools.paths import PathRefused, ResolvedPath, open_folder, open_path, printable, resolve
from quarterdeck.engine.tools.scan import FILE_LIMIT
from quarterdeck.engine.tools.threads import run_in_thread
from quarterdeck.engine.tools.walk import Glob, TooManyBraces, walk_below
from quarterdeck.errors import QuarterdeckError
from quarterdeck.process.child import Child, Stream, finish_uncancelled

#: Most entries that glob looks at.
_ENTRY_LIMIT = 500_000

#: Longest run time of a search, and most bytes of output before it is killed.
_TIME_LIMIT_S = 60.0
_OUTPUT_LIMIT = 32_000_000
#: How many files are open at once for ripgrep.
_OPEN_FILES = 64
#: Characters shown of one line, and of the whole result.
_LINE_CHARS = 500
_RESULT_CHARS = 60_000

_RIPGREP_OPTIONS = ("--no-config", "--no-messages", "--color=never", f"--max-filesize={FILE_LIMIT}")
_NAMES_OPTIONS = ("--files-with-matches", "--null", "--hidden", "--no-require-git", "--glob=!.git")

Limit = Annotated[int, Meta(ge=1, le=10_000)]


class SearchFailed(QuarterdeckError):
    """The search can't be done."""

    code = "search_failed"


# -------------------------------------------------------------------------------------------------------------- ls


@tool
async def ls(context: ToolContext, path: str = ".", limit: Limit = 1_000) -> Outcome:
    """List a folder. Folders end with a slash, files have their size in bytes, links show their target.

    Args:
        path: the folder, relative to the working directory
        limit: the largest number of entries to return
    """
    return await run_in_thread(_list_folder, path, context, limit)


def _list_folder(path: str, context: ToolContext, limit: int) -> Outcome:
    with open_folder(resolve(path, context)) as folder:
        names = sorted(os.listdir(folder))
        lines = [line for name in names[:limit] if (line := _describe_entry(folder, name))]
    if len(names) > limit:
        lines.append(f"[{limit} of {len(names)} entries]")
    return Outcome("\n".join(lines) or "[empty folder]")


def _describe_entry(folder: int, name: str) -> str:
    """Return one line of ls, or "" if the entry has vanished."""
    with contextlib.suppress(OSError):
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            return f"{printable(name)}/"
        if stat.S_ISLNK(status.st_mode):
            return f"{printable(name)} -> {printable(os.readlink(name, dir_fd=folder))}"
        return f"{printable(name)}  {status.st_size}"
    return ""


# ------------------------------------------------------------------------------------------------------------ glob


@tool
async def glob(
    pattern: Annotated[str, Meta(min_length=1)],
    context: ToolContext,
    path: str = ".",
    limit: Limit = 1_000,
    include_ignored: bool = False,
) -> Outcome:
    """Find files by name. Skips .git and files that .gitignore excludes.

    Args:
        pattern: a name in any folder, such as *.py, or a path, such as src/**/test_*.{js,ts}
        path: the folder to search, relative to the working directory
        limit: the largest number of files to return
        include_ignored: include files that .gitignore excludes
    """
    stop = threading.Event()
    try:
        return await run_in_thread(_find_files, pattern, path, context, limit, include_ignored, stop)
    finally:
        stop.set()  # A thread can't be cancelled, so it checks this.


def _find_files(
    pattern: str, path: str, context: ToolContext, limit: int, include_ignored: bool, stop: threading.Event
) -> Outcome:
    resolved = resolve(path, context)
    matcher = _parse_glob(pattern, "pattern")
    names: list[str] = []
    with open_folder(resolved._replace(parts=())) as root, open_folder(resolved):
        entries = walk_below(root, resolved.parts, include_ignored=include_ignored)
        for count, entry in enumerate(entries, 1):
            if stop.is_set() or count > _ENTRY_LIMIT or len(names) >= limit:
                names.append(f"[only the first {len(names)}; use a narrower pattern]")
                break
            if not entry.is_folder and matcher.matches(entry.parts):
                names.append(printable(resolved.name_of(entry.path)))
    return Outcome("\n".join(names) or "[no files match]")


def _parse_glob(text: str, argument: str) -> Glob:
    try:
        return Glob(text)
    except TooManyBraces as error:
        raise SearchFailed(f"argument {argument}: {error}", "Use a simpler pattern.") from None


# ------------------------------------------------------------------------------------------------------------ grep


class Match(NamedTuple):
    """One line of a result: a match, or a line of its context."""

    path: str
    number: int
    is_match: bool
    text: str


class Query(NamedTuple):
    """The arguments of a search."""

    pattern: str
    glob: str
    ignore_case: bool
    context: int
    limit: int
    only_names: bool
    include_ignored: bool


@tool
async def grep(
    pattern: Annotated[str, Meta(min_length=1)],
    tool_context: ToolContext,
    path: str = ".",
    glob: str = "",
    output: Literal["lines", "files"] = "lines",
    ignore_case: bool = False,
    context: Annotated[int, Meta(ge=0, le=20)] = 0,
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100,
    include_ignored: bool = False,
) -> Outcome:
    """Search files for a regular expression, line by line. Skips .git and files that .gitignore excludes.

    Args:
        pattern: the regular expression
        path: the folder or file to search, relative to the working directory
        glob: search only files with this name or path, such as *.py or src/**/*.{js,ts}
        output: return the matching lines, or only the names of the files
        ignore_case: match upper and lower case alike
        context: how many lines to show before and after each match
        limit: the largest number of matches to return
        include_ignored: include files that .gitignore excludes
    """
    query = Query(pattern, glob, ignore_case, context, limit, output == "files", include_ignored)
    _parse_glob(glob, "glob")
    resolved = resolve(path, tool_context)
    ripgrep = _find_ripgrep(tool_context)
    search = _RipgrepSearch(ripgrep, tool_context.environment) if ripgrep else _PythonSearch()
    if _is_file(resolved):
        matches = await search.search_file(resolved, query)
    else:
        matches = await search.search_folder(resolved, query)
    return Outcome(_format_names(matches, query) if query.only_names else _format_lines(matches, query))


def _is_file(path: ResolvedPath) -> bool:
    return bool(path.parts) and not path.is_folder and os.path.isfile(path.real)


def _format_names(matches: list[Match], query: Query) -> str:
    names = list(dict.fromkeys(match.path for match in matches if match.is_match))
    shown = [printable(name) for name in names[: query.limit]]
    return _format_result(shown, is_more=len(names) > query.limit)


def _format_lines(matches: list[Match], query: Query) -> str:
    lines: list[str] = []
    count = 0
    previous: Match | None = None
    for match in matches:
        count += match.is_match
        if count > query.limit:
            break
        if query.context and previous and (match.path, match.number - 1) != (previous.path, previous.number):
            lines.append("--")
        mark = ":" if match.is_match else "-"
        lines.append(f"{printable(match.path)}{mark}{match.number}{mark}{match.text[:_LINE_CHARS]}")
        previous = match
    return _format_result(lines, is_more=count > query.limit)


def _format_result(lines: list[str], *, is_more: bool) -> str:
    room = _RESULT_CHARS
    for at, line in enumerate(lines):
        room -= len(line) + 1
        if room < 0:
            lines, is_more = lines[:at], True
            break
    if is_more:
        lines.append("[there are more matches; narrow the search or raise the limit]")
    return "\n".join(lines) or "[no matches]"


# ------------------------------------------------------------------------------------------------ grep with ripgrep


def _find_ripgrep(context: ToolContext) -> str | None:
    # Without /proc an open file can't be passed to ripgrep.
    return shutil.which("rg", path=context.environment.get("PATH")) if os.path.isdir("/proc/self/fd") else None


class _RipgrepSearch:
    def __init__(self, program: str, environment: Mapping[str, str]) -> None:
        self._program = program
        self._environment = environment

    async def search_folder(self, folder: ResolvedPath, query: Query) -> list[Match]:
        names = await self._find_names(folder, query)
        matches: list[Match] = []
        for at in range(0, len(names), _OPEN_FILES):
            # One more than the limit, to know whether there are more.
            remaining = query.limit + 1 - sum(match.is_match for match in matches)
            if remaining <= 0:
                break
            with _open_files(folder, names[at : at + _OPEN_FILES]) as files:
                matches += await self._search_files(files, query, remaining)
        return matches

    async def search_file(self, file: ResolvedPath, query: Query) -> list[Match]:
        with _open_files(file._replace(parts=file.parts[:-1]), [file.parts[-1]]) as files:
            return await self._search_files(dict.fromkeys(files, file.name_of()), query, query.limit + 1)

    async def _find_names(self, folder: ResolvedPath, query: Query) -> list[str]:
        """Return the sorted names of files that have a match and fit the glob, up to one more than the limit."""
        with open_folder(folder) as descriptor:
            argv = [
                self._program,
                *_RIPGREP_OPTIONS,
                *_NAMES_OPTIONS,
                *_query_options(query),
                "-e",
                query.pattern,
                "./",
            ]
            cwd = f"/proc/{os.getpid()}/fd/{descriptor}"
            output = await _run_search(argv, cwd, self._environment, success_codes=(0, 1))
        matcher = Glob(query.glob) if query.glob else None
        names = [os.fsdecode(name).removeprefix("./") for name in output.split(b"\0") if name]
        return sorted(name for name in names if matcher is None or matcher.matches(name.split("/")))[: query.limit + 1]

    async def _search_files(self, files: dict[int, str], query: Query, limit: int) -> list[Match]:
        """Search open files: their descriptors, with the paths to show."""
        if not files:
            return []
        count = 1 if query.only_names else limit
        argv = [self._program, *_RIPGREP_OPTIONS, "--json", f"--max-count={count}", f"--context={query.context}"]
        argv += [*_query_options(query), "-e", query.pattern, "--", *(f"/proc/self/fd/{fd}" for fd in files)]
        output = await _run_search(argv, "/", self._environment, success_codes=(0, 1), pass_fds=tuple(files))
        matches = [match for line in output.splitlines() if (match := _parse_ripgrep(line, files))]
        return sorted(matches, key=lambda match: (match.path, match.number))


def _query_options(query: Query) -> list[str]:
    return [*(["--ignore-case"] if query.ignore_case else []), *(["--no-ignore"] if query.include_ignored else [])]


def _parse_ripgrep(line: bytes, files: dict[int, str]) -> Match | None:
    message = msgspec.json.decode(line)
    if message["type"] not in ("match", "context"):
        return None
    data = message["data"]
    descriptor = int(_ripgrep_text(data["path"]).rpartition("/")[2])
    text = _ripgrep_text(data["lines"]).rstrip("\r\n")
    return Match(files[descriptor], data["line_number"], message["type"] == "match", text)


def _ripgrep_text(data: dict[str, str]) -> str:
    # ripgrep sends what isn't UTF-8 in base64.
    return data["text"] if "text" in data else base64.b64decode(data["bytes"]).decode("utf-8", "replace")


@contextlib.contextmanager
def _open_files(folder: ResolvedPath, names: Sequence[str]) -> Generator[dict[int, str]]:
    """Open files below a folder. Yield their descriptors with the paths to show. Skips what isn't a file any more."""
    files: dict[int, str] = {}
    try:
        for name in names:
            shown = folder.name_of(name)
            with contextlib.suppress(PathRefused):
                path = ResolvedPath(folder.root, (*folder.parts, *name.split("/")), shown, False)
                files[open_path(path)] = shown
        yield files
    finally:
        for descriptor in files:
            os.close(descriptor)


# --------------------------------------------------------------------------------------------- grep without ripgrep


class _PythonSearch:
    async def search_folder(self, folder: ResolvedPath, query: Query) -> list[Match]:
        with open_folder(folder), open_folder(folder._replace(parts=())) as root:
            return await self._search(query, folder, root, {"root": root, "parts": folder.parts, "file": None})

    async def search_file(self, file: ResolvedPath, query: Query) -> list[Match]:
        descriptor = open_path(file)
        try:
            return await self._search(query, file, descriptor, {"root": None, "parts": (), "file": descriptor})
        finally:
            os.close(descriptor)

    async def _search(self, query: Query, path: ResolvedPath, descriptor: int, target: dict[str, Any]) -> list[Match]:
        arguments = {
            **target,
            "pattern": query.pattern,
            "glob": query.glob,
            "ignore_case": query.ignore_case,
            "include_ignored": query.include_ignored,
            "context": query.context,
            "limit": query.limit + 1,
            "per_file": 1 if query.only_names else 0,
        }
        argv = [*_scan_command(), json.dumps(arguments)]
        output = await _run_search(argv, "/", os.environ, success_codes=(0,), pass_fds=(descriptor,))
        return [Match(path.name_of(name), *rest) for name, *rest in map(json.loads, output.splitlines())]


def _scan_command() -> list[str]:
    # Isolated (-I), so nothing in the working directory is imported. That also ignores PYTHONPATH, so add our own folder.
    package_parent = os.path.dirname(os.path.abspath(__file__)).removesuffix(
        os.path.join("quarterdeck", "engine", "tools")
    )
    code = f"import sys; sys.path.insert(0, {package_parent!r}); from quarterdeck.engine.tools.scan import main; main()"
    return [sys.executable, "-I", "-c", code]


async def _run_search(
    argv: Sequence[str],
    cwd: str,
    environment: Mapping[str, str],
    *,
    success_codes: Sequence[int],
    pass_fds: Sequence[int] = (),
) -> bytes:
    """Run a search program and return its standard output.

    Raises:
        SearchFailed: the program failed, took too long, or wrote too much.
    """
    output: dict[Stream, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
    is_full = asyncio.Event()

    def add_output(data: bytes, stream: Stream) -> None:
        output[stream] += data
        if len(output[stream]) > _OUTPUT_LIMIT:
            is_full.set()

    child = Child.spawn(argv, cwd, environment, add_output, pass_fds=pass_fds, has_descendants=False)
    waiting = asyncio.ensure_future(is_full.wait())
    try:
        await asyncio.wait([child.exited, waiting], timeout=_TIME_LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        if not child.exited.done():
            await finish_uncancelled(child.end(0))
    code = child.exited.result()
    # ripgrep exits with 2 and still has results if it couldn't read some of the files.
    if code in success_codes or (output["stdout"] and code == 2):
        return bytes(output["stdout"])
    if code < 0:
        raise SearchFailed(
            "the search took too long or found too much", "Search a smaller folder, or use a more precise pattern."
        )
    message = output["stderr"].decode("utf-8", "replace").strip()
    raise SearchFailed(f"the search failed: {message[-1_000:]}", "Correct the pattern.")
