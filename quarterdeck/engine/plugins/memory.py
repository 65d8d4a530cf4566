"""MemoryFlush: write facts to a file before the conversation is compacted.

The plugin asks the model for facts in a request of its own, and appends those that are new to MEMORY.md. A failure is
reported as a warning and never stops the compaction.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct

from quarterdeck.engine.model import Message
from quarterdeck.engine.plugins.base import Answers, Context, Emit, InvalidPluginOption, Plugin
from quarterdeck.events import Json, MemoryFlushed, Notice

_ASK = (
    "Below is a conversation between a person and a coding agent. It is about to be shortened. List the facts that will "
    "matter later: decisions, conventions, names, commands that work, what the person wants. No secrets. At most {most} "
    "facts, each one short sentence. Answer with a JSON list of strings and nothing else.\n\n"
    "<conversation>\n{transcript}\n</conversation>"
)
_LIST = re.compile(r"\[.*\]", re.DOTALL)
_ITEM = re.compile(r"^[ \t]*[-*][ \t]+(\S.*?)[ \t]*$", re.MULTILINE)
_MAX_FACT = 500
_MAX_TRANSCRIPT = 60_000
_MAX_FILE = 1_000_000
_MAX_KNOWN = 500
#: Seconds for reading and writing the file.
_FILE_S = 30.0


class _State(Struct, frozen=True, omit_defaults=True):
    #: Digests of the facts that this session wrote. A fact that a person removed from the file isn't written again.
    known: tuple[str, ...] = ()


class MemoryFlush(Plugin):
    """Write at most `most` new facts at a time to `file`, which is relative to the session's folder, or absolute.

    `model` may name a cheaper model. `patience` is the time limit for its answer in seconds.
    """

    name = "memory_flush"
    priority = 300

    def __init__(self, *, file: str = "MEMORY.md", most: int = 10, model: str = "", patience: float = 60) -> None:
        if not 1 <= most <= 10:
            raise InvalidPluginOption(self.name, "most", "it must be between 1 and 10")
        self.file = file
        self.most = most
        self.model = model
        self.patience = patience
        # The plugin's own limit must come first. After a hook timeout, the engine would skip the compaction.
        self.hook_timeout = patience + _FILE_S
        self.state: Any = _State()

    def restore(self, state: Json) -> None:
        self.state = msgspec.convert(state, _State)

    async def before_compact(self, messages: Sequence[Message], context: Context) -> Answers:
        try:
            facts = await self._flush(messages, context)
        except Exception as error:
            text = f"Nothing was written to memory: {type(error).__name__}: {error}"
            return Emit(Notice(text=text, level="warning", source=self.name))
        return Emit(MemoryFlushed(facts=facts, count=len(facts))) if facts else None

    async def _flush(self, messages: Sequence[Message], context: Context) -> tuple[str, ...]:
        transcript = _transcript(messages)
        if not transcript:
            return ()
        async with asyncio.timeout(self.patience):
            answer = await context.ask_model(_ASK.format(most=self.most, transcript=transcript), model=self.model)
        path = context.cwd / self.file
        known = set(self.state.known) | await asyncio.to_thread(_digests_in_file, path)
        facts = _new_facts(parse_facts(answer), known)[: self.most]
        if facts:
            await asyncio.to_thread(_append, path, facts)
            self.state = _State(known=(*self.state.known, *map(digest, facts))[-_MAX_KNOWN:])
        return tuple(facts)


def digest(fact: str) -> str:
    """Return a digest that ignores case and spacing."""
    return sha256(" ".join(fact.casefold().split()).encode("utf-8", "replace")).hexdigest()


def parse_facts(answer: str) -> list[str]:
    """Return the facts in an answer: a JSON list, or lines that begin with a dash.

    Raises:
        ValueError: it is neither.
    """
    items = _parse_json_list(answer)
    if items is None:
        items = _ITEM.findall(answer)
        if not items:
            raise ValueError("the model returned no list of facts")
    texts = (" ".join(item.split()) for item in items)
    return [text[:_MAX_FACT] for text in texts if text]


def _parse_json_list(answer: str) -> list[str] | None:
    """Return the strings of a JSON list, or None if there is no list or one of other things (as in `see [1]`)."""
    match = _LIST.search(answer)
    try:
        value: Any = json.loads(match.group()) if match else None
    except ValueError:
        return None
    if not isinstance(value, list):
        return None
    texts = [item for item in cast(list[Any], value) if isinstance(item, str)]
    return texts if texts or not value else None


def _new_facts(facts: Sequence[str], known: set[str]) -> list[str]:
    by_digest: dict[str, str] = {}
    for fact in facts:
        if digest(fact) not in known:
            by_digest.setdefault(digest(fact), fact)
    return list(by_digest.values())


def _transcript(messages: Sequence[Message]) -> str:
    """Return the texts of the conversation. If they are too long, only their end."""
    lines = (f"{message.role}: {message.text}" for message in messages if message.text)
    return "\n\n".join(lines)[-_MAX_TRANSCRIPT:]


def _digests_in_file(path: Path) -> set[str]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return set()
    with os.fdopen(descriptor, "rb") as file:
        text = file.read(_MAX_FILE).decode("utf-8", "replace")
    return {digest(item) for item in _ITEM.findall(text)}


def _append(path: Path, facts: Sequence[str]) -> None:
    """Append facts in a single write, so that two sessions in one folder don't mix their lines. Links aren't followed."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        ends_with_newline = size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
        head = "# Memory\n\n" if size == 0 else "" if ends_with_newline else "\n"
        os.write(descriptor, (head + "".join(f"- {fact}\n" for fact in facts)).encode("utf-8", "replace"))
    finally:
        os.close(descriptor)
