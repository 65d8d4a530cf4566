"""Define the rules that hold after every batch. Each takes the world and returns None or a description of the fault.

The first rules compare the view with the truth. Then come the rules across owners (X-028, X-040), and then the rules
for any view: the phase can be reconstructed from 000's three sources, the composer is enabled, and exactly the
allowed commands are accepted. Rules about single steps are in search.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from quarterdeck import events as ev
from quarterdeck.errors import AlreadyDecided, NotAllowed, QuarterdeckError, QueueFull
from quarterdeck.events import DELTAS, NAMES, Body, Event
from quarterdeck.kernel import commands as cmd
from quarterdeck.kernel import phase
from quarterdeck.kernel.composer import composer
from quarterdeck.kernel.routing import route
from quarterdeck.kernel.state import OWNERS, State
from quarterdeck.kernel.summary import attention
from quarterdeck.kernel.view import fold, reconstructed
from tests.model import person
from tests.model.truth import Bounds, Truth, World, activity_of, asked, runs_of
from tests.support.state_table import legal, shown_by

Rule: TypeAlias = Callable[[World, Bounds], str | None]
_DELTA_NAMES = frozenset(NAMES[kind] for kind in DELTAS)


def _differs(what: str, shown: object, true: object) -> str | None:
    return None if shown == true else f"{what}: {shown!r} is shown, {true!r} is the case"


# --- the view shows the truth


def owners_are_true(world: World, _: Bounds) -> str | None:
    """Compare lifecycle, process, activity and run."""
    truth, state = world.truth, world.view.state
    process = "none" if truth.process == "waiting" else truth.process
    shown = (state.lifecycle.value, state.process.value, state.activity.value)
    if shown != (truth.lifecycle, process, activity_of(truth)):
        return _differs("lifecycle, process, activity", shown, (truth.lifecycle, process, activity_of(truth)))
    runs = runs_of(truth)
    return None if state.run.value in runs else f"run: {state.run.value} is shown, {' or '.join(runs)} is the case"


def gates_are_true(world: World, _: Bounds) -> str | None:
    """Check that each gate has a waiting agent, and each waiting agent a gate."""
    shown = {(gate.id, gate.kind, gate.path) for gate in world.view.state.gates.open}
    return _differs("gates", shown, {(one.gate_id, one.kind, one.path) for one in asked(world.truth)})


def turn_is_true(world: World, _: Bounds) -> str | None:
    """Compare the turn and its running calls."""
    truth, turn = world.truth, world.view.state.turn
    running = {call.id for call in truth.calls if call.status in ("runs", "asks_late")}
    if truth.question is not None and truth.question.call:
        running.add(truth.question.call)
    shown = (turn.is_open, {call.id for call in turn.calls})
    return _differs("turn and calls", shown, (bool(truth.step), running))


def background_is_true(world: World, _: Bounds) -> str | None:
    """Compare the work that outlives the turn."""
    truth = world.truth
    true = {("subagent", sub.id) for sub in truth.subs if sub.in_background}
    if truth.shell:
        true.add(("shell", truth.shell))
    return _differs("background", {(task.kind, task.id) for task in world.view.state.background}, true)


def queue_is_true(world: World, _: Bounds) -> str | None:
    """Check that no message is lost or duplicated."""
    shown = sorted((item.kind, item.id) for item in world.view.state.queue)
    true = [("prompt", name) for name in world.truth.prompts] + [("steer", name) for name in world.truth.steers]
    return _differs("queue", shown, sorted(true))


def spinner_is_true(world: World, _: Bounds) -> str | None:
    """Check that the base phase has a spinner exactly while a turn is open or about to start (X-040)."""
    truth, base_phase = world.truth, world.view.state.base_phase.value
    if truth.promise == "restore" and base_phase == "idle":
        # A session that never had a prompt has no turn to continue, so it shows no spinner.
        return None
    under_way = bool(truth.step or truth.promise)
    spins = phase.spinner(base_phase) is not None
    return None if spins == under_way else f"{base_phase} is the base phase, and {_under_way(truth)}"


def _under_way(truth: Truth) -> str:
    return f"the turn is {truth.step}" if truth.step else f"{truth.promise or 'nothing'} is on its way"


# --- the owners agree


def combination_is_legal(world: World, _: Bounds) -> str | None:
    """Check the table of X-028."""
    return None if legal(world.view) else f"no row of the table fits {shown_by(world.view)}"


def owners_agree(world: World, _: Bounds) -> str | None:
    """Check the other parts of X-040."""
    state, shown = world.view.state, world.view.state.phase.value
    if state.run.value != "idle" and shown not in ("streaming", *phase.WAITING):
        return f"the run is {state.run.value} under {shown}"
    kinds = {gate.kind for gate in state.gates.open}
    waiting = "waiting_approval" if "approval" in kinds else "waiting_input" if kinds else None
    if (shown if shown in phase.WAITING else None) != waiting:
        return f"{shown} with the gates {kinds}"
    if world.view.timeline.streaming != state.turn.is_open:
        return f"timeline streaming is {world.view.timeline.streaming}, turn open is {state.turn.is_open}"
    if state.process.value != "none" and state.lifecycle.value != "active":
        return f"a process in a session that is {state.lifecycle.value}"
    return None


# --- rules for any view


def phase_is_found_again(world: World, _: Bounds) -> str | None:
    """Reconstruct the phase from the stored status, the last ask and the process (000)."""
    return _differs("phase by the three sources", reconstructed(world.view), world.view.state.phase.value)


def causes_are_kept(world: World, _: Bounds) -> str | None:
    """Check that no state names an event as its cause that a log may drop."""
    cited = {getattr(world.view.state, owner).type for owner in OWNERS}
    return f"cited: {cited & _DELTA_NAMES}" if cited & _DELTA_NAMES else None


def person_is_wanted(world: World, _: Bounds) -> str | None:
    """Check that an open gate of an active session needs attention."""
    state = world.view.state
    wanted = attention(state)
    by_gate = wanted is not None and wanted.gate_id is not None
    return _differs("attention by a gate", by_gate, bool(state.gates.open))


def composer_is_there(world: World, _: Bounds) -> str | None:
    """Check that the composer is disabled only in archived and failed sessions (X-017).

    While the session is busy, a message is queued (X-022).
    """
    state = world.view.state
    field = composer(state)
    if field.enabled != (state.lifecycle.value not in ("archived", "error")):
        return f"composer enabled is {field.enabled} in a session that is {state.lifecycle.value}"
    spins = phase.spinner(state.base_phase.value) is not None
    if spins and route(state).meaning == "prompt":
        return f"{state.base_phase.value}, and a text would be a prompt of its own"
    return None


# --- commands


def commands_are_judged(world: World, bounds: Bounds) -> str | None:
    """Check that each command is accepted or refused as the documents say, with a typed error.

    `allowed` must name a command exactly if some command of that name is accepted. Checking changes nothing.
    """
    state = world.view.state
    before = msgspec.json.encode(state)
    admitted: set[str] = set()
    for command in (*person.commands(world), *person.INVALID):
        expected, found = refusal(world, command, bounds), _refused(state, command, bounds)
        if not (issubclass(found, expected) if expected and found else expected is found):
            return f"{command}: {_named(found)}, expected {_named(expected)}"
        if found is None:
            admitted.add(command.command_name)
    if msgspec.json.encode(state) != before:
        return "a check changed the state"
    return _differs("allowed commands", set(cmd.allowed(state, bounds.texts)), admitted)


def _named(error: type[QuarterdeckError] | None) -> str:
    return error.__name__ if error else "admitted"


def _refused(state: State, command: cmd.Command, bounds: Bounds) -> type[QuarterdeckError] | None:
    try:
        cmd.check(state, command, bounds.texts)
    except QuarterdeckError as error:
        return type(error)
    return None


def refusal(world: World, command: cmd.Command, bounds: Bounds) -> type[QuarterdeckError] | None:
    """Return the error that the documents demand, or None if the command is accepted."""
    truth, state = world.truth, world.view.state
    if command in person.INVALID:
        return cmd.InvalidCommand
    name = command.command_name
    if truth.lifecycle != "active":
        may = {"suspended": {"delete", "rename"}, "archived": {"delete"}, "error": {"delete"}}.get(
            truth.lifecycle, set()
        )
        wakes = name == "resume" or (isinstance(command, cmd.Prompt) and command.resume)
        can_wake = truth.lifecycle == "suspended" and state.profile.can_resume
        return None if name in may or (wakes and can_wake) else NotAllowed
    if isinstance(command, cmd.Approve | cmd.Reject | cmd.Respond):
        return _gate_refusal(world, command)
    if isinstance(command, cmd.Steer):
        busy = truth.step or phase.spinner(state.base_phase.value)
        return QueueFull if busy and len(truth.steers) >= bounds.texts else None
    phases = {"retry": ("error",), "resume": ("paused", "stopped", "completed")}
    fits = state.phase.value in phases.get(name, (state.phase.value,))
    return None if fits and name != "delete" else NotAllowed


def _gate_refusal(world: World, command: cmd.Approve | cmd.Reject | cmd.Respond) -> type[QuarterdeckError] | None:
    for one in asked(world.truth):
        if one.gate_id == command.gate_id:
            return None if isinstance(command, cmd.Respond) == (one.kind != "approval") else NotAllowed
    decided = world.view.state.gates.decided
    return AlreadyDecided if any(one.gate_id == command.gate_id for one in decided) else QuarterdeckError


def words_move_nothing(world: World, _: Bounds) -> str | None:
    """Check that events which only report something change no owner."""
    view, before = world.view, world.view.state
    for body in WORDS:
        view = fold(view, Event("s1", view.index + 1, view.index + 1, "engine", body))
    moved = [name for name in MOVED_BY_FEW if getattr(view.state, name) != getattr(before, name)]
    return f"{moved} moved" if moved else None


MOVED_BY_FEW = (
    "lifecycle",
    "process",
    "run",
    "activity",
    "phase",
    "base_phase",
    "turn",
    "gates",
    "queue",
    "background",
)
WORDS: tuple[Body, ...] = (
    ev.Usage(tokens=ev.TokenUsage(input=1), message_id="m"),
    ev.ContextUsage(percent=1.0),
    ev.SettingChanged(mode="auto"),
    ev.ModelSwitched(to="m2"),
    ev.ChangesUpdated(files=1),
    ev.SignalChanged(signal="stale"),
    ev.SessionRenamed(name="n"),
    ev.SessionMarked(pinned=True),
    ev.TitleGenerated(title="t"),
    ev.TodoChange(),
    ev.PlanGenerated(plan=ev.Plan()),
    ev.Notice(text="n", level="error"),
    ev.StatusUpdate(text="s"),
    ev.LoopDetected(loop="file_loop_warn"),
    ev.PluginEvent(name="p"),
    ev.Intervention(prompt="i"),
    ev.CheckpointSaved(),
    ev.CommandReceipt(client_id="c"),
    ev.BashStart(bash_id="b", command="ls"),
    ev.BashEnd(bash_id="b", exit_code=0),
    ev.ToolExecutionMetrics(name="shell", call_id="c", started_at_ms=1),
    ev.MessageDelta(message_id="none", delta="d"),
    ev.ToolExecutionOutput(call_id="none", delta="d"),
    ev.DeliveryChanged(message_id="none", status="unknown"),
    ev.PromptDropped(text="none", message_id="none"),
    ev.ApprovalResolved(gate_id="none", status="approved"),
    ev.UserResponded(ref="none"),
    ev.DialogResolved(gate_id="none"),
    ev.BackgroundEnded(kind="shell", id="none"),
    ev.SubagentEnd(child_sid="none"),
    ev.Unknown(name="of_a_newer_release"),
)


#: These rules compare names. The search treats worlds that differ only in names as one, so check these after every move.
RULES_OF_NAMES: dict[str, Rule] = {
    "every gate has somebody waiting at it": gates_are_true,
    "the turn and its calls are shown": turn_is_true,
    "background work is shown": background_is_true,
    "no text is lost or doubled": queue_is_true,
}
#: These rules are checked once in every world.
RULES: dict[str, Rule] = {
    "lifecycle, process, activity and run are shown": owners_are_true,
    "it spins exactly while something runs (X-040)": spinner_is_true,
    "the combination is legal (X-028)": combination_is_legal,
    "the owners agree (X-040)": owners_agree,
    "the phase is found again from its three sources": phase_is_found_again,
    "no cause is an event that may be dropped": causes_are_kept,
    "a gate gets attention": person_is_wanted,
    "the composer is there": composer_is_there,
    "commands are admitted and refused as documented": commands_are_judged,
    "words move nothing": words_move_nothing,
}
