"""The events of one session on a thread of their own, from the first to the last, whatever happens to the connection.

A reader says the index of the last event that it has, and gets what comes after it (contract section 2). So after a cut,
or after a restart of the server, it goes on as if nothing had been.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from typing import Any

from quarterdeck.cli.starting import is_under_way
from quarterdeck.cli.wire import Unreachable, Wire, present
from quarterdeck.errors import QuarterdeckError
from quarterdeck.home import Home

#: A server that nobody is starting may come back within this time: a service's restart is not announced by a lock.
_GRACE_S = 1.0
_PAUSE_S = 0.1


class Stream:
    """`wake` becomes readable when there is something to take."""

    def __init__(self, place: Home, wire: Wire, session_id: str) -> None:
        self._place = place
        self._wire = wire
        self._path = f"/sessions/{session_id}/events"
        self._index = 0
        self._found: deque[tuple[str, Any]] = deque()
        self.wake, self.bell = os.pipe()
        os.set_blocking(self.bell, False)
        os.set_blocking(self.wake, False)

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def ring(self) -> None:
        """Wakes whoever waits; also from a signal handler. A pipe that is full has woken it already."""
        with contextlib.suppress(BlockingIOError):
            os.write(self.bell, b"!")

    def take(self) -> list[tuple[str, Any]]:
        """What came since: `event`, `wire` (the server that answers from now on), `lost`, or `over` with the reason."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 65536)
        found: list[tuple[str, Any]] = []
        while self._found:
            found.append(self._found.popleft())
        return found

    def _put(self, kind: str, what: Any) -> None:
        self._found.append((kind, what))
        self.ring()

    def _run(self) -> None:
        try:
            while True:
                if self._read() == "deleted":
                    self._put("over", Gone(self._path))
                    return
                self._put("lost", None)
                self._wire = self._again()
                self._put("wire", self._wire)
        except QuarterdeckError as error:
            self._put("over", error)
        except Exception as error:  # a fault of ours must not leave the reader waiting for ever
            self._put("over", Gone(self._path, f"{type(error).__name__}: {error}"))
            raise

    def _read(self) -> str:
        """Until the connection ends; the server's reason for that, if it gave one."""
        try:
            for told in self._wire.stream(self._path, since=self._index):
                if told.event == "end":
                    return str(told.data["reason"])
                if told.event == "snapshot":
                    self._index = told.data["index"]
                    self._put("snapshot", told.data)
                elif told.event not in ("cursor", "gap"):
                    self._index = told.data["index"]
                    self._put("event", told.data)
        except Unreachable:
            pass
        return ""

    def _again(self) -> Wire:
        """The server of this home, as soon as one answers."""
        until = time.monotonic() + _GRACE_S
        while time.monotonic() < until:
            try:
                found = present(self._place)
                if found is not None and found.get("/healthz"):
                    return found
            except Unreachable:
                pass
            if is_under_way(self._place):
                until = time.monotonic() + _GRACE_S
            time.sleep(_PAUSE_S)
        raise Unreachable("the server is gone", "`qd up -d` starts it again; nothing that the session did is lost.")


class Gone(QuarterdeckError):
    """There is nothing more to follow."""

    code = "no_such_session"

    def __init__(self, path: str, why: str = "it was deleted") -> None:
        super().__init__(f"session {path.split('/')[2]} cannot be followed any more: {why}", "")
