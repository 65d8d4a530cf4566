"""A session in a terminal, live: its words and steps as they come, and what is typed goes to it.

A typed line answers what is asked; when nothing is, it is a message, read when the agent can. Nothing typed is lost: what
cannot be sent is said so, word for word. Ctrl-C stops the turn; a second one leaves, and the session goes on.
"""

from __future__ import annotations

import select
import signal
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4

from quarterdeck.cli.exits import Exit
from quarterdeck.cli.terminal.asking import DECIDED, TURNING, Again, Asked, asked_of, is_decision
from quarterdeck.cli.terminal.keyboard import Keyboard, text_of
from quarterdeck.cli.terminal.output import Paper
from quarterdeck.cli.terminal.render import Plain
from quarterdeck.cli.terminal.stream import Stream
from quarterdeck.cli.wire import Unreachable, Wire
from quarterdeck.errors import QuarterdeckError

#: Events after which a session may be at rest.
_RESTING = frozenset(
    {
        "agent_end",
        "agent_abort",
        "process_exited",
        "process_error",
        "prompt_rejected",
        "prompt_dropped",
        "delivery_changed",
        "turn_failed",
        "turn_restored",
        "session_suspended",
        "session_archived",
        "session_failed",
    }
)
#: Texts that begin a turn by themselves. One that was delivered into a turn that has ended may never be read.
_UNDER_WAY = ("queued", "sending")
#: Whoever is asked is asked when nothing was written for so long, or at the latest after: else the words of what runs
#: beside it would come between the question and its answer, and the question would have to be said again each time.
_QUIET_S = 0.15
_LATEST_S = 2.0
#: How often a job in the background looks whether it is in the foreground; no signal says so.
_JOB_S = 1.0


