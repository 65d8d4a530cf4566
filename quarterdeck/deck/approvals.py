"""Pure helpers for the gates of a live session: assign ids, apply rules, and build the events that close gates."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.deck.rules import RuleStore, RulesUnreadable
from quarterdeck.events import Body
from quarterdeck.harness.driver import Decision
from quarterdeck.kernel import activity
from quarterdeck.kernel.gate import Gate, Gates, find
from quarterdeck.kernel.state import State
from quarterdeck.policy import Rule, Verdict, Workspace, decide, request_of

_Resolved: TypeAlias = ev.ApprovalResolved | ev.UserResponded | ev.DialogResolved
_KINDS = {ev.ApprovalResolved: "approval", ev.UserResponded: "question", ev.DialogResolved: "dialog"}
OPENING_EVENTS = (ev.ApprovalRequired, ev.AskUser, ev.DialogRequired)
CLOSING_EVENTS = (ev.ApprovalResolved, ev.UserResponded, ev.DialogResolved)
#: Closes a gate because its turn was stopped.
CANCELLED = Decision(status="cancelled", stops=True, resumes=False)
#: What `~` means in a rule: the home of the user who runs the server.
_HOME = os.path.expanduser("~")


# --- opening


def assign_gate_id(body: Body, gates: Gates, next_id: Callable[[], str]) -> Body:
    """Return an opening event with the deck's short gate id. A gate that the agent opens again keeps its id."""
    if isinstance(body, ev.ApprovalRequired):
        gate_id = body.gate.gate_id or _known_gate_id(gates, body.gate.ref) or next_id()
        return replace(body, gate=replace(body.gate, gate_id=gate_id))
    assert isinstance(body, ev.AskUser | ev.DialogRequired)
    return replace(body, gate_id=body.gate_id or _known_gate_id(gates, body.ref) or next_id())


def _known_gate_id(gates: Gates, ref: str) -> str:
    if not ref:
        return ""
    return next((gate.id for gate in (*gates.open, *gates.stale) if gate.ref == ref), "")


def opened_gates(bodies: Iterable[Body], gates: Gates) -> tuple[Gate, ...]:
    """Return the open gates that these events opened."""
    gate_ids = [_gate_id(body) for body in bodies if isinstance(body, OPENING_EVENTS)]
    return tuple(gate for gate in gates.open if gate.id in gate_ids)


def _gate_id(body: Body) -> str:
    if isinstance(body, ev.ApprovalRequired):
        return body.gate.gate_id
    assert isinstance(body, ev.AskUser | ev.DialogRequired)
    return body.gate_id


def gate_number(body: Body) -> int:
    """Return the number of the gate that an event opens (7 for `g7`), or 0 if it opens none or the id isn't the deck's."""
    gate_id = _gate_id(body) if isinstance(body, OPENING_EVENTS) else ""
    digits = gate_id[1:]
    return int(digits) if gate_id.startswith("g") and digits.isascii() and digits.isdigit() else 0


# --- rules


def rule_context(state: State) -> Workspace:
    """Return where the session works, as rules need it to match paths."""
    profile = state.profile
    root = profile.repo.root if profile.repo is not None else ""
    return Workspace(profile.id, profile.cwd, root, _HOME, resolve=os.path.realpath)


def apply_rules(gate: Gate, state: State, store: RuleStore, session_rules: Iterable[Rule]) -> Verdict:
    """Return what the rules decide about a gate. If the rules file is unreadable, a person must decide."""
    if gate.kind != "approval":
        return Verdict("ask")
    try:
        rules = store.rules()
    except RulesUnreadable:
        return Verdict("ask")
    return decide(request_of(gate, rule_context(state)), (*rules, *session_rules))


# --- closing


def is_already_recorded(body: Body, gates: Gates) -> bool:
    """Return whether a closing event repeats a decision that the deck itself recorded.

    Translators report the answers that the deck sent. Several gates may be decided at once and reported one by one.
    """
    if not isinstance(body, _Resolved):
        return False
    if find(gates, body.gate_id, body.ref, _KINDS[type(body)]) is not None:  # type: ignore[arg-type]
        return False
    return any(
        (body.ref and decision.ref == body.ref) or (body.gate_id and decision.gate_id == body.gate_id)
        for decision in gates.decided
    )


def closing_event(gate: Gate, decision: Decision, by: str, rule: str = "", status: str = "") -> Body:
    """Build the event that records how a gate was decided. `status` overrides the decision's own."""
    if gate.kind == "approval":
        outcome = status or {"approved": "approved", "rejected": "rejected"}.get(decision.status, "withdrawn")
        return ev.ApprovalResolved(
            status=outcome,  # type: ignore[arg-type]
            gate_id=gate.id,
            ref=gate.ref,
            by=by,
            rule=rule,
            reason=decision.reason,
            agent_path=gate.path,
        )
    outcome = status or ("answered" if decision.status == "answered" else "withdrawn")
    # The three events allow different statuses. Those that don't fit can't be reached here.
    if gate.kind == "question":
        return ev.UserResponded(
            response=decision.answer,
            gate_id=gate.id,
            ref=gate.ref,
            by=by,
            status=outcome,  # type: ignore[arg-type]
            agent_path=gate.path,
        )
    return ev.DialogResolved(
        value=decision.answer,
        gate_id=gate.id,
        ref=gate.ref,
        by=by,
        status=outcome,  # type: ignore[arg-type]
        agent_path=gate.path,
    )


# --- the agent's activity around gates


def is_waiting_event(body: Body) -> bool:
    """Return whether this event says that the main agent waits for a person."""
    return isinstance(body, ev.StateChange) and body.sub == "waiting_for_permission" and not body.agent_path


def is_main_agent_waiting(gates: Gates) -> bool:
    """Return whether the main agent, and not only a sub-agent, has an open gate."""
    return any(not gate.path for gate in gates.open)


def activity_after_closing(state: State, closed: Sequence[Gate], *, turn_ends: bool = False) -> ev.StateChange | None:
    """Return the main agent's activity once these gates are closed, or None if it doesn't change.

    Seed 003 moves from waiting to tool_use, for a rejection as for an approval. A dialog covers whatever the turn is doing,
    so the agent goes back to thinking.
    """
    waiting_for = [gate for gate in state.gates.open if not gate.path]
    if state.activity.value != activity.WAITING or not waiting_for or any(gate not in closed for gate in waiting_for):
        return None
    is_under_dialog = state.run.value in ("running", "streaming") and all(gate.kind == "dialog" for gate in waiting_for)
    return activity_without_gates(state, turn_ends=turn_ends, is_under_dialog=is_under_dialog)


def activity_without_gates(state: State, *, turn_ends: bool = False, is_under_dialog: bool = False) -> ev.StateChange:
    """Return what the main agent does while it waits for no person. Without a turn, it's idle."""
    if turn_ends or not state.turn.is_open:
        return ev.StateChange(state="idle")
    return ev.StateChange(state="active", sub="thinking" if is_under_dialog else "tool_use")
