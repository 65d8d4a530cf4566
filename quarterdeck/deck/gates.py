"""Gates of a live session: their short names, the rules that decide them, and how a decision reaches the agent."""

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
OPENING = (ev.ApprovalRequired, ev.AskUser, ev.DialogRequired)
CLOSING = (ev.ApprovalResolved, ev.UserResponded, ev.DialogResolved)
#: What `~` means in a rule: the user's who runs the server.
_HOME = os.path.expanduser("~")


def named(body: Body, gates: Gates, next_name: Callable[[], str]) -> Body:
    """An asking body with the deck's short name. What is asked again under the agent's own name keeps the name it had."""
    if isinstance(body, ev.ApprovalRequired):
        name = body.gate.gate_id or _name_of(gates, body.gate.ref) or next_name()
        return replace(body, gate=replace(body.gate, gate_id=name))
    assert isinstance(body, ev.AskUser | ev.DialogRequired)
    return replace(body, gate_id=body.gate_id or _name_of(gates, body.ref) or next_name())


def _name_of(gates: Gates, ref: str) -> str:
    if not ref or not (gates.open or gates.stale):
        return ""
    return next((one.id for one in (*gates.open, *gates.stale) if one.ref == ref), "")


def opened_by(bodies: Iterable[Body], gates: Gates) -> tuple[Gate, ...]:
    """The open gates that these bodies ask."""
    names = [_gate_id(body) for body in bodies if type(body) in OPENING]
    return tuple([gate for gate in gates.open if gate.id in names])


def _gate_id(body: Body) -> str:
    if isinstance(body, ev.ApprovalRequired):
        return body.gate.gate_id
    assert isinstance(body, ev.AskUser | ev.DialogRequired)
    return body.gate_id


def number_of(body: Body) -> int:
    """The number of the gate that this opens; 0 when it opens none, or one with a name of another kind."""
    name = _gate_id(body) if type(body) in OPENING else ""
    digits = name[1:]
    return int(digits) if name.startswith("g") and digits.isascii() and digits.isdigit() else 0


def is_told_already(body: Body, gates: Gates) -> bool:
    """A translator reports what we answered; if it was we who decided, the log has it."""
    if not isinstance(body, _Resolved):
        return False
    if find(gates, body.gate_id, body.ref, _KINDS[type(body)]) is not None:  # type: ignore[arg-type]
        return False
    # many may be decided at once, and reported one by one
    return any(
        (body.ref and one.ref == body.ref) or (body.gate_id and one.gate_id == body.gate_id) for one in gates.decided
    )


def closing(gate: Gate, decision: Decision, by: str, rule: str = "", status: str = "") -> Body:
    """The event that says how this gate was decided."""
    if gate.kind == "approval":
        how = status or {"approved": "approved", "rejected": "rejected"}.get(decision.status, "withdrawn")
        return ev.ApprovalResolved(
            status=how,  # type: ignore[arg-type]
            gate_id=gate.id,
            ref=gate.ref,
            by=by,
            rule=rule,
            reason=decision.reason,
            agent_path=gate.path,
        )
    how = status or ("answered" if decision.status == "answered" else "withdrawn")
    # the literals of the three events differ in what cannot be reached here
    if gate.kind == "question":
        return ev.UserResponded(
            response=decision.answer,
            gate_id=gate.id,
            ref=gate.ref,
            by=by,
            status=how,  # type: ignore[arg-type]
            agent_path=gate.path,
        )
    return ev.DialogResolved(
        value=decision.answer,
        gate_id=gate.id,
        ref=gate.ref,
        by=by,
        status=how,  # type: ignore[arg-type]
        agent_path=gate.path,
    )


def is_waiting(body: Body) -> bool:
    """Whether this says that the agent waits for a person."""
    return isinstance(body, ev.StateChange) and body.sub == "waiting_for_permission" and not body.agent_path


def is_held(gates: Gates) -> bool:
    """Whether the agent itself, and not one below it, waits for something."""
    return any(not gate.path for gate in gates.open)


def gone_on(state: State, closed: Sequence[Gate], ends: bool = False) -> ev.StateChange | None:
    """What the agent does once these are closed, if they are all that it waits for: 003 goes from waiting to tool_use, for
    a no as for a yes. A dialog lies over whatever the turn does; and with the turn's end, or without one, it is idle."""
    left = [gate for gate in state.gates.open if not gate.path]
    if state.activity.value != activity.WAITING or not left or any(gate not in closed for gate in left):
        return None
    beneath = state.run.value in ("running", "streaming") and all(gate.kind == "dialog" for gate in left)
    return decided(state, ends, beneath)


def decided(state: State, ends: bool = False, beneath: bool = False) -> ev.StateChange:
    """What the agent does when it waits for nobody any more; or goes on doing, beneath a dialog."""
    if ends or not state.turn.is_open:
        return ev.StateChange(state="idle")
    return ev.StateChange(state="active", sub="thinking" if beneath else "tool_use")


def place_of(state: State) -> Workspace:
    """Where the session works, as rules see it."""
    profile = state.profile
    root = profile.repo.root if profile.repo is not None else ""
    return Workspace(profile.id, profile.cwd, root, _HOME, resolve=os.path.realpath)


def verdict_on(gate: Gate, state: State, store: RuleStore, of_session: Iterable[Rule]) -> Verdict:
    """What the rules say of this gate. Rules that cannot be read decide nothing: a person is asked."""
    if gate.kind != "approval":
        return Verdict("ask")
    try:
        rules = store.rules()
    except RulesUnreadable:
        return Verdict("ask")
    return decide(request_of(gate, place_of(state)), (*rules, *of_session))
