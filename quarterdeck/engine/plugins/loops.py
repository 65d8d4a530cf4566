"""LoopDetection: notices an agent that goes round in circles.

Two kinds of circle. *The same calls again*: the last calls are one sequence, several times over, word for word. The agent is
told so. *The same file again*: one file was written many times since the last prompt. At the first limit the agent is told,
at the second the turn ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from quarterdeck.engine.plugins.base import Abort, Answers, Context, Emit, Intervene, InvalidPluginOption, Plugin
from quarterdeck.engine.plugins.fence import place_of
from quarterdeck.events import Json, LoopDetected
from quarterdeck.policy import paths, request_for_call

_encode = msgspec.json.Encoder(order="deterministic").encode
#: Of these the ones that were written last; what is remembered goes into the log with every call.
_MOST_FILES = 200


def period(calls: Sequence[str], times: int, longest: int) -> int:
    """How long the sequence is that stands `times` over at the end; 0 when none of at most `longest` calls does."""
    for length in range(1, min(longest, len(calls) // times) + 1):
        tail = calls[-length * times :]
        if all(tail[place] == tail[place + length] for place in range(len(tail) - length)):
            return length
    return 0


class _State(Struct, frozen=True, omit_defaults=True):
    """Since the last prompt: the last calls and how often each file was written, both as digests, and what is unsaid."""

    calls: tuple[str, ...] = ()
    files: dict[str, int] = {}
    unsaid: tuple[str, ...] = ()


class LoopDetection(Plugin):
    """`repeats` times the same sequence of at most `longest` calls is a pattern; a file written `file_warn` times is warned
    about, and at `file_abort` times the turn ends. 0 switches a limit off."""

    name = "loop_detection"
    priority = 50

    def __init__(self, *, repeats: int = 3, longest: int = 4, file_warn: int = 8, file_abort: int = 16) -> None:
        if repeats == 1 or repeats < 0:
            raise InvalidPluginOption(self.name, "repeats", "one call is no loop", "Give 2 or more, or 0 for off.")
        if longest < 1:
            raise InvalidPluginOption(self.name, "longest", "a sequence has at least one call")
        if file_abort and file_abort <= file_warn:
            raise InvalidPluginOption(self.name, "file_abort", f"it must be more than file_warn, which is {file_warn}")
        self.repeats, self.longest = repeats, longest
        self.file_warn, self.file_abort = file_warn, file_abort
        self.state: Any = _State()

    def restore(self, state: Json) -> None:
        self.state = msgspec.convert(state, _State)

    def before_prompt(self, text: str, context: Context) -> None:
        if not context.agent_path:
            self.state = _State()

    def before_tool(self, name: str, args: dict[str, Json], call_id: str, context: Context) -> Answers:
        return (*self._pattern(name, args, context), *self._files(name, args, context))

    def after_tool_batch(self, results: Sequence[object], context: Context) -> Answers:
        if not self.state.unsaid:
            return None
        said = "\n".join(self.state.unsaid)
        self.state = replace(self.state, unsaid=())
        return Intervene(said)

    def _pattern(self, name: str, args: dict[str, Json], context: Context) -> tuple[Emit, ...]:
        if not self.repeats:
            return ()
        told = _encode((context.agent_path, name, args))
        calls = (*self.state.calls, sha256(told).hexdigest()[:16])[-self.repeats * self.longest :]
        length = period(calls, self.repeats, self.longest)
        self.state = replace(self.state, calls=() if length else calls)
        if not length:
            return ()
        detail = {"tool": name, "calls": length, "times": self.repeats}
        self._say(
            f"You have made the same {length} calls {self.repeats} times over. Try something else, or say why not."
        )
        return (Emit(LoopDetected(loop="repeat_pattern", detail=detail)),)

    def _files(self, name: str, args: dict[str, Json], context: Context) -> tuple[Emit | Abort, ...]:
        place = place_of(context)
        request = request_for_call(name, args, place)
        if request.command is not None or not context.tool_writes(name):
            return ()
        found = {paths.resolved(place, path) for path in request.paths if paths.is_name(path)}
        return tuple(answer for path in sorted(found) for answer in self._written(path))

    def _written(self, path: str) -> tuple[Emit | Abort, ...]:
        key = sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:12]
        others = [(one, times) for one, times in self.state.files.items() if one != key]
        count = self.state.files.get(key, 0) + 1
        self.state = replace(self.state, files=dict([*others, (key, count)][-_MOST_FILES:]))
        detail = {"path": path, "count": count}
        if self.file_abort and count >= self.file_abort:
            reason = f"loop: {path} was written {count} times without a word from a person"
            return (Emit(LoopDetected(loop="file_loop_abort", detail=detail)), Abort(reason))
        if self.file_warn and count == self.file_warn:
            self._say(f"You have written {path} {count} times. Step back: what is it that does not work?")
            return (Emit(LoopDetected(loop="file_loop_warn", detail=detail)),)
        return ()

    def _say(self, text: str) -> None:
        self.state = replace(self.state, unsaid=(*self.state.unsaid, text))
