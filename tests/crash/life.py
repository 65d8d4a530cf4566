"""Run one process of a deck under its subreaper (the keeper), and record the answers that arrive before a kill."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from quarterdeck.deck.deck import home_id
from quarterdeck.process.identity import Identity, find_by_home, is_alive, start_time

ROOT = Path(__file__).parents[2]
#: Nothing here is slow. A longer wait means that the event won't come.
PATIENCE_S = 60.0
_PAUSE_S = 0.005


class Impatient(AssertionError):
    """An expected event didn't happen in time."""


class Gone(Exception):
    """The deck died before it answered."""


class Refused(Exception):
    """A typed error of the deck."""

    def __init__(self, error: dict[str, str]) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.error = error


def until(what: str, happened: Any, patience: float = PATIENCE_S) -> Any:
    """Poll until `happened` returns something true, and return that."""
    end = time.monotonic() + patience
    while not (found := happened()):
        if time.monotonic() > end:
            raise Impatient(f"did not happen: {what}")
        time.sleep(_PAUSE_S)
    return found


class Life:
    """One run of a deck, from the start of its keeper to the end of all processes below it."""

    def __init__(
        self,
        home: Path,
        *,
        point: str = "",
        hit: int = 1,
        victim: str = "deck",
        disk: str = "",
        before: Sequence[str] = (),
    ) -> None:
        self.home = home
        self._complaints = open(home.with_suffix(".stderr"), "ab")  # noqa: SIM115
        program = [sys.executable, "-m", "tests.crash.program", str(home)]
        options = ["--point", point, "--hit", str(hit), "--victim", victim] if point else []
        options += ["--disk", disk] if disk else []
        self.keeper = subprocess.Popen(
            [*before, sys.executable, "-m", "quarterdeck.process.subreaper", "--", *program, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            cwd=ROOT,
        )
        self.deck: Identity | None = None
        #: Set when the deck has opened, or died before it could.
        self._decided = threading.Event()
        self._is_open = False
        #: The point at which the deck was killed, or '' if it wasn't.
        self.reached = ""
        self.refused: dict[str, str] | None = None
        #: (session, index, type) of every published event.
        self.published: list[tuple[str, int, str]] = []
        #: session → its open gates
        self.gates: dict[str, list[tuple[str, str]]] = {}
        #: session → pid of its newest agent, if it hasn't exited
        self.agents: dict[str, int] = {}
        self._asked: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._count = 0
        self._over = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    # --- requests

    def send(self, op: str, **fields: Any) -> Future[Any]:
        """Send a request. Its future gets the answer, `Refused`, or `Gone` if the deck dies first."""
        answer: Future[Any] = Future()
        with self._lock:
            self._count += 1
            self._asked[self._count] = answer
            if self._over:
                answer.set_exception(Gone())
                return answer
            line = json.dumps({"n": self._count, "op": op, **fields}).encode() + b"\n"
        assert self.keeper.stdin is not None
        with contextlib.suppress(OSError):
            self.keeper.stdin.write(line)
            self.keeper.stdin.flush()
        return answer

    def ask(self, op: str, **fields: Any) -> Any:
        return self.send(op, **fields).result(PATIENCE_S)

    def _read(self) -> None:
        assert self.keeper.stdout is not None
        with self.keeper.stdout as lines:
            for line in lines:
                if line.endswith(b"\n"):
                    self._hear(json.loads(line))
        with self._lock:
            self._over = True
            left = [one for one in self._asked.values() if not one.done()]
        for one in left:
            one.set_exception(Gone())
        self._decided.set()

    def _hear(self, line: dict[str, Any]) -> None:
        if "n" in line:
            self._answered(line)
        elif "event" in line:
            self._heard_event(*line["event"])
        elif "pid" in line:
            self.deck = Identity(line["pid"], start_time(line["pid"]) or 0, "")
        elif "point" in line:
            self.reached = line["point"]
        elif "refused" in line:
            self.refused = line["refused"]
        elif "opened" in line:
            self._is_open = True
            self._decided.set()

    def _answered(self, line: dict[str, Any]) -> None:
        answer = self._asked.get(line["n"])
        if answer is None:
            # The deck closed by itself: its close request has the number 0.
            return
        if "ok" in line:
            answer.set_result(line["ok"])
        elif "error" in line:
            answer.set_exception(Refused(line["error"]))
        else:
            answer.set_exception(AssertionError(f"an error without a type: {line['defect']}"))

    def _heard_event(self, session: str, index: int, kind: str, body: Any) -> None:
        self.published.append((session, index, kind))
        if kind in ("approval_required", "ask_user"):
            self._heard_gate(session, body)
        elif kind == "process_starting" and body.get("pid"):
            self.agents[session] = body["pid"]
        elif kind in ("process_exited", "process_error", "session_suspended", "session_archived"):
            self.agents.pop(session, None)
            self.gates.pop(session, None)

    def _heard_gate(self, session: str, body: Any) -> None:
        """Note a gate. If it was requested while the session was inactive, it has no id and can't be answered."""
        gate, kind = (body["gate"], "approval") if "gate" in body else (body, "question")
        if gate.get("gate_id"):
            self.gates.setdefault(session, []).append((gate["gate_id"], kind))

    @property
    def is_over(self) -> bool:
        return self._over

    def wait_open(self) -> bool:
        """Wait for the deck to open. Return False if it was killed before."""
        if not self._decided.wait(PATIENCE_S):
            raise Impatient("the deck did not open")
        return self._is_open

    def state(self, session: str) -> dict[str, Any]:
        return self.ask("states")[session]

    # --- kills

    def find_deck(self) -> Identity | None:
        """Return the deck's process, also before the deck has reported its pid."""
        if self.deck is None:
            with contextlib.suppress(OSError), open(f"/proc/{self.keeper.pid}/task/{self.keeper.pid}/children") as file:
                pids = file.read().split()
                if pids and (started := start_time(int(pids[0]))):
                    return Identity(int(pids[0]), started, "")
        return self.deck

    def kill(self, victim: str) -> None:
        """Send SIGKILL to the victim. If there is no deck yet, kill the keeper instead."""
        deck = self.find_deck()
        if victim in ("deck", "both") and deck is not None and is_alive(deck):
            os.kill(deck.pid, signal.SIGKILL)
        if victim in ("keeper", "both") or deck is None:
            self.keeper.kill()

    def wait_end(self) -> None:
        """Wait until keeper and deck have exited. The keeper exits when no process below it is left."""
        deck = self.find_deck()
        try:
            self.keeper.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise Impatient("the keeper did not leave") from None
        if deck is not None:
            until("the deck leaves after its keeper", lambda: not is_alive(deck))
        self._reader.join(PATIENCE_S)
        self._complaints.close()
        with contextlib.suppress(OSError):
            assert self.keeper.stdin is not None
            self.keeper.stdin.close()

    def abandon(self) -> None:
        """Kill everything, so that a failed test leaves no process behind."""
        self.kill("both")
        with contextlib.suppress(AssertionError):
            self.wait_end()
        for one in left_behind(self.home):
            with contextlib.suppress(OSError):
                os.kill(one.pid, signal.SIGKILL)


def left_behind(home: Path) -> list[Identity]:
    """Return every process that carries a nonce of this home."""
    return find_by_home(home_id(home.resolve()))
