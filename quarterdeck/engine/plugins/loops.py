"""LoopDetection: detect an agent that repeats itself.

There are two kinds of loops. *Repeated calls*: the last calls are one sequence several times over, with equal arguments. The
plugin tells the agent. *Repeated writes*: one file was written many times since the last prompt. At the first limit the
plugin tells the agent; at the second the turn ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from quarterdeck.engine.plugins.base import Abort, Answers, Context, Emit, Intervene, InvalidPluginOption, Plugin
from quarterdeck.engine.plugins.call_checks import workspace_of
from quarterdeck.events import Json, LoopDetected
from quarterdeck.policy import paths, request_for_call

_encode = msgspec.json.Encoder(order="deterministic").encode
#: Number of files whose writes are counted. The counts go into the log with every call, so they must stay small.
_MAX_FILES = 200


def repeated_length(calls: Sequence[str], times: int, longest: int) -> int:
    """Return the length of the sequence that the calls end with `times` times over, or 0 if there is none.

    Only sequences of at most `longest` calls are considered.
    """
    for length in range(1, min(longest, len(calls) // times) + 1):
        tail = calls[-length * times :]
        if all(tail[index] == tail[index + length] for index in range(len(tail) - length)):
            return length
    return 0


class _State(Struct, frozen=True, omit_defaults=True):
    """What happened since the last prompt."""

    #: Digests of the last calls.
    calls: tuple[str, ...] = ()
    #: Number of writes of each file, by a digest of its path. The file that was written last is last.
    files: dict[str, int] = {}
    #: Warnings that the agent reads after the current batch of calls.
    unsaid: tuple[str, ...] = ()


class LoopDetection(Plugin):
    """Warn about the same sequence of at most `longest` calls, `repeats` times over, and about repeated writes of a file.

    A file that is written `file_warn` times causes a warning, and at `file_abort` times the turn ends. 0 disables a limit.
    """

    name = "loop_detection"
    priority = 50

    def __init__(self, *, repeats: int = 3, longest: int = 4, file_warn: int = 8, file_abort: int = 16) -> None:
        if repeats == 1 or repeats < 0:
            raise InvalidPluginOption(
                self.name, "repeats", "one call isn't a loop", "Use 2 or more, or 0 to disable it."
            )
        if longest < 1:
            raise InvalidPluginOption(self.name, "longest", "it must be 1 or more")
        if file_abort and file_abort <= file_warn:
            raise InvalidPluginOption(self.name, "file_abort", f"it must be greater than file_warn ({file_warn})")
        self.repeats, self.longest = repeats, longest
        self.file_warn, self.file_abort = file_warn, file_abort
        self.state: Any = _State()

    def restore(self, state: Json) -> None:
        self.state = msgspec.convert(state, _State)

    def before_prompt(self, text: str, context: Context) -> None:
        if not context.agent_path:
            self.state = _State()

    def before_tool(self, name: str, args: dict[str, Json], call_id: str, context: Context) -> Answers:
        return (*self._check_calls(name, args, context), *self._check_files(name, args, context))

    def after_tool_batch(self, results: Sequence[object], context: Context) -> Answers:
        if not self.state.unsaid:
            return None
        warnings = "\n".join(self.state.unsaid)
        self.state = replace(self.state, unsaid=())
        return Intervene(warnings)

    def _check_calls(self, name: str, args: dict[str, Json], context: Context) -> tuple[Emit, ...]:
        if not self.repeats:
            return ()
        digest = sha256(_encode((context.agent_path, name, args))).hexdigest()[:16]
        calls = (*self.state.calls, digest)[-self.repeats * self.longest :]
        length = repeated_length(calls, self.repeats, self.longest)
        # Start over after a loop was found, so that it isn't reported with every further call.
        self.state = replace(self.state, calls=() if length else calls)
        if not length:
            return ()
        self._warn(
            f"You have made the same {length} calls {self.repeats} times. Try something else, or say why you repeat them."
        )
        detail = {"tool": name, "calls": length, "times": self.repeats}
        return (Emit(LoopDetected(loop="repeat_pattern", detail=detail)),)

    def _check_files(self, name: str, args: dict[str, Json], context: Context) -> tuple[Emit | Abort, ...]:
        workspace = workspace_of(context)
        request = request_for_call(name, args, workspace)
        if request.command is not None or not context.tool_writes(name):
            return ()
        files = {paths.resolved(workspace, path) for path in request.paths if paths.is_name(path)}
        return tuple(answer for path in sorted(files) for answer in self._count_write(path))

    def _count_write(self, path: str) -> tuple[Emit | Abort, ...]:
        key = sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:12]
        others = [(other, times) for other, times in self.state.files.items() if other != key]
        count = self.state.files.get(key, 0) + 1
        self.state = replace(self.state, files=dict([*others, (key, count)][-_MAX_FILES:]))
        detail = {"path": path, "count": count}
        if self.file_abort and count >= self.file_abort:
            reason = f"loop: {path} was written {count} times since the last prompt"
            return (Emit(LoopDetected(loop="file_loop_abort", detail=detail)), Abort(reason))
        if self.file_warn and count == self.file_warn:
            self._warn(f"You have written {path} {count} times. Step back and find out what doesn't work.")
            return (Emit(LoopDetected(loop="file_loop_warn", detail=detail)),)
        return ()

    def _warn(self, text: str) -> None:
        self.state = replace(self.state, unsaid=(*self.state.unsaid, text))
