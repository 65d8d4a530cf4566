"""Records what goes to and comes from an agent, before anybody reads it (contract section 5)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from quarterdeck.harness.base import Signal
from quarterdeck.home import Home

_encode = msgspec.json.encode


def trace_of(home: Path, session_id: str) -> Callable[[Signal, float], None]:
    """Writes each signal as a line of `traces/ID.jsonl`. Times count from the first signal of this process."""
    folder = Home(home).traces
    folder.mkdir(mode=0o700, exist_ok=True)
    file = (folder / f"{session_id}.jsonl").open("ab", buffering=0)
    begun: list[float] = []

    def write(signal: Signal, now: float) -> None:
        begun.append(now) if not begun else None
        data = signal.data.decode(errors="replace") if isinstance(signal.data, bytes) else signal.data
        file.write(_encode({"t": round(now - begun[0], 6), "src": signal.src, "data": data}) + b"\n")

    return write
