"""What a log keeps beside the events, made from the folded state: the row of the catalogue and the small view."""

from __future__ import annotations

import os

import msgspec

from quarterdeck.events import Repo
from quarterdeck.kernel.gate import Gates
from quarterdeck.kernel.profile import Failure, Profile
from quarterdeck.kernel.state import Cell, State
from quarterdeck.log.base import LogUnavailable, Row

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(State).decode


def packed(state: State) -> bytes:
    """The small view as the log keeps it. An agent may ask with numbers that only JSON can hold."""
    try:
        return _pack(state)
    except OverflowError:
        return msgspec.json.encode(state)


def unpacked(view: bytes) -> State:
    """And back. LogUnavailable when it cannot be read; the events can still say what it was."""
    try:
        return _unpack(view) if view[:1] != b"{" else msgspec.json.decode(view, type=State)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise LogUnavailable(
            f"the view of a session cannot be read ({error})", "Run `qd db check --repair`: it is made from the events."
        ) from None


def row_of(state: State) -> Row:
    """The catalogue's row of this session."""
    profile = state.profile
    return Row(
        id=profile.id,
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
        last_gate=last_gate(state.gates),
    )


def state_of(row: Row, trouble: LogUnavailable) -> State:
    """What the row alone can say of a session whose view cannot be read: it is there, and something is wrong with it."""
    profile = Profile(
        id=row.id,
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
        error=Failure("internal", f"{trouble.message}. {trouble.hint}"),
    )


_NO_GATES = Gates()


def last_gate(gates: Gates) -> int:
    """The highest number among the deck's short names (`g7`) that these gates bear."""
    if gates is _NO_GATES or gates == _NO_GATES:
        return 0
    named = [*(one.id for one in gates.open), *(one.id for one in gates.stale), *(one.gate_id for one in gates.decided)]
    return max((int(name[1:]) for name in named if name[:1] == "g" and name[1:].isdecimal()), default=0)
