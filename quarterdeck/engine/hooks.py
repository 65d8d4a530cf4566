"""Asks the plugins, in order of priority, and makes one verdict of their answers.

A hook that no plugin has costs nothing. An answer that a hook does not allow is told and counts as `Continue`, and so is a
plugin that raises: nothing that a plugin does ends the agent. One that does not answer in time is told, too, and what it was
asked about does not happen: it may be the one that would have forbidden it. What a plugin remembers goes into the log when
it changed.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from quarterdeck import events as ev
from quarterdeck.engine.model import Message
from quarterdeck.engine.plugins.base import (
    HOOKS,
    Abort,
    Answer,
    BlockTool,
    Emit,
    Hold,
    Intervene,
    Plugin,
    ReplaceToolArgs,
    ReplaceToolResult,
    Skip,
    SwitchModel,
)
from quarterdeck.engine.tools.base import Outcome
from quarterdeck.events import Body, Json

if TYPE_CHECKING:
    from quarterdeck.engine.context import PluginContext

#: Which argument of the hook an answer replaces, so that the next plugin sees the new one.
_ARGS, _OUTCOME, _MESSAGES = 1, 2, 0
#: Hooks that may answer with messages in place of those they are shown.
_REPLACE_MESSAGES = ("before_request", "before_compact")
#: What silence means where a hook could have forbidden something; elsewhere it is no answer.
_SILENCE: dict[str, Callable[[str], Answer]] = {
    "before_prompt": Abort,
    "before_steering": Abort,
    "before_request": Abort,
    "before_tool": BlockTool,
    "before_compact": lambda _: Skip(),
}


class Verdict:
    """What all plugins together answered."""

    __slots__ = ("abort", "args", "block", "hold", "messages", "outcome", "prompts", "skip", "switch")

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.abort: str | None = None
        self.skip: str | None = None
        self.block: str | None = None
        self.args: dict[str, Json] | None = None
        self.outcome: Outcome | None = None
        self.hold: Hold | None = None
        self.switch: SwitchModel | None = None
        self.messages: list[Message] | None = None

    @property
    def prompt(self) -> str:
        """What the plugins say to the model, in their order."""
        return "\n\n".join(self.prompts)

    @property
    def is_final(self) -> bool:
        return self.abort is not None or self.block is not None


class Hooks:
    """The mounted plugins."""

    __slots__ = ("_saved", "_table", "_timeout_s", "plugins")

    def __init__(self, plugins: Sequence[Plugin], timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.plugins = tuple(sorted(plugins, key=lambda one: one.priority))
        self._saved: dict[str, bytes] = {}
        self._table: dict[str, list[tuple[str, Plugin, Callable[..., Any]]]] = {}
        for name, plugin in _named(self.plugins):
            for hook in HOOKS:
                method = getattr(plugin, hook, None)
                if method is not None:
                    self._table.setdefault(hook, []).append((name, plugin, method))
            self._saved[name] = _encoded(plugin.state) or b"null"

    def has(self, hook: str) -> bool:
        return hook in self._table

    async def ask(self, hook: str, context: PluginContext, *given: Any) -> Verdict:
        """All plugins that have this hook, until one ends it."""
        verdict, args = Verdict(), list(given)
        for name, plugin, method in self._table.get(hook, ()):
            try:
                answer = method(*args, context)
                if inspect.isawaitable(answer):
                    answer = await _in_time(answer, self._patience(plugin))
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and _is_ended():
                    raise
                answer = _missed(hook, name, error, context)
            self._take(hook, name, answer, args, verdict, context)
            self._save(name, plugin, context)
            if verdict.is_final:
                break
        return verdict

    def _patience(self, plugin: Plugin) -> float:
        return self._timeout_s if plugin.hook_timeout is None else plugin.hook_timeout

    def restore(self, name: str, state: Json) -> Body | None:
        """A plugin gets back what it had; what goes wrong in it is told."""
        for known, plugin in _named(self.plugins):
            if known == name:
                try:
                    plugin.restore(state)
                except Exception as error:
                    return _notice(name, f"restore failed: {type(error).__name__}: {error}", "error")
                self._saved[name] = _encoded(plugin.state) or b"null"
        return None

    def _take(
        self, hook: str, name: str, answer: Any, args: list[Any], verdict: Verdict, context: PluginContext
    ) -> None:
        for one in _answers(hook, answer, args, verdict):
            if isinstance(one, HOOKS[hook]):
                _enter(name, one, args, verdict, context)
            else:
                allowed = ", ".join(kind.__name__ for kind in HOOKS[hook])
                said = f"{type(one).__name__} is no answer to {hook}, so it counts as Continue; allowed are {allowed}"
                context.say(_notice(name, said, "warning"))

    def changed(self) -> list[Body]:
        """What plugins remember now, where that is not in the log yet. For what changes them outside of their hooks."""
        return [told for name, plugin in _named(self.plugins) if (told := self._unsaved(name, plugin)) is not None]

    def _save(self, name: str, plugin: Plugin, context: PluginContext) -> None:
        told = self._unsaved(name, plugin)
        if told is not None:
            context.say(told)

    def _unsaved(self, name: str, plugin: Plugin) -> Body | None:
        now = _encoded(plugin.state)
        if now is None:
            return _notice(name, "its state cannot be saved: it is nothing that JSON can hold", "error")
        if now == self._saved[name]:
            return None
        self._saved[name] = now
        return ev.PluginState(name=name, state=msgspec.json.decode(now))


class _Silent(Exception):
    """A hook did not answer in time."""


async def _in_time(answer: Awaitable[Any], seconds: float) -> Any:
    """The answer, or _Silent: a TimeoutError may as well be the plugin's own."""
    limit = asyncio.timeout(None if math.isinf(seconds) else seconds)
    try:
        async with limit:
            return await answer
    except TimeoutError:
        if limit.expired():
            raise _Silent(f"no answer within {seconds:g} s") from None
        raise


