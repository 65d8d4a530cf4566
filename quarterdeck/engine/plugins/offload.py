"""LargeResultOffload: store results that are too large for the conversation in files.

The model reads the beginning and the end of such a result and the name of its file. The name is relative to the session's
store, where `read_file` finds it, even if the store has moved when the session is resumed.
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
#: Tools that limit or page their results themselves.
EXCLUDED = ("ls", "glob", "grep", "read_file", "edit_file", "write_file")
_BYTES_PER_TOKEN = 4
_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,119}")


class LargeResultOffload(Plugin):
    """Store results of more than `limit` tokens (about four bytes each) in the session's store.

    The conversation keeps `preview` characters of the beginning and of the end. Tools in `excluded` aren't affected.
    """

    name = "large_result_offload"
    priority = 950

    def __init__(self, *, limit: int = 20_000, excluded: Sequence[str] = EXCLUDED, preview: int = 2_000) -> None:
        if limit < 1:
            raise InvalidPluginOption(self.name, "limit", "it must be 1 or more")
        if preview < 0 or 2 * preview > limit * _BYTES_PER_TOKEN:
            raise InvalidPluginOption(self.name, "preview", "two previews of this length are longer than the limit")
        self.limit = limit * _BYTES_PER_TOKEN
        self.excluded = frozenset(excluded)
        self.preview = preview

    async def after_tool(self, name: str, call_id: str, outcome: Outcome, context: Context) -> Answers:
        if outcome.path:
            return _report_stored(name, call_id, outcome.path, context.store)
        if name in self.excluded or len(outcome.text) * _BYTES_PER_TOKEN <= self.limit:
            return None
        data = outcome.text.encode("utf-8", "surrogatepass")
        if len(data) <= self.limit:
            return None
        path = f"{FOLDER}/{_file_name(call_id)}"
        try:
            await asyncio.to_thread(_store, context.store / path, data)
        except OSError as error:
            text = f"the result of {name} is too large, and storing it failed: {error.strerror or error}"
            return Emit(Notice(text=text, level="warning", source=self.name))
        shortened = replace(outcome, text=self._shorten(outcome.text, path, len(data)), path=path)
        event = LargeResultOffloaded(tool=name, call_id=call_id, path=path, bytes=len(data))
        return (Emit(event), ReplaceToolResult(shortened))

    def _shorten(self, text: str, path: str, size: int) -> str:
        head, tail = text[: self.preview], text[len(text) - self.preview :]
        omitted = len(text) - 2 * self.preview
        note = f"[{omitted} characters omitted. The whole result ({size} bytes) is in {path}. Read it in pages.]"
        return f"{head}\n\n{note}\n\n{tail}"


def _report_stored(name: str, call_id: str, path: str, store: Path) -> Emit | None:
    """Report a result that the tool stored itself, as the shell does while a command runs."""
    if not path.startswith(f"{FOLDER}/"):
        return None
    try:
        size = (store / path).stat().st_size
    except (OSError, ValueError):
        return None
    return Emit(LargeResultOffloaded(tool=name, call_id=call_id, path=path, bytes=size))


def _file_name(call_id: str) -> str:
    """Return a file name for a call. Providers choose call ids, so an id may be anything, even a path."""
    if _SAFE_NAME.fullmatch(call_id):
        return call_id
    return sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()


def _store(path: Path, data: bytes) -> None:
    """Write a file atomically, readable only by its owner."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(path, data, durable=False)
