"""What a person or a program may ask of a session. Commands are not events: a command can be refused.

`check` says whether a command is allowed now. If not it raises NotAllowed with the state and with what is allowed; it
never changes anything. What an allowed command causes is the deck's business.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from quarterdeck.errors import NotAllowed, QuarterdeckError, QueueFull
from quarterdeck.events import Image, Json
from quarterdeck.kernel import gate, lifecycle, queue
from quarterdeck.kernel.routing import STEERING_LIMIT, is_busy, route
from quarterdeck.kernel.state import NOT_OPENED, State


class Prompt(Struct, frozen=True, kw_only=True, tag="prompt"):
    """A message. `supersede` closes what is asked first; `new_task` starts over; `resume` wakes a suspended session."""

    text: str
    images: tuple[Image, ...] = ()
    resume: bool = True
    supersede: bool = False
    new_task: bool = False


class Steer(Struct, frozen=True, kw_only=True, tag="steer"):
    """A text for the running turn."""

    text: str
    ref: str = ""


class Abort(Struct, frozen=True, kw_only=True, tag="abort"):
    """Ends the turn. Allowed when nothing runs, too: observers then reconcile."""

    kill_tools: Literal["killable", "all", "none"] = "killable"
    clear_queue: bool = False
    reason: str | None = None


class Approve(Struct, frozen=True, kw_only=True, tag="approve"):
    """Yes to an approval, once or always."""

    gate_id: str
    always: Literal["session", "repo", "user"] | None = None
    auto_resume: bool = True


class Reject(Struct, frozen=True, kw_only=True, tag="reject"):
    """No to an approval. The library's default does not resume the turn; the page and the command line do."""

    gate_id: str
    reason: str = ""
    auto_resume: bool = False


class Respond(Struct, frozen=True, kw_only=True, tag="respond"):
    """The answer to a question or a dialog."""

    gate_id: str
    answer: Json


class Retry(Struct, frozen=True, tag="retry"):
    """Tries a failed turn again."""


class Resume(Struct, frozen=True, tag="resume"):
    """Wakes a suspended session, or goes on in an active one that is paused, stopped or completed."""


class Cancel(Struct, frozen=True, tag="cancel"):
    """Ends the session and puts it away."""


class Archive(Struct, frozen=True, tag="archive"):
    """Puts the session away."""


class Delete(Struct, frozen=True, tag="delete"):
    """Removes the session and its log."""


class Rename(Struct, frozen=True, kw_only=True, tag="rename"):
    """Another name, of 1 to 100 characters."""

    name: str


class SwitchModel(Struct, frozen=True, kw_only=True, tag="switch_model"):
    """Another model from the next turn on."""

    model: str


class SwitchMode(Struct, frozen=True, kw_only=True, tag="switch_mode"):
    """Another mode: plan, ask, edits, auto, bypass."""

    mode: str


class Bash(Struct, frozen=True, kw_only=True, tag="bash"):
    """A shell command of the user's own."""

    command: str


class Compact(Struct, frozen=True, tag="compact"):
    """Shortens the conversation."""


Command: TypeAlias = (
    Prompt
    | Steer
    | Abort
    | Approve
    | Reject
    | Respond
    | Retry
    | Resume
    | Cancel
    | Archive
    | Delete
    | Rename
    | SwitchModel
    | SwitchMode
    | Bash
    | Compact
)

NAME_LIMIT = 100
MODES = ("plan", "ask", "edits", "auto", "bypass")
_NAMED = {"approval": "an approval", "question": "a question", "dialog": "a dialog"}
_RESUMABLE_PHASES = ("paused", "stopped", "completed")
#: What each lifecycle allows at all; finer conditions follow in `check`.
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


def name_of(command: Command) -> str:
    """The command's name in the API."""
    return str(command.__struct_config__.tag)


def allowed(state: State, steering_limit: int = STEERING_LIMIT) -> tuple[str, ...]:
    """The names of the commands that this state allows now: some command of that name would pass `check`."""
    listed = BY_LIFECYCLE[state.lifecycle.value]
    return tuple(n for n in listed if _obstacle(state, n) is None and _has_object(state, n, steering_limit))


