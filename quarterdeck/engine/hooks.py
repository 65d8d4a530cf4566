"""Run the hooks of the mounted plugins and combine their answers.

Three rules keep a faulty plugin from ending the agent:

- An answer that the hook doesn't allow is reported as a notice and counts as `Continue`.
- A hook that raises is reported as a notice and counts as `Continue`.
- An async hook that exceeds its time limit is reported as a notice, and the step that it was asked about is refused: the
  hook might have been the one to forbid it.

A plugin's state is written to the log whenever a hook has changed it.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec
from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.engine.conversation import messages_of
from quarterdeck.engine.model import Finished, Message, Request, Text, TextPiece
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
from quarterdeck.engine.tools.base import Outcome, Tool
from quarterdeck.events import Body, Json

if TYPE_CHECKING:
    from quarterdeck.engine.runtime import AgentRuntime
    from quarterdeck.engine.turn import Turn

#: Position of the argument that an answer replaces, so that the next plugin gets the new value.
_ARGS, _OUTCOME, _MESSAGES = 1, 2, 0
#: Hooks that may return messages in place of those that they get.
_MESSAGE_HOOKS = ("before_request", "before_compact")
#: Answer of a hook that timed out. Hooks that can't forbid anything have none.
_TIMEOUT_ANSWERS: dict[str, Callable[[str], Answer]] = {
    "before_prompt": Abort,
    "before_steering": Abort,
    "before_request": Abort,
    "before_tool": BlockTool,
    "before_compact": lambda _: Skip(),
}


class Verdict:
    """The combined answers of all plugins to one hook."""

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
        """The texts that plugins add to the conversation, in the order of the plugins."""
        return "\n\n".join(self.prompts)

    @property
    def is_final(self) -> bool:
        """Whether the remaining plugins aren't asked."""
        return self.abort is not None or self.block is not None


# ------------------------------------------------------------------------------------------------------ running hooks


