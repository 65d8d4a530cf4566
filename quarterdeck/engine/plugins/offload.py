"""LargeResultOffload: a result too big for the conversation is stored whole; the model gets its two ends and the place.

The place is a name in the session's own store, not a path of this machine: `read_file` finds it there, wherever the store
is when the session is resumed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from msgspec.structs import replace

from quarterdeck.engine.plugins.base import Answers, Context, Emit, InvalidPluginOption, Plugin, ReplaceToolResult
from quarterdeck.engine.tools.base import Outcome
from quarterdeck.events import LargeResultOffloaded, Notice
from quarterdeck.files import write_atomic

FOLDER = "large_tool_results"
#: Tools whose results are paged or bounded by themselves.
EXCLUDED = ("ls", "glob", "grep", "read_file", "edit_file", "write_file")
_BYTES_PER_TOKEN = 4
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,119}")


class LargeResultOffload(Plugin):
    """Past `limit` tokens (about four bytes each) a result of any tool but the `excluded` is stored in the session's own
    folder, and the conversation holds `preview` characters of each end."""

    name = "large_result_offload"
    priority = 950

    def __init__(self, *, limit: int = 20_000, excluded: Sequence[str] = EXCLUDED, preview: int = 2_000) -> None:
        if limit < 1:
            raise InvalidPluginOption(self.name, "limit", f"{limit} tokens are no limit")
        if preview < 0 or 2 * preview > limit * _BYTES_PER_TOKEN:
            raise InvalidPluginOption(self.name, "preview", "two ends of this length are longer than the limit")
        self.limit = limit * _BYTES_PER_TOKEN
        self.excluded = frozenset(excluded)
        self.preview = preview

    async def after_tool(self, name: str, call_id: str, outcome: Outcome, context: Context) -> Answers:
        if outcome.path:
            return _stored_already(name, call_id, outcome.path, context.store)
        if name in self.excluded or len(outcome.text) * _BYTES_PER_TOKEN <= self.limit:
            return None
        whole = outcome.text.encode("utf-8", "surrogatepass")
        if len(whole) <= self.limit:
            return None
        path = f"{FOLDER}/{_file_name(call_id)}"
        try:
            await asyncio.to_thread(_store, context.store / path, whole)
        except OSError as fault:
            told = f"the result of {name} is too big and could not be stored: {fault.strerror or fault}"
            return Emit(Notice(text=told, level="warning", source=self.name))
        short = replace(outcome, text=self._ends(outcome.text, path, len(whole)), path=path)
        event = LargeResultOffloaded(tool=name, call_id=call_id, path=path, bytes=len(whole))
        return (Emit(event), ReplaceToolResult(short))

    def _ends(self, text: str, path: str, size: int) -> str:
        head, tail = text[: self.preview], text[len(text) - self.preview :]
        left = len(text) - 2 * self.preview
        note = f"[{left} characters left out. The whole result ({size} bytes) is in {path}: read it in pages, or search it.]"
        return f"{head}\n\n{note}\n\n{tail}"


def _stored_already(name: str, call_id: str, path: str, store: Path) -> Emit | None:
    """A tool that stored its result by itself, as the shell does while it runs, is only told of."""
    try:
        size = (store / path).stat().st_size if path.startswith(f"{FOLDER}/") else None
    except (OSError, ValueError):
        size = None
    return None if size is None else Emit(LargeResultOffloaded(tool=name, call_id=call_id, path=path, bytes=size))


def _file_name(call_id: str) -> str:
    """The id itself where it is a plain name. Providers choose it, so it may be anything, a path out of here too."""
    return call_id if _PLAIN.fullmatch(call_id) else sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()


def _store(path: Path, whole: bytes) -> None:
    """Whole or not at all, and for nobody else to read."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(path, whole, durable=False)
