"""Define plugins: the base class, the hooks, the answers that each hook allows, and the context that hooks get."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from quarterdeck.engine.model import Message
from quarterdeck.engine.tools.base import Outcome
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Body, GateRequest, Json


class InvalidPluginOption(QuarterdeckError):
    """An option of a plugin is invalid. Plugins raise it in their constructor, never in the middle of a turn."""

    code = "invalid_plugin_option"

    def __init__(self, plugin: str, option: str, problem: str, hint: str = "See docs/plugins.md.") -> None:
        super().__init__(f"option {option!r} of plugin {plugin!r}: {problem}", hint)
        self.plugin = plugin
        self.option = option


# ------------------------------------------------------------------------------------------------------------ answers


class Continue(Struct, frozen=True):
    """Go on without a change. A hook that returns None means the same."""


class Intervene(Struct, frozen=True):
    """Add this text to the conversation. Texts of several plugins are joined in the order of the plugins."""

    prompt: str


class Abort(Struct, frozen=True):
    """Reject the prompt or the steering text, or end the turn."""

    reason: str


class Skip(Struct, frozen=True):
    """Leave this step out."""


class BlockTool(Struct, frozen=True):
    """Don't run the call. The model reads the reason as its result."""

    reason: str


class ReplaceToolArgs(Struct, frozen=True):
    """Run the call with these arguments instead."""

    args: dict[str, Json]


class ReplaceToolResult(Struct, frozen=True):
    """Put this result into the conversation instead of the tool's own."""

    outcome: Outcome


class Emit(Struct, frozen=True):
    """Write an event to the log: any event of Quarterdeck, or a `PluginEvent` with a name and payload of your own."""

    event: Body


class SwitchModel(Struct, frozen=True):
    """Use another model from the next request on."""

    model: str
    provider_opts: Mapping[str, Json] | None = None


class Hold(Struct, frozen=True):
    """Hold the call until a person decides.

    After `timeout` seconds it counts as rejected; None waits without a limit. `decided` is called with the decision: the
    status of `approval_resolved`, and the id of the option that was chosen, if any (such as `approve_always`). The events
    that it returns are written before the call runs. A prompt with exactly the text `confirmation` approves the call.
    """

    gate: GateRequest
    timeout: float | None = None
    decided: Callable[[str, str], Emit | Sequence[Emit] | None] | None = None
    confirmation: str = ""


Answer: TypeAlias = (
    Continue | Intervene | Abort | Skip | BlockTool | ReplaceToolArgs | ReplaceToolResult | Emit | SwitchModel | Hold
)
#: What a hook may return: nothing, one answer, or several (such as an Emit together with another answer).
Answers: TypeAlias = Answer | Sequence[Answer] | None

# -------------------------------------------------------------------------------------------------------------- hooks

_ALWAYS = (Continue, Emit)
#: The answers that each hook allows. To add a hook: add it here and to the docstring of `Plugin`, run it with
#: `Turn.run_hook` where it belongs, and say in `WHEN` of tools/plugins.py when that is. If the hook can refuse something,
#: also say in `_TIMEOUT_ANSWERS` of engine/hooks.py what happens when it takes too long.
HOOKS: dict[str, tuple[type[Answer], ...]] = {
    "session_start": (*_ALWAYS, Abort),
    "session_end": _ALWAYS,
    "after_turn": _ALWAYS,
    "before_prompt": (*_ALWAYS, Intervene, Abort, Skip),
    "before_request": (*_ALWAYS, Intervene, Abort, Skip, SwitchModel),
    "after_response": (*_ALWAYS, Intervene, Abort, Skip, SwitchModel),
    "before_tool": (*_ALWAYS, BlockTool, ReplaceToolArgs, Abort, Hold),
    "on_tool_error": (*_ALWAYS, Abort, Skip, SwitchModel),
    "after_tool": (*_ALWAYS, Intervene, Abort, SwitchModel, ReplaceToolResult),
    "after_tool_batch": (*_ALWAYS, Intervene, Abort, SwitchModel),
    "before_finish": (*_ALWAYS, Intervene, Abort),
    "before_compact": (*_ALWAYS, Skip),
    "before_steering": (*_ALWAYS, Intervene, Abort),
}


class Context(Protocol):
    """What a plugin can read and use while one of its hooks runs. The engine implements it (engine/hooks.py)."""

    session_id: str
    turn_id: str
    agent_path: tuple[str, ...]
    cwd: Path
    model: str
    mode: str
    user_data: Json
    messages: Sequence[Message]
    store: Path
    #: Number of events that this session has written so far.
    events: int

    def emit(self, event: Body) -> None:
        """Write an event now. Returning `Emit` writes it after the hook."""
        ...

    async def ask_model(self, prompt: str, system: str = "", model: str = "") -> str:
        """Send one request outside the conversation and return the reply. Its tokens count for the session.

        Raises:
            ModelError: the request failed.
        """
        ...

    def tool_needs_approval(self, name: str) -> bool:
        """Return whether the tool itself declares that a person must approve its calls."""
        ...

    def tool_writes(self, name: str) -> bool:
        """Return whether the tool declares that it changes something. True for an unknown tool."""
        ...

    async def checkpoint(self) -> str:
        """Save a checkpoint and return its id.

        Raises:
            NothingKept: the agent has no log.
        """
        ...


class Plugin:
    """Base class of plugins. Write any of the hooks as a method of its name, plain or async.

    Plugins with a lower `priority` run first; with equal priority, those that were mounted earlier. `state` is anything that
    msgspec can encode: the engine saves it in the log when a hook changes it, and passes it to `restore` after a restart.

    If a hook raises, the engine writes a notice and continues as if the hook had returned `Continue`. If an async hook takes
    longer than `hook_timeout`, it is cancelled, and the engine refuses the prompt, steering text, request, tool call or
    compaction that the hook was asked about, because the hook might have refused it.

    The hooks, each with the context as its last argument:
      session_start(context)                             session_end(context)
      before_prompt(text, context)                       before_steering(text, context)
      before_request(messages, context): may return a list of messages to send instead
      after_response(message, context)
      before_tool(name, args, call_id, context)          on_tool_error(name, call_id, error, attempt, context)
      after_tool(name, call_id, outcome, context)        after_tool_batch(results, context)
      before_finish(context)                             after_turn(payload, context)
      before_compact(messages, context): may return a list of messages to summarise instead, one for each
    """

    name: str = ""
    priority: int = 100
    state: Any = None
    #: Seconds that one hook may take. None uses the agent's option; `math.inf` is for plugins with limits of their own.
    hook_timeout: float | None = None

    def restore(self, state: Json) -> None:
        """Load the state that was saved last, as plain JSON."""
        self.state = state