class Hooks:
    """The mounted plugins of one agent."""

    def __init__(self, plugins: Sequence[Plugin], timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.plugins = tuple(sorted(plugins, key=lambda plugin: plugin.priority))
        #: Encoded state of each plugin, as the log has it.
        self._saved_states: dict[str, bytes] = {}
        self._methods: dict[str, list[tuple[str, Plugin, Callable[..., Any]]]] = {}
        for name, plugin in _with_unique_names(self.plugins):
            for hook in HOOKS:
                method = getattr(plugin, hook, None)
                if method is not None:
                    self._methods.setdefault(hook, []).append((name, plugin, method))
            self._saved_states[name] = _encode_state(plugin.state) or b"null"

    def has(self, hook: str) -> bool:
        return hook in self._methods

    async def run(self, hook: str, context: PluginContext, *hook_args: Any) -> Verdict:
        """Run one hook of all plugins in order of priority, until one of them aborts or blocks."""
        verdict, args = Verdict(), list(hook_args)
        for name, plugin, method in self._methods.get(hook, ()):
            try:
                answer = method(*args, context)
                if inspect.isawaitable(answer):
                    answer = await _with_timeout(answer, self._timeout_of(plugin))
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and _is_being_cancelled():
                    raise
                answer = _report_failure(hook, name, error, context)
            for single in _split_answer(hook, answer, args, verdict):
                self._apply(hook, name, single, args, verdict, context)
            state = self._changed_state(name, plugin)
            if state is not None:
                context.write(state)
            if verdict.is_final:
                break
        return verdict

    def _timeout_of(self, plugin: Plugin) -> float:
        return self._timeout_s if plugin.hook_timeout is None else plugin.hook_timeout

    def _apply(
        self, hook: str, name: str, answer: Answer, args: list[Any], verdict: Verdict, context: PluginContext
    ) -> None:
        if isinstance(answer, HOOKS[hook]):
            _apply_answer(name, answer, args, verdict, context)
            return
        allowed = ", ".join(kind.__name__ for kind in HOOKS[hook])
        text = f"{hook} can't return {type(answer).__name__}; continuing as with Continue. Allowed: {allowed}"
        context.write(_notice(name, text, "warning"))

    # --- plugin state

    def restore(self, name: str, state: Json) -> Body | None:
        """Give a plugin its saved state back. Return a notice if the plugin fails to load it."""
        for plugin_name, plugin in _with_unique_names(self.plugins):
            if plugin_name == name:
                try:
                    plugin.restore(state)
                except Exception as error:
                    return _notice(name, f"restore failed: {type(error).__name__}: {error}", "error")
                self._saved_states[name] = _encode_state(plugin.state) or b"null"
        return None

    def changed_states(self) -> list[Body]:
        """Return the events for plugin states that changed outside of hooks, such as in `Hold.decided`."""
        states = [self._changed_state(name, plugin) for name, plugin in _with_unique_names(self.plugins)]
        return [state for state in states if state is not None]

    def _changed_state(self, name: str, plugin: Plugin) -> Body | None:
        encoded = _encode_state(plugin.state)
        if encoded is None:
            return _notice(name, "its state can't be encoded as JSON, so it wasn't saved", "error")
        if encoded == self._saved_states[name]:
            return None
        self._saved_states[name] = encoded
        return ev.PluginState(name=name, state=msgspec.json.decode(encoded))


class _HookTimeout(Exception):
    """A hook exceeded its time limit."""


async def _with_timeout(answer: Awaitable[Any], seconds: float) -> Any:
    """Await a hook.

    Raises:
        _HookTimeout: the hook exceeded the limit. A TimeoutError is the plugin's own.
    """
    limit = asyncio.timeout(None if math.isinf(seconds) else seconds)
    try:
        async with limit:
            return await answer
    except TimeoutError:
        if limit.expired():
            raise _HookTimeout(f"didn't answer within {seconds:g} s") from None
        raise


def _report_failure(hook: str, name: str, error: BaseException, context: PluginContext) -> Answer | None:
    """Write a notice about a hook that failed, and return the answer to use instead."""
    if not isinstance(error, _HookTimeout):
        context.write(_notice(name, f"{hook} failed: {type(error).__name__}: {error}", "error"))
        return None
    context.write(_notice(name, f"{hook} {error}", "error"))
    answer = _TIMEOUT_ANSWERS.get(hook)
    return None if answer is None else answer(f"{hook} of plugin {name} {error}")


def _is_being_cancelled() -> bool:
    """Return whether the current task itself is cancelled. If not, something that the plugin awaited was."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _with_unique_names(plugins: Sequence[Plugin]) -> Iterator[tuple[str, Plugin]]:
    """Yield each plugin with a unique name. The second plugin named `x` is `x#2`."""
    counts: dict[str, int] = {}
    for plugin in plugins:
        name = plugin.name or type(plugin).__name__
        counts[name] = counts.get(name, 0) + 1
        yield (name if counts[name] == 1 else f"{name}#{counts[name]}"), plugin


def _split_answer(hook: str, answer: Any, args: list[Any], verdict: Verdict) -> Sequence[Answer]:
    """Return the single answers of a hook. A list of messages replaces the hook's messages instead."""
    if answer is None:
        return ()
    if not isinstance(answer, list | tuple):
        return (answer,)
    answers = cast("Sequence[Any]", answer)
    if hook in _MESSAGE_HOOKS and answers and all(isinstance(item, Message) for item in answers):
        args[_MESSAGES] = verdict.messages = list(answers)
        return ()
    return answers


def _apply_answer(name: str, answer: Answer, args: list[Any], verdict: Verdict, context: PluginContext) -> None:
    """Add an allowed answer to the verdict, and replace the hook's argument for the next plugin where it says so."""
    match answer:
        case Emit():
            context.emit(answer.event)
        case Intervene():
            verdict.prompts.append(answer.prompt)
        case Abort():
            verdict.abort = answer.reason
        case Skip():
            verdict.skip = f"skipped by {name}"
        case BlockTool():
            verdict.block = answer.reason
        case ReplaceToolArgs():
            args[_ARGS] = verdict.args = answer.args
        case ReplaceToolResult():
            args[_OUTCOME] = verdict.outcome = answer.outcome
        case SwitchModel():
            verdict.switch = answer
        case Hold():
            verdict.hold = verdict.hold or answer
        case _:
            pass


def _notice(name: str, text: str, level: Literal["warning", "error"]) -> Body:
    return ev.Notice(text=f"plugin {name}: {text}", level=level, source=name)


def _encode_state(state: Any) -> bytes | None:
    try:
        return msgspec.json.encode(state)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None


# -------------------------------------------------------------------------------------------- the context of a hook


class PluginContext:
    """The `Context` of one run of a hook."""

    def __init__(self, runtime: AgentRuntime, turn: Turn | None) -> None:
        self._runtime = runtime
        self._turn = turn

    @property
    def session_id(self) -> str:
        return self._runtime.session_id

    @property
    def turn_id(self) -> str:
        return self._turn.turn_id if self._turn is not None else ""

    @property
    def agent_path(self) -> tuple[str, ...]:
        return self._turn.path if self._turn is not None else ()

    @property
    def cwd(self) -> Path:
        return self._runtime.options.cwd

    @property
    def model(self) -> str:
        return self._turn.model.full_name if self._turn is not None else self._runtime.model.full_name

    @property
    def mode(self) -> str:
        return self._runtime.mode

    @property
    def user_data(self) -> Json:
        return self._runtime.options.user_data

    @property
    def messages(self) -> Sequence[Message]:
        return messages_of(self._runtime.journal.conversations[self.agent_path])

    @property
    def store(self) -> Path:
        return self._runtime.store

    @property
    def events(self) -> int:
        return self._runtime.journal.index

    def emit(self, event: Body) -> None:
        payload: Any = event.payload if isinstance(event, ev.PluginEvent) else None
        if isinstance(payload, dict) and self.user_data is not None:
            event = replace(event, payload={**cast("dict[str, Any]", payload), "user_data": self.user_data})
        self.write(event)

    def write(self, body: Body) -> None:
        """Write an event with the id of the current turn and the path of its agent, unless it has its own."""
        if self._turn is not None and body.turn_id is None:
            body = replace(body, turn_id=self._turn.turn_id, agent_path=body.agent_path or self._turn.path)
        self._runtime.journal.write((body,))

    async def ask_model(self, prompt: str, system: str = "", model: str = "") -> str:
        runtime = self._runtime
        selected = runtime.model if not model or model == runtime.model.full_name else runtime.select_model(model)
        request = Request(model=selected.name, messages=(Message("user", (Text(prompt),)),), system=system)
        pieces: list[str] = []
        async for chunks in selected.provider.stream(request):
            for chunk in chunks:
                if isinstance(chunk, TextPiece):
                    pieces.append(chunk.text)
                elif isinstance(chunk, Finished) and chunk.usage is not None:
                    runtime.record_side_usage(chunk.usage, selected.full_name, self._turn)
        return "".join(pieces)

    def tool_needs_approval(self, name: str) -> bool:
        tool = self._tool(name)
        return tool is not None and tool.needs_approval

    def tool_writes(self, name: str) -> bool:
        tool = self._tool(name)
        return tool is None or tool.writes

    def _tool(self, name: str) -> Tool | None:
        """Look up a tool of the agent that is working: a sub-agent may have its own tools."""
        return (self._runtime.tools if self._turn is None else self._turn.tools).get(name)

    async def checkpoint(self) -> str:
        return await self._runtime.checkpoint()
