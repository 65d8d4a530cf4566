"""Record the raw signals of sessions that were created with `record`, as JSON lines (contract section 5)."""

from __future__ import annotations

from io import FileIO
from pathlib import Path

import msgspec

from quarterdeck.harness.base import Signal, object_of
from quarterdeck.home import Home


def trace_file(home: Path, session_id: str) -> Path:
    """Return the path of a session's trace. The file is deleted with the session."""
    return Home(home).traces / f"{session_id}.jsonl"


class Recordings:
    """Which sessions of a deck are recorded."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._session_ids: set[str] = set()

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._session_ids

    def __len__(self) -> int:
        return len(self._session_ids)

    def add(self, session_id: str) -> None:
        """Record this session from its next agent process on."""
        self._session_ids.add(session_id)

    def discard(self, session_id: str) -> None:
        """Stop recording new processes of this session."""
        self._session_ids.discard(session_id)

    def delete(self, session_id: str) -> None:
        """Delete the session's trace."""
        self.discard(session_id)
        trace_file(self._home, session_id).unlink(missing_ok=True)

    def recorder_for(self, session_id: str) -> TraceRecorder | None:
        """Return a recorder for a new process of this session, or None if the session isn't recorded."""
        path = trace_file(self._home, session_id)
        # After a restart, the file itself says that the session is recorded.
        return TraceRecorder(path) if session_id in self._session_ids or path.exists() else None


class TraceRecorder:
    """Writes every signal of one agent process to a trace."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: FileIO | None = None
        self._started_at = 0.0

    def write(self, signal: Signal, now: float) -> None:
        """Append one signal. Times count from the first signal of the process; its exit closes the file."""
        if self._file is None:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            # Unbuffered: a line must be complete on disk even if the deck is killed.
            self._file = FileIO(self._path, "ab")
            self._started_at = now
        data = signal.data.decode(errors="replace") if isinstance(signal.data, bytes) else signal.data
        line = {"t": round(now - self._started_at, 6), "src": signal.src, "data": data}
        self._file.write(msgspec.json.encode(line) + b"\n")
        if signal.src == "proc" and object_of(data).get("event") == "exit":
            self._file.close()
            self._file = None
