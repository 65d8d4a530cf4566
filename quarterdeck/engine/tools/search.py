"""grep: by ripgrep where it is installed, else by our own search (`scan`), both as processes that can be ended.

ripgrep opens files by their paths, and a folder that is swapped for a link meanwhile would lead it astray. So it is asked
twice: first for the names of files with matches, which shows nothing; then for the lines, in files that we opened
ourselves, component by component, and that it gets as descriptors.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import sys
from collections.abc import Generator, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from quarterdeck.engine.tools.base import Outcome, ToolContext
from quarterdeck.engine.tools.function import tool
from quarterdeck.engine.tools.paths import PathRefused, Place, folder_at, located, opened_at, readable
from quarterdeck.engine.tools.pattern import Glob, TooManyBraces
from quarterdeck.engine.tools.scan import FILE_LIMIT
from quarterdeck.errors import QuarterdeckError
from quarterdeck.process.child import Child, Stream, to_its_end

_TIME_S = 60.0
#: What a search may say before it is ended.
_OUTPUT = 32_000_000
#: How many files are held open at once.
_HELD = 64
_LINE_CHARS = 500
_TEXT_CHARS = 60_000

_RIPGREP = ("--no-config", "--no-messages", "--color=never", f"--max-filesize={FILE_LIMIT}")
_TREE = ("--files-with-matches", "--null", "--hidden", "--no-require-git", "--glob=!.git")


class SearchFailed(QuarterdeckError):
    """A search that cannot be made."""

    code = "search_failed"


class Hit(NamedTuple):
    """One line."""

    path: str
    number: int
    is_match: bool
    text: str


class Wish(NamedTuple):
    """What is looked for."""

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
    """Searches files for a regular expression, line by line. What .gitignore names, and .git itself, is left out.

    Args:
        pattern: the regular expression
        path: the folder or the file to search, relative to the working directory
        glob: only files whose name or path fits, such as *.py or src/**/*.{js,ts}
        output: the lines that match, or only the names of the files
        ignore_case: capitals or not is all the same
        context: how many lines to show before and after each match
        limit: how many matches to show at most
        include_ignored: also what .gitignore names
    """
    wish = Wish(pattern, glob, ignore_case, context, limit, output == "files", include_ignored)
    _check_glob(glob)
    place = located(path, tool_context)
    search = _Ripgrep(tool_context) if _ripgrep(tool_context) else _Own()
    hits = await search.file(place, wish) if _is_file(place) else await search.tree(place, wish)
    return Outcome(_names(hits, wish) if wish.only_names else _lines(hits, wish))


def _check_glob(glob: str) -> None:
    try:
        Glob(glob)
    except TooManyBraces as error:
        raise SearchFailed(f"argument glob: {error}", "Use a simpler one.") from None


def _is_file(place: Place) -> bool:
    return bool(place.parts) and not place.is_folder and os.path.isfile(place.real)


def _ripgrep(tool_context: ToolContext) -> str | None:
    """Not where processes have no /proc: a file that is already open could not be given to it."""
    return shutil.which("rg", path=tool_context.environment.get("PATH")) if os.path.isdir("/proc/self/fd") else None


# --- ripgrep


class _Ripgrep:
    def __init__(self, tool_context: ToolContext) -> None:
        self._program = _ripgrep(tool_context) or "rg"
        self._environment = tool_context.environment

    async def tree(self, place: Place, wish: Wish) -> list[Hit]:
        names = await self._names(place, wish)
        hits: list[Hit] = []
        for at in range(0, len(names), _HELD):
            wanted = wish.limit + 1 - sum(hit.is_match for hit in hits)
            if wanted <= 0:
                break
            with _held(place, names[at : at + _HELD]) as files:
                hits += await self._in_files(files, wish, wanted)
        return hits

    async def file(self, place: Place, wish: Wish) -> list[Hit]:
        with _held(place._replace(parts=place.parts[:-1]), [place.parts[-1]]) as files:
            named = dict.fromkeys(files, place.named())
            return await self._in_files(named, wish, wish.limit + 1)

    async def _names(self, place: Place, wish: Wish) -> list[str]:
        """Which files have a match: those that the glob takes, in the order of their paths, not more than are wanted."""
        with folder_at(place) as folder:
            argv = [self._program, *_RIPGREP, *_TREE, *_options(wish), "-e", wish.pattern, "./"]
            out = await _said(argv, f"/proc/{os.getpid()}/fd/{folder}", self._environment, ok=(0, 1))
        wanted = Glob(wish.glob) if wish.glob else None
        names = [os.fsdecode(name).removeprefix("./") for name in out.split(b"\0") if name]
        return sorted(name for name in names if wanted is None or wanted.matches(name.split("/")))[: wish.limit + 1]

    async def _in_files(self, files: dict[int, str], wish: Wish, limit: int) -> list[Hit]:
        if not files:
            return []
        count = 1 if wish.only_names else limit
        argv = [self._program, *_RIPGREP, "--json", f"--max-count={count}", f"--context={wish.context}"]
        argv += [*_options(wish), "-e", wish.pattern, "--", *(f"/proc/self/fd/{number}" for number in files)]
        out = await _said(argv, "/", self._environment, ok=(0, 1), pass_fds=tuple(files))
        hits = [hit for line in out.splitlines() if (hit := _hit(line, files))]
        return sorted(hits, key=lambda hit: (hit.path, hit.number))


def _options(wish: Wish) -> list[str]:
    return [*(["--ignore-case"] if wish.ignore_case else []), *(["--no-ignore"] if wish.include_ignored else [])]


def _hit(line: bytes, files: dict[int, str]) -> Hit | None:
    told = msgspec.json.decode(line)
    if told["type"] not in ("match", "context"):
        return None
    data = told["data"]
    number = int(_text(data["path"]).rpartition("/")[2])
    return Hit(files[number], data["line_number"], told["type"] == "match", _text(data["lines"]).rstrip("\r\n"))


def _text(told: dict[str, str]) -> str:
    return told["text"] if "text" in told else base64.b64decode(told["bytes"]).decode("utf-8", "replace")


@contextlib.contextmanager
def _held(place: Place, names: Sequence[str]) -> Generator[dict[int, str]]:
    """Descriptors of these files below the place, each with its path as it is shown; what is no file by now is left out."""
    files: dict[int, str] = {}
    try:
        for name in names:
            parts = (*place.parts, *name.split("/"))
            path = place.named(name)
            with contextlib.suppress(PathRefused):
                files[opened_at(Place(place.root, parts, path, False))] = path
        yield files
    finally:
        for number in files:
            os.close(number)


# --- our own


class _Own:
    async def tree(self, place: Place, wish: Wish) -> list[Hit]:
        with folder_at(place), folder_at(place._replace(parts=())) as root:
            return await self._scanned(wish, place, (root,), root=root, parts=place.parts, file=None)

    async def file(self, place: Place, wish: Wish) -> list[Hit]:
        number = opened_at(place)
        try:
            return await self._scanned(wish, place, (number,), root=None, parts=(), file=number)
        finally:
            os.close(number)

    async def _scanned(self, wish: Wish, place: Place, fds: Sequence[int], **where: Any) -> list[Hit]:
        told = {
            **where,
            "pattern": wish.pattern,
            "glob": wish.glob,
            "ignore_case": wish.ignore_case,
            "all": wish.include_ignored,
            "context": wish.context,
            "limit": wish.limit + 1,
            "per_file": 1 if wish.only_names else 0,
        }
        out = await _said([*_scan(), json.dumps(told)], "/", os.environ, ok=(0,), pass_fds=fds)
        return [Hit(place.named(path), *rest) for path, *rest in map(json.loads, out.splitlines())]


def _scan() -> list[str]:
    """Isolated, so that nothing in the working directory is taken for a module; ours is found where it is now."""
    home = os.path.dirname(os.path.abspath(__file__)).removesuffix(os.path.join("quarterdeck", "engine", "tools"))
    code = f"import sys; sys.path.insert(0, {home!r}); from quarterdeck.engine.tools.scan import main; main()"
    return [sys.executable, "-I", "-c", code]


# --- both


async def _said(
    argv: Sequence[str], cwd: str, environment: Any, *, ok: Sequence[int], pass_fds: Sequence[int] = ()
) -> bytes:
    """What the process said. SearchFailed with its complaint, also when it takes too long or says too much."""
    out: dict[Stream, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
    full = asyncio.Event()

    def hear(data: bytes, stream: Stream) -> None:
        out[stream] += data
        if len(out[stream]) > _OUTPUT:
            full.set()

    child = Child.start(argv, cwd, environment, hear, pass_fds, is_alone=True)
    waiting = asyncio.ensure_future(full.wait())
    try:
        await asyncio.wait([child.exited, waiting], timeout=_TIME_S, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        await to_its_end(child.end(0)) if not child.exited.done() else None
    code = child.exited.result()
    if code in ok or (out["stdout"] and code == 2):  # 2 with results: ripgrep could not read some of the files
        return bytes(out["stdout"])
    if code < 0:
        raise SearchFailed("the search took too long or found too much", "Search a smaller folder, or more exactly.")
    told = out["stderr"].decode("utf-8", "replace").strip()
    raise SearchFailed(f"the search failed: {told[-1_000:]}", "Mend the pattern.")


def _names(hits: list[Hit], wish: Wish) -> str:
    names = list(dict.fromkeys(hit.path for hit in hits if hit.is_match))
    return _limited([readable(name) for name in names], wish)


def _lines(hits: list[Hit], wish: Wish) -> str:
    shown: list[str] = []
    matches = 0
    before: Hit | None = None
    for hit in hits:
        matches += hit.is_match
        if matches > wish.limit:
            break
        if wish.context and before and (hit.path, hit.number - 1) != (before.path, before.number):
            shown.append("--")
        mark = ":" if hit.is_match else "-"
        shown.append(f"{readable(hit.path)}{mark}{hit.number}{mark}{hit.text[:_LINE_CHARS]}")
        before = hit
    return _limited(shown, wish, is_more=matches > wish.limit)


def _limited(shown: list[str], wish: Wish, *, is_more: bool = False) -> str:
    if wish.only_names and len(shown) > wish.limit:
        shown, is_more = shown[: wish.limit], True
    room = _TEXT_CHARS
    for at, line in enumerate(shown):
        room -= len(line) + 1
        if room < 0:
            shown, is_more = shown[:at], True
            break
    if is_more:
        shown.append("[there is more; narrow the search, or raise the limit]")
    return "\n".join(shown) or "[nothing matches]"
