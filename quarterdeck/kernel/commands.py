"""Define the commands to a session, and decide which of them its state allows.

A command is a request and can be refused; an event is a fact. Each command is one struct: the body of its HTTP request, the
arguments of its WebSocket message, the argument of the library's `run`, and what the handler in `deck/commands/` gets.

`check` raises if a command isn't allowed now. It never changes anything. What an allowed command causes is up to the deck.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, TypeAlias

from msgspec import Meta, Struct

from quarterdeck.errors import NotAllowed, QuarterdeckError, QueueFull
from quarterdeck.events import Image, Json
from quarterdeck.kernel import gate, lifecycle, queue
from quarterdeck.kernel.command_results import CommandResult, Decided, Done, Dropped, Receipt, Status, Steered
from quarterdeck.kernel.routing import STEERING_LIMIT, is_busy, route
from quarterdeck.kernel.state import NOT_OPENED, State

#: Maximum length of a caller's `client_id`.
KEY_LIMIT = 200
NAME_LIMIT = 100
MODES = ("plan", "ask", "edits", "auto", "bypass")

#: Patterns for OpenAPI. Decoding doesn't apply them: the deck checks texts itself, with errors that say what is wrong.
NO_NUL = r"^[^\u0000]*$"
NOT_BLANK = r"^[^\u0000]*[^\s\u0000][^\u0000]*$"
Text: TypeAlias = Annotated[str, Meta(extra_json_schema={"pattern": NO_NUL})]
Words: TypeAlias = Annotated[str, Meta(extra_json_schema={"pattern": NOT_BLANK})]


# --- the commands


class Command(Struct, frozen=True, kw_only=True):
    """Base of all commands."""

    #: Name in the API, in receipts and in metrics.
    command_name: ClassVar[str]
    #: What the command returns.
    result_type: ClassVar[type[CommandResult]] = Done

    #: The caller's own key. A command that is repeated with the same key is carried out once and gets the same result.
    client_id: Annotated[Text, Meta(max_length=KEY_LIMIT)] = ""


class Prompt(Command, frozen=True, kw_only=True):
    """Send a message. `supersede` closes open gates first, `new_task` starts over, `resume` wakes a suspended session."""

    command_name = "prompt"
    result_type = Receipt

    text: Words
    images: tuple[Image, ...] = ()
    resume: bool = True
    supersede: bool = False
    new_task: bool = False


class Steer(Command, frozen=True, kw_only=True):
    """Send a text into the running turn."""

    command_name = "steer"
    result_type = Steered

    text: Words
    ref: Text = ""


class Abort(Command, frozen=True, kw_only=True):
    """End the turn. `clear_queue` also drops queued texts and returns them. Allowed even if no turn is running."""

    command_name = "abort"
    result_type = Dropped

    kill_tools: Literal["killable", "all", "none"] = "killable"
    clear_queue: bool = False
    reason: Text | None = None


class Approve(Command, frozen=True, kw_only=True):
    """Approve a tool call. `always` also creates a rule for later calls."""

    command_name = "approve"
    result_type = Decided

    gate_id: str
    always: Literal["session", "repo", "user"] | None = None
    auto_resume: bool = True


class Reject(Command, frozen=True, kw_only=True):
    """Reject a tool call. The turn ends unless `auto_resume` is set; the page and the command line set it."""

    command_name = "reject"
    result_type = Decided

    gate_id: str
    reason: Text = ""
    auto_resume: bool = False


class Respond(Command, frozen=True, kw_only=True):
    """Answer a question or a dialog. `answer` is a text, the id of an option, or a list of them for each question."""

    command_name = "respond"
    result_type = Decided

    gate_id: str
    answer: Json


class Retry(Command, frozen=True, kw_only=True):
    """Try a failed turn again."""

    command_name = "retry"


class Resume(Command, frozen=True, kw_only=True):
    """Wake a suspended session, or continue one that is paused, stopped or completed."""

    command_name = "resume"
    result_type = Status


class Cancel(Command, frozen=True, kw_only=True):
    """End the session and archive it as cancelled."""

    command_name = "cancel"
    result_type = Status


class Archive(Command, frozen=True, kw_only=True):
    """End the session and archive it."""

    command_name = "archive"
    result_type = Status


class Delete(Command, frozen=True, kw_only=True):
    """Delete the session and its log."""

    command_name = "delete"


class Rename(Command, frozen=True, kw_only=True):
    """Give the session another name of 1 to 100 characters."""

    command_name = "rename"

    name: str


class SwitchModel(Command, frozen=True, kw_only=True):
    """Use another model from the next turn on."""

    command_name = "switch_model"

    model: Words


class SwitchMode(Command, frozen=True, kw_only=True):
    """Use another mode: plan, ask, edits, auto or bypass."""

    command_name = "switch_mode"

    mode: str


class Bash(Command, frozen=True, kw_only=True):
    """Run a shell command of the user's own, next to the conversation."""

    command_name = "bash"

    command: Words