def _missed(hook: str, name: str, error: BaseException, context: PluginContext) -> Answer | None:
    """Tells what went wrong in a hook, and what counts as its answer."""
    if not isinstance(error, _Silent):
        context.say(_notice(name, f"{hook} failed: {type(error).__name__}: {error}", "error"))
        return None
    context.say(_notice(name, f"{hook}: {error}", "error"))
    silence = _SILENCE.get(hook)
    return None if silence is None else silence(f"plugin {name} gave {error} ({hook})")


def _is_ended() -> bool:
    """Whether somebody ends the task that asks. Else what was cancelled is something that the plugin waited for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _named(plugins: Sequence[Plugin]) -> Iterator[tuple[str, Plugin]]:
    """Each plugin under a name of its own."""
    seen: dict[str, int] = {}
    for plugin in plugins:
        name = plugin.name or type(plugin).__name__
        seen[name] = seen.get(name, 0) + 1
        yield (name if seen[name] == 1 else f"{name}#{seen[name]}"), plugin


def _answers(hook: str, answer: Any, args: list[Any], verdict: Verdict) -> Sequence[Answer]:
    if answer is None:
        return ()
    if not isinstance(answer, list | tuple):
        return (answer,)
    several = cast("Sequence[Any]", answer)
    if hook in _REPLACE_MESSAGES and several and all(isinstance(one, Message) for one in several):
        args[_MESSAGES] = verdict.messages = list(several)
        return ()
    return several


def _enter(name: str, one: Answer, args: list[Any], verdict: Verdict, context: PluginContext) -> None:
    """One answer that is allowed."""
    if isinstance(one, Emit):
        context.emit(one.event)
    elif isinstance(one, Intervene):
        verdict.prompts.append(one.prompt)
    elif isinstance(one, Abort):
        verdict.abort = one.reason
    elif isinstance(one, Skip):
        verdict.skip = f"skipped by {name}"
    elif isinstance(one, BlockTool):
        verdict.block = one.reason
    elif isinstance(one, ReplaceToolArgs):
        args[_ARGS] = verdict.args = one.args
    elif isinstance(one, ReplaceToolResult):
        args[_OUTCOME] = verdict.outcome = one.outcome
    elif isinstance(one, SwitchModel):
        verdict.switch = one
    elif isinstance(one, Hold):
        verdict.hold = verdict.hold or one


def _notice(name: str, text: str, level: str) -> Body:
    return ev.Notice(text=f"plugin {name}: {text}", level=level, source=name)  # type: ignore[arg-type]


def _encoded(state: Any) -> bytes | None:
    try:
        return msgspec.json.encode(state)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
