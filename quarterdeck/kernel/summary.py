"""A session as clients see it: the summary that stands in lists, and the whole view (contract section 2).

Everything here is derived from the state when it is asked for; nothing is kept.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from quarterdeck.events import Plan, Repo, Todo
from quarterdeck.kernel import lifecycle, phase
from quarterdeck.kernel.background import Task
from quarterdeck.kernel.composer import Composer, composer
from quarterdeck.kernel.gate import Gate, ranked
from quarterdeck.kernel.phase import Flags
from quarterdeck.kernel.profile import Changes, Context, Failure
from quarterdeck.kernel.queue import Queue
from quarterdeck.kernel.state import State
from quarterdeck.kernel.usage import Ledger
from quarterdeck.kernel.view import View

#: 000's own words for a session that is being created.
CREATING = "Creating session..."


class Now(Struct, frozen=True, gc=False):
    """What the agent does at this moment, in two words."""

    verb: str
    target: str
    since: int


class Attention(Struct, frozen=True, gc=False):
    """Why a person is wanted: approval, dialog, question, failed or finished."""

    kind: str
    gate_id: str | None
    since: int


class UsageShown(Struct, frozen=True, gc=False):
    """Cost as far as it is known; None is unknown, and `partial` says that some of it is."""

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
    """An open gate as a person sees it."""

    id: str
    kind: str
    title: str
    payload: Any
    options: Any
    requested_at: int
    deadline: int | None
    path: tuple[str, ...]


class Details(Struct, frozen=True, gc=False):
    """What the view has beside the summary. `background` here is the list, under the same name as the count."""

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


def summary(view: View) -> Summary:
    """The row of this session."""
    state = view.state
    profile = state.profile
    return Summary(
        id=profile.id,
        name=profile.name,
        agent=profile.agent,
        cwd=profile.cwd,
        repo=profile.repo,
        model=profile.model,
        mode=profile.mode,
        created_at=profile.created_at,
        last_active_at=state.last_active_at,
        lifecycle=state.lifecycle.value,
        end_reason=profile.end_reason,
        process=state.process.value,
        run=state.run.value,
        activity=state.activity.value,
        phase=state.phase.value,
        flags=phase.flags(state.phase.value, profile.approves_itself),
        composer=composer(state),
        now=now(state),
        last_text=state.last_text,
        attention=attention(state),
        unread=is_unread(state),
        pinned=profile.pinned,
        snoozed_until=profile.snoozed_until,
        changes=profile.changes,
        background=len(state.background),
        signal=state.signal.value,
        usage=usage_shown(state.usage),
        owner=profile.owner,
        resumable=profile.can_resume,
        error=state.error if state.phase.value == "error" or state.lifecycle.value == "error" else None,
        index=view.index,
    )


def details(view: View) -> Details:
    """The rest of the view."""
    state = view.state
    profile = state.profile
    return Details(
        gates=tuple(map(gate_shown, ranked(state.gates))),
        stale_gates=tuple(map(gate_shown, state.gates.stale)),
        queue=state.queue,
        background=state.background,
        usage=state.usage,
        capabilities=profile.capabilities,
        todos=state.todos,
        plan=state.plan,
        context=profile.context,
        thinking=profile.thinking,
        deletes_at=lifecycle.deletes_at(state.lifecycle.value, state.last_active_at, profile.can_resume),
        native_session_id=profile.native_session_id,
        fold_version=state.fold_version,
    )


def gate_shown(gate: Gate) -> GateShown:
    """A gate without what only translators need."""
    payload = {"questions": gate.questions} if gate.kind == "question" else gate.payload
    return GateShown(gate.id, gate.kind, gate.title, payload, gate.options, gate.requested_at, gate.deadline, gate.path)


def usage_shown(ledger: Ledger) -> UsageShown:
    """The ledger in one line."""
    return UsageShown(ledger.total.cost_usd, ledger.billing, ledger.total.total_tokens, ledger.partial)


def now(state: State) -> Now | None:
    """The call that began last, else what the turn does; None when nothing goes on."""
    if state.turn.calls:
        call = state.turn.calls[-1]
        return Now(call.name, call.target, call.since)
    if state.phase.value == "creating":
        return Now(CREATING, "", state.phase.since)
    if not state.turn.is_open:
        return None
    verb = "Compacting" if state.activity.value == "active/compacting" else _VERBS[state.run.value]
    return Now(verb, "", state.run.since)


_VERBS = {"idle": "Waiting", "running": "Thinking", "streaming": "Writing", "executing_tools": "Working"}


def is_unread(state: State) -> bool:
    """Something was finished, or failed, that nobody looked at since."""
    return state.settled_index > state.profile.read_index


def attention(state: State) -> Attention | None:
    """The strongest reason why a person is wanted; None when there is none."""
    if state.lifecycle.value != "active":
        return None
    gates = ranked(state.gates)
    if gates:
        return Attention(gates[0].kind, gates[0].id, gates[0].requested_at)
    if is_unread(state) and state.phase.value in _SETTLED:
        return Attention(_SETTLED[state.phase.value], None, state.phase.since)
    return None


_SETTLED = {"error": "failed", "completed": "finished"}