class Compact(Command, frozen=True, kw_only=True):
    """Shorten the conversation."""

    command_name = "compact"


class EditQueued(Command, frozen=True, kw_only=True):
    """Replace a queued text."""

    command_name = "edit"

    item_id: str
    text: Words


class DropQueued(Command, frozen=True, kw_only=True):
    """Remove a queued text, or all of them if `item_id` is empty."""

    command_name = "drop"
    result_type = Dropped

    item_id: str = ""


class Resend(Command, frozen=True, kw_only=True):
    """Send a text again that failed, or of which it's unknown whether the agent read it."""

    command_name = "resend"

    item_id: str


class Mark(Command, frozen=True, kw_only=True):
    """Pin or snooze the session, or set how far a person has read. Fields that are None stay as they are."""

    command_name = "mark"

    pinned: bool | None = None
    #: Time in milliseconds. 0 wakes the session.
    snoozed_until: int | None = None
    read_index: int | None = None


class RemoveRule(Command, frozen=True, kw_only=True):
    """Remove a rule that was created for this session only."""

    command_name = "unrule"

    rule_id: str


class Create(Command, frozen=True, kw_only=True):
    """Create a session. With a prompt, its agent starts at once."""

    command_name = "create"

    agent: str
    prompt: str | None = None
    cwd: str = ""
    images: tuple[Image, ...] = ()
    model: str = ""
    name: str = ""
    mode: str = ""
    #: Id of the session that this one continues.
    continues: str = ""
    #: Arguments for the agent's command line. They are stored in the log.
    arguments: tuple[str, ...] = ()
    #: The agent's whole environment, or None for the deck's. It's never logged or returned.
    env: Mapping[str, str] | None = None
    #: Whether raw signals are recorded to a trace.
    record: bool = False


#: Commands that depend on the session's state; `check` knows them.
STATE_COMMANDS: tuple[type[Command], ...] = (
    Prompt,
    Steer,
    Abort,
    Approve,
    Reject,
    Respond,
    Retry,
    Resume,
    Cancel,
    Archive,
    Delete,
    Rename,
    SwitchModel,
    SwitchMode,
    Bash,
    Compact,
)
#: Commands that are allowed in every state, as far as their content is valid.
OTHER_COMMANDS: tuple[type[Command], ...] = (EditQueued, DropQueued, Resend, Mark, RemoveRule, Create)


# --- which commands a state allows

_KIND_NAMES = {"approval": "an approval", "question": "a question", "dialog": "a dialog"}
_RESUMABLE_PHASES = ("paused", "stopped", "completed")
#: What each lifecycle state allows at all. `check` applies the finer conditions.
BY_LIFECYCLE: dict[str, tuple[str, ...]] = {
    "none": (),
    "active": (
        "prompt",
        "steer",
        "abort",
        "approve",
        "reject",
        "respond",
        "retry",
        "resume",
        "cancel",
        "archive",
        "rename",
        "switch_model",
        "switch_mode",
        "bash",
        "compact",
    ),
    "suspended": ("prompt", "resume", "delete", "rename"),
    "archived": ("delete",),
    "error": ("delete",),
}


class InvalidCommand(QuarterdeckError):
    """A command whose content is wrong in every state."""

    code = "invalid_command"


def allowed(state: State, steering_limit: int = STEERING_LIMIT) -> tuple[str, ...]:
    """Return the names of all commands of which at least one would pass `check` now."""
    names = BY_LIFECYCLE[state.lifecycle.value]
    return tuple(name for name in names if _obstacle(state, name) is None and _has_target(state, name, steering_limit))


