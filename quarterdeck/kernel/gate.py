"""What a human is asked: approvals, questions, dialogs. Open ones are a small ordered set; each is decided once.

A gate has two names: the deck's short one (`g7`, the same on every surface) and the agent's own request id (`ref`). A
translator knows only the second, so a decision that it reports is matched by either. The last decisions are kept, so
that whoever comes second is told who decided what. Gates that a restart cut off are kept as stale: they can not be
answered any more, and are asked again on resume where the agent can.
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

#: Approvals and dialogs stand before questions wherever gates are shown.
RANK: dict[str, int] = {"approval": 0, "dialog": 1, "question": 2}
#: 000's name of what is asked.
ASKS = {
    "tool": "ask:tool",
    "command": "ask:command",
    "browser": "ask:browser_action_launch",
    "mcp": "ask:use_mcp_server",
}
_DECISIONS_KEPT = 32
#: They are kept in sets of so many, because a tuple of all of them would be copied for every gate that closes.
_SET = _DECISIONS_KEPT // 2


class Gate(Struct, frozen=True, gc=False):
    """One open item. `payload` is plain JSON, so that a stored gate comes back as it was; questions have a type."""

    id: str
    kind: Kind
    title: str
    payload: Json
    options: tuple[Option, ...]
    requested_at: int
    deadline: int | None
    path: tuple[str, ...]
    ref: str
    call_id: str
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
    """All gates of a session: open, cut off by a restart, and lately decided.

    `decided` has the last decisions, and `earlier` the two full sets before them; `lately` puts them together.
    """

    open: tuple[Gate, ...] = ()
    stale: tuple[Gate, ...] = ()
    decided: tuple[Decision, ...] = ()
    earlier: tuple[tuple[Decision, ...], ...] = ()


def asked(event: Event) -> Gate:
    """The gate that this event opens."""
    body = event.body
    if isinstance(body, ApprovalRequired):
        return _approval(event, body)
    if isinstance(body, AskUser):
        return _question(event, body)
    assert isinstance(body, DialogRequired)
    return _dialog(event, body)


def id_of(event: Event, gate_id: str, ref: str) -> str:
    """The deck's name of a gate, else the agent's; without any the event's own index names it."""
    return gate_id or ref or f"e{event.index}"


def title_of(request: GateRequest) -> str:
    """What is asked, in one line."""
    return request.title or request.tool


def opened(gates: Gates, gate: Gate) -> Gates:
    """With this gate open. The same gate asked again replaces what it asked before, and is no longer stale."""
    stays = _others(gates.open, gate.id) if gates.open else ()
    return Gates((*stays, gate), _others(gates.stale, gate.id), gates.decided, gates.earlier)


def _others(gates: tuple[Gate, ...], gate_id: str) -> tuple[Gate, ...]:
    """Without the gate of this name; mostly it is not among them."""
    for one in gates:
        if one.id == gate_id:
            return tuple([other for other in gates if other.id != gate_id])
    return gates


def find(gates: Gates, gate_id: str, ref: str, kind: Kind) -> Gate | None:
    """The open gate that a decision means: by the deck's name, by the agent's, or the only one of its kind."""
    for gate in gates.open:
        if (gate_id and gate.id == gate_id) or (ref and gate.ref == ref):
            return gate
    if gate_id or ref:
        return None
    of_kind = [gate for gate in gates.open if gate.kind == kind]
    return of_kind[0] if len(of_kind) == 1 else None


def closed(gates: Gates, gate: Gate, status: str, at: int, by: str = "", rule: str = "") -> Gates:
    """Without this gate."""
    left = () if len(gates.open) == 1 else tuple([one for one in gates.open if one is not gate])
    stale = (*gates.stale, gate) if status == "stale" else gates.stale
    decided, earlier = gates.decided, gates.earlier
    if len(decided) == _SET:
        decided, earlier = (), (*earlier[-1:], decided)
    # unpacking would copy the decisions twice
    decided += (Decision(gate.id, gate.ref, status, by, rule, at),)
    return Gates(left, stale, decided, earlier)


def closed_all(gates: Gates, status: str, at: int) -> Gates:
    """Without any open gate: nobody is left who waits."""
    decided, earlier = gates.decided, gates.earlier
    for one in gates.open:
        if len(decided) == _SET:
            decided, earlier = (), (*earlier[-1:], decided)
        decided += (Decision(one.id, one.ref, status, "", "", at),)
    return Gates((), gates.stale + gates.open if status == "stale" else gates.stale, decided, earlier)


def closed_where(gates: Gates, chosen: Callable[[Gate], bool], status: str, at: int) -> Gates:
    """Without the gates that are meant; the same object when none was."""
    for one in gates.open:
        if chosen(one):
            gates = closed(gates, one, status, at)
    return gates


def without_stale(gates: Gates) -> Gates:
    """A turn begins: what was asked before the restart is asked again in it, or never. The same object when none was."""
    return Gates(gates.open, (), gates.decided, gates.earlier) if gates.stale else gates


def lately(gates: Gates) -> tuple[Decision, ...]:
    """The last decisions, oldest first."""
    return tuple([one for some in (*gates.earlier, gates.decided) for one in some][-_DECISIONS_KEPT:])


def decision_on(gates: Gates, gate_id: str) -> Decision | None:
    """How the gate of this name was last closed, if that was lately."""
    for some in (gates.decided, *reversed(gates.earlier)):
        for decision in reversed(some):
            if decision.gate_id == gate_id:
                return decision
    return None


def to_decide(gates: Gates, gate_id: str) -> Gate:
    """The gate that a person wants to decide, or a typed error that says why not."""
    for gate in gates.open:
        if gate.id == gate_id:
            return gate
    decision = decision_on(gates, gate_id)
    if decision is not None:
        raise AlreadyDecided(gate_id, decision.status, decision.by)
    raise NoSuchGate(gate_id, tuple(gate.id for gate in gates.open))


def ranked(gates: Gates) -> tuple[Gate, ...]:
    """Open gates as they are shown: by rank, then oldest first."""
    return tuple(sorted(gates.open, key=lambda gate: (RANK[gate.kind], gate.requested_at)))


def waiting_phase(gates: Gates) -> str | None:
    """The phase that the strongest open gate asks for; None when nothing is open."""
    for gate in gates.open:
        if gate.kind == "approval":
            return "waiting_approval"
    return "waiting_input" if gates.open else None


def _approval(event: Event, body: ApprovalRequired) -> Gate:
    request = body.gate
    return Gate(
        id_of(event, request.gate_id, request.ref),
        "approval",
        title_of(request),
        {"tool": request.tool, "args": request.args, "hint": request.hint},
        request.options,
        event.at if request.requested_at is None else request.requested_at,
        request.deadline,
        body.agent_path,
        request.ref,
        request.call_id,
        ASKS[request.ask],
    )


def _question(event: Event, body: AskUser) -> Gate:
    return Gate(
        id_of(event, body.gate_id, body.ref),
        "question",
        body.question,
        {},
        body.options,
        event.at,
        body.deadline,
        body.agent_path,
        body.ref,
        body.call_id,
        "ask:followup",
        body.questions,
    )


def _dialog(event: Event, body: DialogRequired) -> Gate:
    return Gate(
        id_of(event, body.gate_id, body.ref),
        "dialog",
        body.title,
        {"method": body.method, "message": body.message, "prefill": body.prefill},
        body.options,
        event.at,
        body.deadline,
        body.agent_path,
        body.ref,
        "",
        "ask:followup",
    )
