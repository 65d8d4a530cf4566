"""Track what a session asks its user: approvals, questions and dialogs. Each gate is decided once.

A gate has two ids: the deck's short one (`g7`, the same on every surface) and the agent's own request id (`ref`). A
translator knows only the second, so a decision it reports may use either.

The most recent decisions are retained, so that a second decision on the same gate can be answered with the first one.
Gates that a restart interrupted are retained as stale. They can't be answered; an agent that can asks again on resume.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from msgspec import Struct

from quarterdeck.errors import AlreadyDecided, NoSuchGate
from quarterdeck.events import (
    ApprovalRequired,
    AskUser,
    DialogRequired,
    Event,
    GateRequest,
    Json,
    Option,
    Question,
)

Kind: TypeAlias = Literal["approval", "question", "dialog"]

#: The order in which gates are shown: approvals and dialogs before questions.
RANK: dict[str, int] = {"approval": 0, "dialog": 1, "question": 2}
#: The kinds of an approval, by their names in 000.
ASKS = {
    "tool": "ask:tool",
    "command": "ask:command",
    "browser": "ask:browser_action_launch",
    "mcp": "ask:use_mcp_server",
}
#: How many decisions are retained. A user may decide many gates at once, and the agent reports each of them afterwards.
_DECISION_LIMIT = 48


class Gate(Struct, frozen=True, gc=False):
    """One open gate. `payload` is plain JSON, so that a stored gate can be decoded without loss."""

    id: str
    kind: Kind
    title: str
    payload: Json
    options: tuple[Option, ...]
    requested_at: int
    deadline: int | None
    #: The sub-agent that asks, outermost first. Empty for the main agent.
    path: tuple[str, ...]
    #: The agent's own request id.
    ref: str
    call_id: str
    #: 000's name for this request, an input of the phase machine.
    ask: str
    questions: tuple[Question, ...] = ()


class Decision(Struct, frozen=True, gc=False):
    """How a gate was closed."""

    gate_id: str
    ref: str
    status: str
    by: str
    rule: str
    at: int


class Gates(Struct, frozen=True, gc=False):
    """All gates of a session."""

    open: tuple[Gate, ...] = ()
    #: Gates that a restart interrupted.
    stale: tuple[Gate, ...] = ()
    #: The most recent decisions, oldest first.
    decided: tuple[Decision, ...] = ()
    #: Older decisions in snapshots of earlier releases. No longer written.
    earlier: tuple[tuple[Decision, ...], ...] = ()


# --------------------------------------------------------------------------------------- gates from events


def gate_of(event: Event) -> Gate:
    """Return the gate that this event opens."""
    body = event.body
    if isinstance(body, ApprovalRequired):
        return _approval(event, body)
    if isinstance(body, AskUser):
        return _question(event, body)
    assert isinstance(body, DialogRequired)
    return _dialog(event, body)


def id_of(event: Event, gate_id: str, ref: str) -> str:
    """Return the deck's id of a gate, else the agent's, else an id made from the event's index."""
    return gate_id or ref or f"e{event.index}"


def title_of(request: GateRequest) -> str:
    """Describe an approval in one line."""
    return request.title or request.tool


def _approval_payload(request: GateRequest) -> Json:
    payload: dict[str, Json] = {"tool": request.tool, "args": request.args, "hint": request.hint}
    if request.purpose != "call":
        payload |= {"purpose": request.purpose, "host": request.host}
    return payload


def _approval(event: Event, body: ApprovalRequired) -> Gate:
    request = body.gate
    return Gate(
        id=id_of(event, request.gate_id, request.ref),
        kind="approval",
        title=title_of(request),
        payload=_approval_payload(request),
        options=request.options,
        requested_at=event.at if request.requested_at is None else request.requested_at,
        deadline=request.deadline,
        path=body.agent_path,
        ref=request.ref,
        call_id=request.call_id,
        ask=ASKS[request.ask],
    )


