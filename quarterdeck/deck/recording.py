"""Records what goes to and comes from an agent, before anybody reads it (contract section 5)."""

from __future__ import annotations

from collections.abc import Callable
from io import FileIO
from pathlib import Path

import msgspec

from quarterdeck.harness.base import Signal, object_of
from quarterdeck.home import Home

_encode = msgspec.json.encode


def trace_file(home: Path, session_id: str) -> Path:
    """Where a session is recorded; it goes with the session."""
    return Home(home).traces / f"{session_id}.jsonl"


def trace_of(home: Path, session_id: str) -> Callable[[Signal, float], None]:
    """Writes each signal as a line. Times count from the first signal of this process; its exit is the last."""
    path = trace_file(home, session_id)
    begun: list[float] = []
    files: list[FileIO] = []

    def write(signal: Signal, now: float) -> None:
        if not files:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            files.append(FileIO(path, "ab"))
            begun.append(now)
        data = signal.data.decode(errors="replace") if isinstance(signal.data, bytes) else signal.data
        files[0].write(_encode({"t": round(now - begun[0], 6), "src": signal.src, "data": data}) + b"\n")
        if signal.src == "proc" and object_of(data).get("event") == "exit":
            files.pop().close()
            begun.clear()

    return write