def _has_target(state: State, name: str, steering_limit: int) -> bool:
    """Return whether the command has a gate to decide, or room for its text."""
    if name == "steer":
        return not _is_steering_full(state, steering_limit)
    if name in ("approve", "reject", "respond"):
        return any(name in _commands_for(open_gate.kind) for open_gate in state.gates.open)
    return True


def check(state: State, command: Command, steering_limit: int = STEERING_LIMIT) -> None:
    """Raise unless the command is allowed now.

    Raises:
        InvalidCommand: the content is wrong in every state.
        NotAllowed: the state doesn't allow the command.
        QueueFull: no room for another steering text.
        NoSuchGate: there is no gate with this id.
        AlreadyDecided: the gate was decided before.
    """
    _check_content(command)
    name = command.command_name
    if name not in BY_LIFECYCLE[state.lifecycle.value]:
        # "archived" and "error" explain themselves. For a suspended session, seed 002 says what is possible.
        hint = lifecycle.HINTS["suspended"] if state.lifecycle.value == "suspended" else ""
        raise NotAllowed(name, _describe(state), allowed(state, steering_limit), hint)
    obstacle = _obstacle(state, name)
    if obstacle is not None:
        raise NotAllowed(name, _describe(state), allowed(state, steering_limit), obstacle)
    if isinstance(command, Approve | Reject | Respond):
        _check_gate(state, command)
    if isinstance(command, Steer) and _is_steering_full(state, steering_limit):
        raise QueueFull(steering_limit)
    if isinstance(command, Prompt) and state.lifecycle.value == "suspended" and not command.resume:
        why = "the session is suspended and resume is off"
        raise NotAllowed(name, _describe(state), allowed(state, steering_limit), why)


def _obstacle(state: State, name: str) -> str | None:
    """Return why a command that the lifecycle allows still isn't possible, or None."""
    if name == "prompt":
        destination = route(state)
        return destination.reason if destination.meaning == "refused" else None
    if name == "resume":
        return _resume_obstacle(state)
    if name == "retry" and state.phase.value != "error":
        return "nothing failed"
    if name in ("approve", "reject", "respond") and not state.gates.open and not state.gates.decided:
        return "nothing is waiting for a decision"
    return None


def _is_steering_full(state: State, limit: int) -> bool:
    # If no turn is running, a steering text begins one and needs no room in the queue.
    return is_busy(state) and queue.steering_count(state.queue) >= limit


def _resume_obstacle(state: State) -> str | None:
    if state.lifecycle.value == "suspended":
        return None if state.profile.can_resume else "the agent can't resume this session"
    return None if state.phase.value in _RESUMABLE_PHASES else "nothing is paused, stopped or completed"


def _check_gate(state: State, command: Approve | Reject | Respond) -> None:
    target = gate.to_decide(state.gates, command.gate_id)
    if command.command_name not in _commands_for(target.kind):
        raise NotAllowed(command.command_name, f"{target.id} is {_KIND_NAMES[target.kind]}", _commands_for(target.kind))


def _commands_for(gate_kind: str) -> tuple[str, ...]:
    return ("approve", "reject") if gate_kind == "approval" else ("respond",)


def _check_content(command: Command) -> None:
    if isinstance(command, Rename) and not 1 <= len(command.name.strip()) <= NAME_LIMIT:
        raise InvalidCommand(f"name has {len(command.name)} characters", f"Use 1 to {NAME_LIMIT} characters.")
    if isinstance(command, SwitchMode) and command.mode not in MODES:
        raise InvalidCommand(f"there is no mode {command.mode!r}", f"Modes: {', '.join(MODES)}.")
    if isinstance(command, Prompt | Steer) and not command.text.strip() and not getattr(command, "images", ()):
        raise InvalidCommand("the text is empty", "Send a text or an image.")


def _describe(state: State) -> str:
    if state.lifecycle.value == NOT_OPENED:
        return "there is no session"
    if state.lifecycle.value != "active":
        return f"the session is {state.lifecycle.value}"
    return f"the session is {state.phase.value}"
