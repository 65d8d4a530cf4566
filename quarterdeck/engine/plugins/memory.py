"""MemoryFlush: before a conversation is shortened, what is worth keeping is written to a file.

A short request of its own asks the model for facts; those that are not there yet are added to MEMORY.md. Whatever fails
here is a warning: compaction goes on.
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
    "Below is a conversation between a person and a coding agent; it will be shortened. List the facts that will matter "
    "later: decisions, conventions, names, commands that work, what the person wants. No secrets. At most {most}, each one "
    "short sentence. Answer with a JSON list of strings and nothing else.\n\n<conversation>\n{said}\n</conversation>"
)
_LIST = re.compile(r"\[.*\]", re.DOTALL)
_ITEM = re.compile(r"^[ \t]*[-*][ \t]+(\S.*?)[ \t]*$", re.MULTILINE)
_LONGEST_FACT = 500
_LONGEST_ASKED = 60_000
_LARGEST_FILE = 1_000_000
_MOST_KNOWN = 500
#: For reading and writing the file.
_FILE_S = 30.0


class _State(Struct, frozen=True, omit_defaults=True):
    """The hashes of the facts that this session wrote: one that a person removed is not written again."""

    known: tuple[str, ...] = ()


class MemoryFlush(Plugin):
    """At most `most` new facts at a time go to `file` (in the session's folder, or absolute). `model` may name a cheaper
    one; after `patience` seconds its answer is no longer waited for."""

    name = "memory_flush"
    priority = 300

    def __init__(self, *, file: str = "MEMORY.md", most: int = 10, model: str = "", patience: float = 60) -> None:
        if not 1 <= most <= 10:
            raise InvalidPluginOption(self.name, "most", "a flush writes 1 to 10 facts")
        self.file = file
        self.most = most
        self.model = model
        self.patience = patience
        self.hook_timeout = (
            patience + _FILE_S
        )  # its own patience comes first: the conversation is shortened all the same
        self.state: Any = _State()

    def restore(self, state: Json) -> None:
        self.state = msgspec.convert(state, _State)

    async def before_compact(self, messages: Sequence[Message], context: Context) -> Answers:
        try:
            facts = await self._flushed(messages, context)
        except Exception as fault:  # whatever it is, the conversation must be shortened
            told = f"Nothing was written to memory: {type(fault).__name__}: {fault}"
            return Emit(Notice(text=told, level="warning", source=self.name))
        return Emit(MemoryFlushed(facts=facts, count=len(facts))) if facts else None

    async def _flushed(self, messages: Sequence[Message], context: Context) -> tuple[str, ...]:
        said = _said(messages)
        if not said:
            return ()
        async with asyncio.timeout(self.patience):
            answer = await context.ask_model(_ASK.format(most=self.most, said=said), model=self.model)
        path = context.cwd / self.file
        held = set(self.state.known) | await asyncio.to_thread(_held, path)
        facts = _new(facts_in(answer), held)[: self.most]
        if facts:
            await asyncio.to_thread(_append, path, facts)
            known = (*self.state.known, *map(digest, facts))
            self.state = _State(known=known[-_MOST_KNOWN:])
        return tuple(facts)


def digest(fact: str) -> str:
    """The same for the same fact, however it is spaced and capitalised."""
    return sha256(" ".join(fact.casefold().split()).encode("utf-8", "replace")).hexdigest()


def facts_in(answer: str) -> list[str]:
    """The facts of an answer: a JSON list, or lines with a dash. ValueError when it is neither."""
    listed = _listed(answer)
    if listed is None:
        listed = _ITEM.findall(answer)
        if not listed:
            raise ValueError("the model gave no list of facts")
    texts = (" ".join(one.split()) for one in listed)
    return [text[:_LONGEST_FACT] for text in texts if text]


def _listed(answer: str) -> list[str] | None:
    """The texts of a JSON list; None when there is no list, or one of other things (`see [1]`)."""
    found = _LIST.search(answer)
    try:
        value: Any = json.loads(found.group()) if found else None
    except ValueError:
        return None
    if not isinstance(value, list):
        return None
    texts = [one for one in cast(list[Any], value) if isinstance(one, str)]
    return texts if texts or not value else None


def _new(facts: Sequence[str], held: set[str]) -> list[str]:
    found: dict[str, str] = {}
    for fact in facts:
        if digest(fact) not in held:
            found.setdefault(digest(fact), fact)
    return list(found.values())


def _said(messages: Sequence[Message]) -> str:
    """What people and the agent said; the end of it, if it is too long to be asked about."""
    lines = (f"{message.role}: {message.text}" for message in messages if message.text)
    return "\n\n".join(lines)[-_LONGEST_ASKED:]


def _held(path: Path) -> set[str]:
    """The hashes of what stands in the file already."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return set()
    with os.fdopen(descriptor, "rb") as file:
        text = file.read(_LARGEST_FILE).decode("utf-8", "replace")
    return {digest(item) for item in _ITEM.findall(text)}


def _append(path: Path, facts: Sequence[str]) -> None:
    """In one write at the end, so that two sessions in one folder do not mix; never through a link."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        ends_well = size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
        head = "# Memory\n\n" if size == 0 else "" if ends_well else "\n"
        os.write(descriptor, (head + "".join(f"- {fact}\n" for fact in facts)).encode("utf-8", "replace"))
    finally:
        os.close(descriptor)