class Follower:
    """Follows one session until it is at rest. `show` is given every event instead of the paper, if there is one."""

    def __init__(self, stream: Stream, wire: Wire, session_id: str, show: Callable[[Any], None] | None = None) -> None:
        self.paper = Paper(sys.stdout, sys.stderr)
        self.plain = Plain(self.paper)
        self._stream = stream
        self._wire = wire
        self._id = session_id
        self._path = f"/sessions/{session_id}"
        self._show = show
        self._keyboard = Keyboard(show is None)
        self._asked: Asked | None = None
        #: Since when it has something to ask, and when it last wrote something else.
        self._asks_since = self._wrote_at = 0.0
        self._invited = ""
        self._signals = 0
        self._stopping = False
        self._resumed = False
        self._is_lost = False
        self._look = False
        self._index = 0
        self._failure: QuarterdeckError | None = None

    # --- the loop

    def run(self) -> Exit:
        """Returns when the session is at rest, or when the person leaves."""
        self._stream.start()
        left: Exit | None = None
        try:
            while left is None:
                left = self._step()
        except BrokenPipeError:
            sys.stderr.write(f"(nobody reads the reply any more; session {self._id} goes on)\n")
            raise
        finally:
            with suppress(OSError):  # whoever cannot be told is not there
                self._give_back()
        return left

    def _step(self) -> Exit | None:
        """Waits until there is something to do, and does it."""
        listens = self._keyboard.listens
        sources = [self._stream.wake, *([self._keyboard.descriptor] if listens else [])]
        ready = select.select(sources, [], [], self._pause(listens))[0]
        if self._resumed:
            self._resumed = False
            self.paper.typed()  # the shell wrote meanwhile: what is asked is to be said again
        if listens and self._keyboard.descriptor in ready:
            self._read()  # first: what was typed before something was asked is no answer to it
        for kind, what in self._stream.take():
            self._wrote_at = time.monotonic()
            self._heard(kind, what)
        left = self._signalled() or (self._looked() if not self._is_lost else None)
        if left is None and self._asked is not None and self._pause(self._keyboard.listens) == 0:
            self._ask(self._asked)
        self.paper.flush()
        if self._failure is not None:
            raise self._failure
        return left

    def _pause(self, listens: bool) -> float | None:
        """How long to wait for something to happen; 0 when it is time to ask, None for as long as it takes."""
        if self._asked is None or self.paper.is_asking or not listens:
            self._asks_since = 0.0
            return _JOB_S if self._keyboard.is_open and not listens else None
        now = time.monotonic()
        self._asks_since = self._asks_since or now
        return max(0.0, min(self._wrote_at + _QUIET_S, self._asks_since + _LATEST_S) - now)

    def _give_back(self) -> None:
        """What was typed, and has not become an answer or a message."""
        self._drop_asked()
        for line in self._keyboard.left_over():
            self._not_sent(line.decode(errors="backslashreplace"))
        self.paper.flush()

    def _heard(self, kind: str, what: Any) -> None:
        if kind == "event":
            self._told(what)
        elif kind == "snapshot":
            self.paper.note("(some of it was lost with an earlier log)", fg="yellow")
            self._index, self._look = what["index"], True
        elif kind == "lost":
            self._is_lost = True
            self.paper.note("(the server went away; waiting for it …)", fg="yellow")
        elif kind == "wire":
            self._wire, self._is_lost, self._look = what, False, True
            self.paper.note("(it is back)", fg="yellow")
        elif kind == "over":
            self._failure = what

    def _told(self, event: Any) -> None:
        self._index = event["index"]
        if self._show is not None:
            self._show(event)
        else:
            self.plain.tell(event)
        if self._asked is not None and event["type"] in DECIDED and event.get("gate_id") == self._asked.gate_id:
            self._drop_asked()  # by somebody else, or elsewhere: what is typed from here on is no answer to it
        self._look = self._look or event["type"] in _RESTING or event["type"] in TURNING

    def _looked(self) -> Exit | None:
        """What the session is now, if something happened that may have changed it."""
        if not self._look:
            return None
        try:
            view = self._wire.get(self._path)
        except Unreachable:
            return None  # the stream says what became of the server
        if view["index"] > self._index:
            return None  # what led there comes first; it is on its way
        self._look = False
        left = self._rests(view)
        if left is None:
            self._invite(view["gates"])
        return left

    # --- the end

    def _rests(self, view: Any) -> Exit | None:
        """How it ended; None while something is under way."""
        waiting = [item for item in view["queue"] if item["receipt"] in _UNDER_WAY]
        is_active = view["lifecycle"] == "active"
        if is_active and (view["flags"]["isActive"] or view["gates"] or (waiting and view["phase"] != "error")):
            return None
        for item in view["queue"]:
            self._unsent(item["text"])
        phase = view["phase"] if is_active else view["lifecycle"]
        if self._show is None:
            self.paper.note(_summary(view, phase), dim=True)
        if phase == "error" and view["error"]:
            self._hint(view["error"])
        return {"completed": Exit.DONE, "idle": Exit.DONE, "stopped": Exit.INTERRUPTED, "paused": Exit.INTERRUPTED}.get(
            phase, Exit.FAILED
        )

    def _hint(self, error: Any) -> None:
        if self._show is not None:
            self.paper.note(f"failed ({error['kind']}): {error['message']}", fg="red")
        if error.get("resets_at"):
            at = time.strftime("%H:%M", time.localtime(error["resets_at"] / 1000))
            self.paper.note(f"it can go on at {at}", fg="yellow")

    # --- what is asked

    def _invite(self, gates: Any) -> None:
        """Says how to answer the first of the open gates, once."""
        first = gates[0] if gates else None
        if first is None or self._asked is None or self._asked.gate_id != first["id"]:
            self._drop_asked()
            self._asked = asked_of(first) if first is not None else None
        asked = self._asked
        mark = f"{asked.gate_id}:{asked.question}" if asked is not None else ""
        if asked is None or mark == self._invited:
            return
        self._invited = mark
        if not self._keyboard.listens:
            self.paper.note(f"  it waits; answer by {asked.by_request(self._id)}", fg="yellow")

    def _drop_asked(self) -> None:
        """Nobody waits for it any more. Of several questions some may have been answered."""
        asked, self._asked = self._asked, None
        for text in asked.typed if asked is not None else ():
            self._not_sent(text)

    def _ask(self, asked: Asked) -> None:
        if asked.question:
            self.paper.note(f"  {asked.question}", fg="yellow")
            for number, option in enumerate(asked.options, 1):
                self.paper.note(f"  {number}. {option.get('label') or option['id']}", fg="yellow")
        self.paper.ask(asked.invitation)

    # --- what is typed

    def _read(self) -> None:
        lines = self._keyboard.read()
        if lines:
            self.paper.typed()
        for line in lines:
            text = text_of(line)
            if text is None:
                self.paper.note("that is not UTF-8", fg="red")
                self._not_sent(line.decode(errors="backslashreplace"))
            else:
                self._typed(text)
        if not self._keyboard.is_open:
            self.paper.note("(no more input: only following)", dim=True)
        self._invited, self._look = "", True  # what is asked is said again if it still is

    def _typed(self, line: str) -> None:
        asked = self._asked
        if asked is None:
            if is_decision(line):
                self.paper.note(f"nothing is asked now; not sent: {line.strip()}", fg="yellow")
            elif line.strip():
                self._message(line)
            return
        reply = asked.take(line)
        if isinstance(reply, Again):
            self.paper.note(reply.why, fg="yellow")
        elif reply is not None:
            self._decide(asked, reply.verb, reply.body, line)
        elif line.strip() and not asked.has_part:
            self._message(line)

    def _decide(self, asked: Asked, verb: str, body: dict[str, Any], line: str) -> None:
        self._asked = None
        try:
            self._posted(f"{self._path}/{verb}", {**body, "client_id": uuid4().hex})
        except QuarterdeckError as error:
            self.paper.note(f"not taken: {error.message}", fg="red")
            if asked.kind != "approval":
                for text in asked.typed or [line]:
                    self._unsent(text)

    def _message(self, line: str) -> None:
        """A text for the agent. The same key twice is one text, so a cut in the middle is no reason to lose it."""
        body = {"text": line, "client_id": uuid4().hex}
        try:
            receipt = self._posted(f"{self._path}/prompt", body)
        except QuarterdeckError as error:
            self.paper.note(f"not taken: {error.message}", fg="red")
            self._unsent(line)
            return
        self.plain.quiet.add(receipt["message_id"])
        self.paper.note(f"({receipt['disposition']}{_because(receipt.get('reason'))})", dim=True)

    def _posted(self, path: str, body: dict[str, Any]) -> Any:
        try:
            return self._wire.post(path, body)
        except Unreachable:
            return self._wire.post(path, body)

    def _unsent(self, text: str) -> None:
        self.paper.note(f"not read by the agent: {text}", fg="yellow")

    def _not_sent(self, text: str) -> None:
        self.paper.note(f"not sent: {text}", fg="yellow")

    # --- Ctrl-C

    @contextmanager
    def caught_signals(self) -> Generator[None]:
        """Ctrl-C is a wish from here on, and no end in the middle of something."""

        def caught(*_: object) -> None:
            self._signals += 1
            if self._signals > 2:
                raise KeyboardInterrupt
            self._stream.ring()

        def resumed(*_: object) -> None:
            self._resumed = True
            self._stream.ring()

        before = signal.signal(signal.SIGINT, caught), signal.signal(signal.SIGCONT, resumed)
        # the system may give a signal to the thread of the stream, and then only this wakes the one that waits
        bell = signal.set_wakeup_fd(self._stream.bell, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(bell)
            for number, handler in zip((signal.SIGINT, signal.SIGCONT), before, strict=True):
                signal.signal(number, handler)

    def _signalled(self) -> Exit | None:
        if self._signals > 1:
            self.paper.note(f"(left; session {self._id} goes on)", fg="yellow")
            return Exit.INTERRUPTED
        if self._signals == 1 and not self._stopping:
            self._stopping = True
            self.paper.note("(stopping the turn; Ctrl-C again leaves and lets it go on)", fg="yellow")
            self._stop()
        return None

    def _stop(self) -> None:
        try:
            dropped = self._wire.post(f"{self._path}/abort", {"clear_queue": True})["dropped"]
        except QuarterdeckError as error:
            self.paper.note(f"it cannot be stopped now: {error.message}", fg="red")
            return
        for text in dropped:
            self._unsent(text)
        self._look = True


def _because(reason: str | None) -> str:
    return f": {reason[0].lower()}{reason[1:]}" if reason else ""


def _summary(view: Any, phase: str) -> str:
    """The last line: how it ended, how long it took, what it used."""
    parts = [phase.replace("_", " ")]
    seconds = max(0, view["last_active_at"] - view["created_at"]) // 1000
    parts.append(f"{seconds // 60} min {seconds % 60} s" if seconds >= 60 else f"{seconds} s")
    usage = view["usage"]["total"]
    buckets = ("input", "output", "cache_read", "cache_write")
    if tokens := sum(usage.get(name, 0) for name in buckets):
        parts.append(f"{tokens:,} tokens")
    if usage.get("cost_usd"):
        parts.append(f"${usage['cost_usd']:.4f}")
    if view["background"]:
        parts.append(f"{len(view['background'])} still in the background")
    return f"— {', '.join(parts)} (session {view['id']})"