def _has_object(state: State, name: str, steering_limit: int) -> bool:
    """Whether there is a gate to decide, or room for the text. `check` says more exactly what is wrong if not."""
    if name == "steer":
        return not _steering_is_full(state, steering_limit)
    if name in ("approve", "reject", "respond"):
        return any(name in _answers_to(one.kind) for one in state.gates.open)
    return True


def check(state: State, command: Command, steering_limit: int = STEERING_LIMIT) -> None:
    """Raises unless the command is allowed now."""
    _check_content(command)
    name = name_of(command)
    if name not in BY_LIFECYCLE[state.lifecycle.value]:
        # that a session is archived or failed says it all; of a suspended one 002 tells what may come
        hint = lifecycle.HINTS["suspended"] if state.lifecycle.value == "suspended" else ""
        raise NotAllowed(name, _described(state), allowed(state, steering_limit), hint)
    obstacle = _obstacle(state, name)
    if obstacle is not None:
        raise NotAllowed(name, _described(state), allowed(state, steering_limit), obstacle)
    if isinstance(command, Approve | Reject | Respond):
        _check_gate(state, command)
    if isinstance(command, Steer) and _steering_is_full(state, steering_limit):
        raise QueueFull(steering_limit)
    if isinstance(command, Prompt) and state.lifecycle.value == "suspended" and not command.resume:
        why = "the session is suspended and resume is off"
        raise NotAllowed(name, _described(state), allowed(state, steering_limit), why)


def _obstacle(state: State, name: str) -> str | None:
    """Why a command that the lifecycle allows is still not possible; None when it is."""
    if name == "prompt":
        way = route(state)
        return way.reason if way.meaning == "refused" else None
    if name == "resume":
        return _resume_obstacle(state)
    if name == "retry" and state.phase.value != "error":
        return "nothing failed"
    if name in ("approve", "reject", "respond") and not state.gates.open and not state.gates.decided:
        return "nothing is asked"
    return None


def _steering_is_full(state: State, limit: int) -> bool:
    """When nothing runs a steering text is a prompt, and needs no room."""
    return is_busy(state) and queue.steering_count(state.queue) >= limit


def _resume_obstacle(state: State) -> str | None:
    if state.lifecycle.value == "suspended":
        return None if state.profile.can_resume else "the agent cannot resume this session"
    return None if state.phase.value in _RESUMABLE_PHASES else "nothing is paused, stopped or completed"


def _check_gate(state: State, command: Approve | Reject | Respond) -> None:
    found = gate.to_decide(state.gates, command.gate_id)
    wanted = ("question", "dialog") if isinstance(command, Respond) else ("approval",)
    if found.kind not in wanted:
        raise NotAllowed(name_of(command), f"{found.id} is {_NAMED[found.kind]}", _answers_to(found.kind))


def _answers_to(kind: str) -> tuple[str, ...]:
    return ("approve", "reject") if kind == "approval" else ("respond",)


def _check_content(command: Command) -> None:
    if isinstance(command, Rename) and not 1 <= len(command.name.strip()) <= NAME_LIMIT:
        raise InvalidCommand(f"name has {len(command.name)} characters", f"Use 1 to {NAME_LIMIT} characters.")
    if isinstance(command, SwitchMode) and command.mode not in MODES:
        raise InvalidCommand(f"there is no mode {command.mode!r}", f"Modes: {', '.join(MODES)}.")
    if isinstance(command, Prompt | Steer) and not command.text.strip() and not getattr(command, "images", ()):
        raise InvalidCommand("the text is empty", "Send a text or an image.")


def _described(state: State) -> str:
    """The state as an error names it: what is in the way."""
    if state.lifecycle.value == NOT_OPENED:
        return "there is no session"
    if state.lifecycle.value != "active":
        return f"the session is {state.lifecycle.value}"
    return f"the session is {state.phase.value}"
