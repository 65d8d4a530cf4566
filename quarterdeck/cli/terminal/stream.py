"""Read the events of one session on a thread, across cuts of the connection and restarts of the server.

The reader sends the index of its last event and gets everything after it (contract section 2), so a cut
leaves no gap.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import deque
from typing import Any, Literal, TypeAlias

from quarterdeck.cli.connect import find_server
from quarterdeck.cli.start_server import is_start_locked
from quarterdeck.client.errors import Unreachable, is_server_away
from quarterdeck.client.sync_client import Session
from quarterdeck.client.transport import StreamCut
from quarterdeck.errors import QuarterdeckError
from quarterdeck.home import Home

#: How long to wait for a server that no command is starting. A service manager restarts it without taking our lock.
_GRACE_S = 1.0
_RETRY_S = 0.1

#: `event` and `snapshot` with their JSON; `lost` when the server went away; `session` to use from now on; `over` with
#: the error that ended the stream.
SignalKind: TypeAlias = Literal["event", "snapshot", "lost", "session", "over"]


class Stream:
    """The reader. `wake` becomes readable when there is something to take."""

    def __init__(self, home: Home, session: Session) -> None:
        self._home = home
        self._session = session
        self._index = 0
        self._signals: deque[tuple[SignalKind, Any]] = deque()
        self.wake, self.wake_writer = os.pipe()
        os.set_blocking(self.wake_writer, False)
        os.set_blocking(self.wake, False)

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, daemon=True).start()

    def ring(self) -> None:
        """Wake the thread that waits for `wake`. Safe in a signal handler."""
        # If the pipe is full, the waiting thread has been woken already.
        with contextlib.suppress(BlockingIOError):
            os.write(self.wake_writer, b"!")

    def take(self) -> list[tuple[SignalKind, Any]]:
        """Return everything that came since the last call."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 65536)
        signals: list[tuple[SignalKind, Any]] = []
        while self._signals:
            signals.append(self._signals.popleft())
        return signals

    def _put(self, kind: SignalKind, value: Any) -> None:
        self._signals.append((kind, value))
        self.ring()

    def _run(self) -> None:
        try:
            while True:
                if self._read() == "deleted":
                    self._put("over", SessionGone(self._session.id))
                    return
                self._put("lost", None)
                self._session = self._reconnect()
                self._put("session", self._session)
        except QuarterdeckError as error:
            self._put("over", error)
        except Exception as error:  # A bug here must not leave the main thread waiting for ever.
            self._put("over", SessionGone(self._session.id, f"{type(error).__name__}: {error}"))
            raise

    def _read(self) -> str:
        """Read until the connection ends. Return the server's reason for that, if it sent one."""
        try:
            for block in self._session.blocks(self._index):
                if block.name == "open":
                    continue
                data = json.loads(block.data)
                if block.name == "end":
                    return str(data["reason"])
                if block.name == "snapshot":
                    self._index = data["index"]
                    self._put("snapshot", data)
                elif block.name not in ("cursor", "gap"):  # A gap is followed by a snapshot.
                    self._index = data["index"]
                    self._put("event", data)
        except StreamCut:
            pass
        return ""

    def _reconnect(self) -> Session:
        """Return the session on the server of this home, as soon as a server answers.

        Raises:
            Unreachable: no server came back.
        """
        give_up_at = time.monotonic() + _GRACE_S
        while time.monotonic() < give_up_at:
            try:
                connection = find_server(self._home)
                if connection is not None:
                    connection.client.check_health()
                    return connection.client.session(self._session.id)
            except QuarterdeckError as error:
                if not is_server_away(error):
                    raise
            if is_start_locked(self._home):
                give_up_at = time.monotonic() + _GRACE_S
            time.sleep(_RETRY_S)
        raise Unreachable("the server is gone", "Start it again with `qd up -d`. The session's log is safe.")


class SessionGone(QuarterdeckError):
    """The session can't be followed any more."""

    code = "no_such_session"

    def __init__(self, session_id: str, reason: str = "it was deleted") -> None:
        super().__init__(f"session {session_id} can't be followed any more: {reason}", "")