def _question(event: Event, body: AskUser) -> Gate:
    return Gate(
        id=id_of(event, body.gate_id, body.ref),
        kind="question",
        title=body.question,
        payload={},
        options=body.options,
        requested_at=event.at,
        deadline=body.deadline,
        path=body.agent_path,
        ref=body.ref,
        call_id=body.call_id,
        ask="ask:followup",
        questions=body.questions,
    )


def _dialog(event: Event, body: DialogRequired) -> Gate:
    return Gate(
        id=id_of(event, body.gate_id, body.ref),
        kind="dialog",
        title=body.title,
        payload={"method": body.method, "message": body.message, "prefill": body.prefill},
        options=body.options,
        requested_at=event.at,
        deadline=body.deadline,
        path=body.agent_path,
        ref=body.ref,
        call_id="",
        ask="ask:followup",
    )


# --------------------------------------------------------------------------------------- opening, closing


def opened(gates: Gates, gate: Gate) -> Gates:
    """Open a gate. If a gate with the same id is open or stale, the new one replaces it."""
    others = tuple(other for other in gates.open if other.id != gate.id)
    stale = tuple(other for other in gates.stale if other.id != gate.id)
    return Gates((*others, gate), stale, gates.decided)


def closed(gates: Gates, gate: Gate, status: str, at: int, by: str = "", rule: str = "") -> Gates:
    """Close a gate and record the decision."""
    others = tuple(other for other in gates.open if other is not gate)
    stale = (*gates.stale, gate) if status == "stale" else gates.stale
    decision = Decision(gate.id, gate.ref, status, by, rule, at)
    return Gates(others, stale, (*gates.decided, decision)[-_DECISION_LIMIT:])


def closed_where(gates: Gates, predicate: Callable[[Gate], bool], status: str, at: int) -> Gates:
    """Close every open gate for which the predicate is true. Return the same object if there is none."""
    for gate in gates.open:
        if predicate(gate):
            gates = closed(gates, gate, status, at)
    return gates


def closed_all(gates: Gates, status: str, at: int) -> Gates:
    """Close every open gate. Return the same object if there is none."""
    return closed_where(gates, lambda _: True, status, at)


def without_stale(gates: Gates) -> Gates:
    """Remove the stale gates when a turn starts: the agent asks again in this turn, or never.

    Return the same object if there are none.
    """
    return Gates(gates.open, (), gates.decided) if gates.stale else gates


# ----------------------------------------------------------------------------------------------- queries


def find(gates: Gates, gate_id: str, ref: str, kind: Kind) -> Gate | None:
    """Find the open gate that a decision refers to.

    A decision names the deck's id or the agent's request id. If it names neither, it means the only open gate of its kind.
    """
    for gate in gates.open:
        if (gate_id and gate.id == gate_id) or (ref and gate.ref == ref):
            return gate
    if gate_id or ref:
        return None
    of_kind = [gate for gate in gates.open if gate.kind == kind]
    return of_kind[0] if len(of_kind) == 1 else None


def decision_on(gates: Gates, gate_id: str) -> Decision | None:
    """Return the last decision on this gate, if it is recent enough to be retained."""
    return next((decision for decision in reversed(gates.decided) if decision.gate_id == gate_id), None)


def to_decide(gates: Gates, gate_id: str) -> Gate:
    """Return the open gate with this id, for a user's decision.

    Raises:
        AlreadyDecided: the gate was decided recently.
        NoSuchGate: no gate with this id is open.
    """
    for gate in gates.open:
        if gate.id == gate_id:
            return gate
    decision = decision_on(gates, gate_id)
    if decision is not None:
        raise AlreadyDecided(gate_id, decision.status, decision.by)
    raise NoSuchGate(gate_id, tuple(gate.id for gate in gates.open))


def ranked(gates: Gates) -> tuple[Gate, ...]:
    """Return the open gates in the order in which they are shown: by rank, then oldest first."""
    return tuple(sorted(gates.open, key=lambda gate: (RANK[gate.kind], gate.requested_at)))


def waiting_phase(gates: Gates) -> str | None:
    """Return the phase that the open gates demand, or None if no gate is open."""
    if not gates.open:
        return None
    return "waiting_approval" if any(gate.kind == "approval" for gate in gates.open) else "waiting_input"
