"""A plugin, its thirteen hooks, and what each may answer (facts of seed 001)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from quarterdeck.engine.model import Message
from quarterdeck.engine.tools.base import Outcome
from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import Body, GateRequest, Json


class InvalidPluginOption(QuarterdeckError):
    """An option of a plugin that cannot be. Said when the plugin is made, never in the middle of a turn."""

    code = "invalid_plugin_option"

    def __init__(self, plugin: str, option: str, what: str, hint: str = "See docs/plugins.md.") -> None:
        super().__init__(f"option {option!r} of plugin {plugin!r}: {what}", hint)
        self.plugin = plugin
        self.option = option


class Continue(Struct, frozen=True):
    """Go on as if nobody had been asked. None means the same."""


class Intervene(Struct, frozen=True):
    """This text goes into the conversation. Several are joined in the order of the plugins."""

    prompt: str


class Abort(Struct, frozen=True):
    """The prompt, the steering text or the turn ends here."""

    reason: str


class Skip(Struct, frozen=True):
    """The step is left out this time."""


class BlockTool(Struct, frozen=True):
    """The call does not run; the model is told why."""

    reason: str


class ReplaceToolArgs(Struct, frozen=True):
    """The call runs with these arguments."""

    args: dict[str, Json]


class ReplaceToolResult(Struct, frozen=True):
    """The conversation holds this in place of what the tool gave."""

    outcome: Outcome


class Emit(Struct, frozen=True):
    """An event of the vocabulary, or one of the plugin's own (a PluginEvent); it goes into the log where the hook stands."""

    event: Body


class SwitchModel(Struct, frozen=True):
    """From the next request on."""

    model: str
    provider_opts: Mapping[str, Json] | None = None


class Hold(Struct, frozen=True):
    """The call is held until a person decides (design section 5). After `timeout` seconds it counts as refused.

    `decided` is told how it ended: the status of approval_resolved, and the id of the option that was chosen, if one was
    (`approve_always`). What it answers is an Emit, several, or nothing; they stand before the call runs. A prompt that is
    the `confirmation`, word for word, is a yes.
    """

    gate: GateRequest
    timeout: float | None = None
    decided: Callable[[str, str], Emit | Sequence[Emit] | None] | None = None
    confirmation: str = ""


Answer: TypeAlias = (
    Continue | Intervene | Abort | Skip | BlockTool | ReplaceToolArgs | ReplaceToolResult | Emit | SwitchModel | Hold
)
#: What a hook may give back: nothing, one answer, or several (an Emit beside another one).
Answers: TypeAlias = Answer | Sequence[Answer] | None

_ALWAYS = (Continue, Emit)
#: hook → the answers that it allows.
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
    """What a plugin may know and use. The engine implements it."""

    session_id: str
    turn_id: str
    agent_path: tuple[str, ...]
    cwd: Path
    model: str
    mode: str
    user_data: Json
    messages: Sequence[Message]
    store: Path
    #: How many events this session has told so far.
    events: int

    def emit(self, event: Body) -> None:
        """The same as answering Emit, at any moment of the hook."""
        ...

    async def ask_model(self, prompt: str, system: str = "", model: str = "") -> str:
        """One short request of the plugin's own, outside the conversation; its tokens are counted. ModelError."""
        ...

    def tool_needs_approval(self, name: str) -> bool:
        """Whether the tool itself says that a person must be asked."""
        ...

    def tool_writes(self, name: str) -> bool:
        """Whether the tool says that it changes anything; true for one that is not there."""
        ...

    async def checkpoint(self) -> str:
        """Saves one; its id."""
        ...


class Plugin:
    """Inherit, and write any of the hooks as a method of its name, plain or async. A hook that is not there costs nothing.

    Lower `priority` is asked first; within one, those that were mounted earlier. `state` is anything that msgspec can
    encode: the engine saves it in the log when a hook changed it, and `restore` gets it back after a restart. A hook that
    raises is told as an event and counts as `Continue`. An async one that gives no answer within `hook_timeout` is cancelled
    and told; a prompt, a steering text, a request, a call or a compaction that it was asked about is then refused.

    The hooks, each with the context as its last argument:
      session_start(context)                             session_end(context)
      before_prompt(text, context)                       before_steering(text, context)
      before_request(messages, context): also the messages to send in place, as a list
      after_response(message, context)
      before_tool(name, args, call_id, context)          on_tool_error(name, call_id, error, attempt, context)
      after_tool(name, call_id, outcome, context)        after_tool_batch(results, context)
      before_finish(context)                             after_turn(payload, context)
      before_compact(messages, context): also the messages to summarise in place, one for each, as a list
    """

    name: str = ""
    priority: int = 100
    state: Any = None
    #: Seconds that one of its hooks may take, `math.inf` for one that has limits of its own; None: those of the agent.
    hook_timeout: float | None = None

    def restore(self, state: Json) -> None:
        """What `state` was when it was last saved, as plain JSON."""
        self.state = state


Asked: TypeAlias = Answers | Awaitable[Answers]
