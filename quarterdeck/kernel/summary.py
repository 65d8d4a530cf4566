"""Derive what clients see of a session: the summary in lists, and the details of one session (contract section 2).

Nothing here is stored. SUMMARY_FIELDS and DETAILS_FIELDS say how each field is derived and from which parts of the state,
so that patch.py can recompute only the fields whose parts changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec import Struct

from quarterdeck.events import Plan, Repo, Todo
from quarterdeck.kernel import lifecycle, phase
from quarterdeck.kernel.composer import Composer, composer
from quarterdeck.kernel.gate import Gate, ranked
from quarterdeck.kernel.phase import Flags
from quarterdeck.kernel.profile import Changes, Context, Failure
from quarterdeck.kernel.queue import Queue
from quarterdeck.kernel.state import State
from quarterdeck.kernel.turn import Task
from quarterdeck.kernel.usage import Ledger
from quarterdeck.kernel.view import View

#: The text that 000 prescribes while a session is being created.
CREATING = "Creating session..."
#: What the agent is doing in each state of the run, while no call runs.
_VERBS = {"idle": "Waiting", "running": "Thinking", "streaming": "Writing", "executing_tools": "Working"}
#: The phases that need attention until the user has read the session, and the kind of attention.
_UNREAD_KINDS = {"error": "failed", "completed": "finished"}


# ---------------------------------------------------------------------------------------------- shapes


class Now(Struct, frozen=True, gc=False):
    """What the agent is doing at this moment."""

    verb: str
    target: str
    since: int


class Attention(Struct, frozen=True, gc=False):
    """Why a session needs its user: approval, dialog, question, failed or finished."""

    kind: str
    gate_id: str | None
    since: int


class UsageShown(Struct, frozen=True, gc=False):
    """Tokens and known cost. A cost of None is unknown; `partial` means that some of the cost is unknown."""

    cost_usd: float | None
    billing: str
    tokens: int
    partial: bool = False


class Summary(Struct, frozen=True, gc=False):
    """One row of the list."""

    id: str
    name: str
    agent: str
    cwd: str
    repo: Repo | None
    model: str
    mode: str
    created_at: int
    last_active_at: int
    lifecycle: str
    end_reason: str | None
    process: str
    run: str
    activity: str
    phase: str
    flags: Flags
    composer: Composer
    now: Now | None
    last_text: str
    attention: Attention | None
    unread: bool
    pinned: bool
    snoozed_until: int | None
    changes: Changes
    background: int
    signal: str
    usage: UsageShown
    owner: str
    resumable: bool
    error: Failure | None
    index: int


class GateShown(Struct, frozen=True, gc=False):
    """A gate without the fields that only translators need."""

    id: str
    kind: str
    title: str
    payload: Any
    options: Any
    requested_at: int
    deadline: int | None
    path: tuple[str, ...]


class Details(Struct, frozen=True, gc=False):
    """What the view of one session has besides the summary.

    In a view, `background` and `usage` replace the shorter values of the same names in the summary.
    """

    gates: tuple[GateShown, ...]
    stale_gates: tuple[GateShown, ...]
    queue: Queue
    background: tuple[Task, ...]
    usage: Ledger
    capabilities: tuple[str, ...]
    todos: tuple[Todo, ...]
    plan: Plan | None
    context: Context | None
    thinking: str | None
    deletes_at: int | None
    native_session_id: str
    fold_version: int


# ---------------------------------------------------------------------------------------- derived values


def now(state: State) -> Now | None:
    """Return the call that started last, else what the turn is doing, or None if nothing happens."""
    if state.turn.calls:
        call = state.turn.calls[-1]
        return Now(call.name, call.target, call.since)
    if state.phase.value == "creating":
        return Now(CREATING, "", state.phase.since)
    if not state.turn.is_open:
        return None
    verb = "Compacting" if state.activity.value == "active/compacting" else _VERBS[state.run.value]
    return Now(verb, "", state.run.since)


def is_unread(state: State) -> bool:
    """Return whether a turn finished or failed after the user last read the session."""
    return state.outcome_index > state.profile.read_index


def attention(state: State) -> Attention | None:
    """Return the most urgent reason why the session needs its user, or None."""
    if state.lifecycle.value != "active":
        return None
    gates = ranked(state.gates)
    if gates:
        return Attention(gates[0].kind, gates[0].id, gates[0].requested_at)
    if is_unread(state) and state.phase.value in _UNREAD_KINDS:
        return Attention(_UNREAD_KINDS[state.phase.value], None, state.phase.since)
    return None


def _flags(state: State) -> Flags:
    return phase.flags(state.phase.value, state.profile.approves_itself)


def _error(state: State) -> Failure | None:
    return state.error if state.phase.value == "error" or state.lifecycle.value == "error" else None


def usage_shown(ledger: Ledger) -> UsageShown:
    """Shorten the ledger to what the list shows."""
    return UsageShown(ledger.total.cost_usd, ledger.billing, ledger.total.total_tokens, ledger.partial)


def gate_shown(gate: Gate) -> GateShown:
    """Remove the fields of a gate that only translators need."""
    payload = {"questions": gate.questions} if gate.kind == "question" else gate.payload
    return GateShown(gate.id, gate.kind, gate.title, payload, gate.options, gate.requested_at, gate.deadline, gate.path)


def _open_gates(state: State) -> tuple[GateShown, ...]:
    return tuple(gate_shown(gate) for gate in ranked(state.gates))


def _stale_gates(state: State) -> tuple[GateShown, ...]:
    return tuple(gate_shown(gate) for gate in state.gates.stale)


def _deletes_at(state: State) -> int | None:
    return lifecycle.deletes_at(state.lifecycle.value, state.last_active_at, state.profile.can_resume)


# ---------------------------------------------------------------------------------------------- fields


class Field(NamedTuple):
    """How one field is derived from the state."""

    #: Every field of State that `value` reads, directly or indirectly. If one is missing here, a client that mirrors
    #: the view misses changes of this field. A test records what `value` really reads.
    parts: frozenset[str]
    value: Callable[[State], Any]


def _attribute(path: str) -> Field:
    """Define a field that is an attribute of the state, such as `profile.name`."""
    return Field(frozenset({path.partition(".")[0]}), attrgetter(path))


def _derived(value: Callable[[State], Any], parts: str) -> Field:
    return Field(frozenset(parts.split()), value)


#: The fields of Summary except `index`, in its order.
SUMMARY_FIELDS: Mapping[str, Field] = {
    "id": _attribute("profile.id"),
    "name": _attribute("profile.name"),
    "agent": _attribute("profile.agent"),
    "cwd": _attribute("profile.cwd"),
    "repo": _attribute("profile.repo"),
    "model": _attribute("profile.model"),
    "mode": _attribute("profile.mode"),
    "created_at": _attribute("profile.created_at"),
    "last_active_at": _attribute("last_active_at"),
    "lifecycle": _attribute("lifecycle.value"),
    "end_reason": _attribute("profile.end_reason"),
    "process": _attribute("process.value"),
    "run": _attribute("run.value"),
    "activity": _attribute("activity.value"),
    "phase": _attribute("phase.value"),
    "flags": _derived(_flags, "phase profile"),
    "composer": _derived(composer, "lifecycle phase base_phase run turn gates queue profile"),
    "now": _derived(now, "turn phase activity run"),
    "last_text": _attribute("last_text"),
    "attention": _derived(attention, "lifecycle gates phase outcome_index profile"),
    "unread": _derived(is_unread, "outcome_index profile"),
    "pinned": _attribute("profile.pinned"),
    "snoozed_until": _attribute("profile.snoozed_until"),
    "changes": _attribute("profile.changes"),
    "background": _derived(lambda state: len(state.background), "background"),
    "signal": _attribute("signal.value"),
    "usage": _derived(lambda state: usage_shown(state.usage), "usage"),
    "owner": _attribute("profile.owner"),
    "resumable": _attribute("profile.can_resume"),
    "error": _derived(_error, "error phase lifecycle"),
}

#: The fields of Details, in its order.
DETAILS_FIELDS: Mapping[str, Field] = {
    "gates": _derived(_open_gates, "gates"),
    "stale_gates": _derived(_stale_gates, "gates"),
    "queue": _attribute("queue"),
    "background": _attribute("background"),
    "usage": _attribute("usage"),
    "capabilities": _attribute("profile.capabilities"),
    "todos": _attribute("todos"),
    "plan": _attribute("plan"),
    "context": _attribute("profile.context"),
    "thinking": _attribute("profile.thinking"),
    "deletes_at": _derived(_deletes_at, "lifecycle last_active_at profile"),
    "native_session_id": _attribute("profile.native_session_id"),
    "fold_version": _attribute("fold_version"),
}

#: The fields of a whole view except `index`: the summary's, with those of the details added or replaced.
VIEW_FIELDS: Mapping[str, Field] = {**SUMMARY_FIELDS, **DETAILS_FIELDS}


def summary(view: View) -> Summary:
    """Return the session's row in the list."""
    return Summary(**_values(SUMMARY_FIELDS, view.state), index=view.index)


def details(view: View) -> Details:
    """Return what the view of one session has besides the summary."""
    return Details(**_values(DETAILS_FIELDS, view.state))


def view_values(view: View) -> dict[str, Any]:
    """Return everything that a client sees of a session except its timeline, by field."""
    return {**_values(VIEW_FIELDS, view.state), "index": view.index}


def _values(fields: Mapping[str, Field], state: State) -> dict[str, Any]:
    return {name: field.value(state) for name, field in fields.items()}
