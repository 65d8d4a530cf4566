"""Compute what a log stores beside the events: a session's catalogue row and the snapshot of its state."""

from __future__ import annotations

import os

import msgspec

from quarterdeck.events import Repo
from quarterdeck.kernel.gate import Gates
from quarterdeck.kernel.profile import Failure, Profile
from quarterdeck.kernel.state import Cell, State
from quarterdeck.log.base import CatalogueRow, LogUnavailable

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(State).decode


def encode_snapshot(state: State) -> bytes:
    """Encode a state for the log."""
    try:
        return _encode(state)
    except OverflowError:
        # A tool argument can hold an integer of more than 64 bits, which MessagePack can't represent but JSON can.
        return msgspec.json.encode(state)


def decode_snapshot(snapshot: bytes) -> State:
    """Decode a stored state.

    Raises:
        LogUnavailable: the snapshot is damaged, or was written by a release with other fields.
    """
    try:
        # No MessagePack map of ours begins with the byte of "{".
        return msgspec.json.decode(snapshot, type=State) if snapshot[:1] == b"{" else _decode(snapshot)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise LogUnavailable(
            f"a session's snapshot can't be read ({error})",
            "Run `qd db check --repair` to compute it again from the events.",
        ) from None


def catalogue_row(state: State) -> CatalogueRow:
    """Return the catalogue row for a session in this state."""
    profile = state.profile
    return CatalogueRow(
        session_id=profile.id,
        agent=profile.agent,
        status=state.lifecycle.value,
        created_at=profile.created_at,
        last_active_at=state.last_active_at,
        agent_version=profile.agent_version,
        cwd=profile.cwd,
        repo=profile.repo.root if profile.repo is not None else "",
        name=profile.name,
        end_reason=profile.end_reason,
        supports_resume=profile.can_resume,
        resume_data=profile.native_session_id or None,
        pinned=profile.pinned,
        last_gate_number=last_gate_number(state.gates),
    )


def state_from_row(row: CatalogueRow, error: LogUnavailable) -> State:
    """Return a stand-in state for a session whose snapshot can't be read: what the row says, plus the error."""
    profile = Profile(
        id=row.session_id,
        agent=row.agent,
        cwd=row.cwd,
        name=row.name,
        repo=Repo(root=row.repo, name=os.path.basename(row.repo)) if row.repo else None,
        created_at=row.created_at,
        native_session_id=row.resume_data or "",
        agent_version=row.agent_version,
        resumable=row.supports_resume,
        end_reason=row.end_reason,
        pinned=row.pinned,
    )
    return State(
        lifecycle=Cell(row.status, since=row.last_active_at),
        phase=Cell("error", since=row.last_active_at),
        profile=profile,
        last_active_at=row.last_active_at,
        error=Failure("internal", f"{error.message}. {error.hint}"),
    )


def last_gate_number(gates: Gates) -> int:
    """Return the highest number among the ids (`g7`) of these gates, or 0. Ids that an agent chose are ignored."""
    gate_ids = [gate.id for gate in (*gates.open, *gates.stale)] + [decision.gate_id for decision in gates.decided]
    numbers = [int(gate_id[1:]) for gate_id in gate_ids if gate_id[:1] == "g" and gate_id[1:].isdecimal()]
    return max(numbers, default=0)
