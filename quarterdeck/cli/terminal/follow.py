"""Follow a session live in the terminal: print its events, and send it what the user types.

A typed line answers the open gate. If none is open, it is a message that the agent reads when it can. Nothing typed is
lost: text that can't be sent is printed again. Ctrl-C stops the turn; a second one leaves, and the session keeps running.
"""

from __future__ import annotations

import select
import signal
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from quarterdeck.cli.exits import Exit
from quarterdeck.cli.terminal.gate_prompt import (
    GATE_CHANGED,
    GATE_CLOSED,
    GatePrompt,
    InvalidReply,
    Reply,
    is_decision,
    prompt_for,
)
from quarterdeck.cli.terminal.keyboard import Keyboard, decode_line
from quarterdeck.cli.terminal.output import Output
from quarterdeck.cli.terminal.render import EventRenderer
from quarterdeck.cli.terminal.stream import SignalKind, Stream
from quarterdeck.client.errors import Unreachable, is_server_away
from quarterdeck.errors import QuarterdeckError

if TYPE_CHECKING:
    from quarterdeck.client.sync_client import Session
    from quarterdeck.client.views import SessionView
    from quarterdeck.kernel.profile import Failure
    from quarterdeck.kernel.summary import GateShown

T = TypeVar("T")

#: Events after which the session may have finished.
_FINISHING = frozenset(
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
#: Receipts of messages that will start a turn. A message that was delivered into a finished turn may never be read.
_PENDING_RECEIPTS = ("queued", "sending")
#: Print the invitation to answer after this much silence, or at the latest after `_ASK_WITHIN_S`. Otherwise the output
#: of parallel work would separate the question from the answer, and the invitation would be repeated again and again.
_QUIET_S = 0.15
_ASK_WITHIN_S = 2.0
#: How often a background job checks whether it is in the foreground. No signal reports that.
_JOB_CHECK_S = 1.0
_EXIT_OF_PHASE = {
    "completed": Exit.DONE,
    "idle": Exit.DONE,
    "stopped": Exit.INTERRUPTED,
    "paused": Exit.INTERRUPTED,
}


class Follower:
    """Follow one session until it finishes. With `print_event`, every event is passed to it instead of rendered."""

    def __init__(self, stream: Stream, session: Session, print_event: Callable[[Any], None] | None = None) -> None:
        self.output = Output(sys.stdout, sys.stderr)
        self.renderer = EventRenderer(self.output)
        self._stream = stream
        self._session = session
        self._print_event = print_event
        self._keyboard = Keyboard(is_enabled=print_event is None)
        #: The gate that typed lines answer.
        self._prompt: GatePrompt | None = None
        #: When the prompt became open, and when something was printed last.
        self._prompt_since = self._printed_at = 0.0
        self._announced = ""
        self._interrupts = 0
        self._is_stopping = False
        #: Whether the process was stopped (Ctrl-Z) and continued.
        self._was_continued = False
        self._is_disconnected = False
        #: Whether an event came after which the view must be read again.
        self._should_check = False
        self._index = 0
        self._failure: QuarterdeckError | None = None

    # --- the loop

    def run(self) -> Exit:
        """Follow until the session finishes or the user leaves.

        Raises:
            QuarterdeckError: the session can't be followed any more.
        """
        self._stream.start()
        code: Exit | None = None
        try:
            while code is None:
                code = self._step()
        except BrokenPipeError:
            sys.stderr.write(f"(standard output is closed; session {self._session.id} keeps running)\n")
            raise
        finally:
            with suppress(OSError):  # The terminal may be gone.
                self._return_unsent()
        return code

    def _step(self) -> Exit | None:
        """Wait until there is something to do, and do it."""
        is_readable = self._keyboard.is_readable
        sources = [self._stream.wake, *([self._keyboard.descriptor] if is_readable else [])]
        ready = select.select(sources, [], [], self._timeout(is_readable))[0]
        if self._was_continued:
            self._was_continued = False
            self.output.user_ended_line()  # The shell printed meanwhile, so the invitation must be repeated.
        # Read the keyboard first: a line that was typed before a gate opened isn't an answer to it.
        if is_readable and self._keyboard.descriptor in ready:
            self._read_keyboard()
        for kind, value in self._stream.take():
            self._printed_at = time.monotonic()
            self._handle(kind, value)
        code = self._handle_interrupts() or (self._check_session() if not self._is_disconnected else None)
        if code is None and self._prompt is not None and self._timeout(self._keyboard.is_readable) == 0:
            self._print_invitation(self._prompt)
        self.output.flush()
        if self._failure is not None:
            raise self._failure
        return code

    def _timeout(self, is_readable: bool) -> float | None:
        """Return how long to wait for input. 0 means that it is time to print the invitation, None to wait for ever."""
        if self._prompt is None or self._is_disconnected or self.output.is_asking or not is_readable:
            self._prompt_since = 0.0
            return _JOB_CHECK_S if self._keyboard.is_open and not is_readable else None
        now = time.monotonic()
        self._prompt_since = self._prompt_since or now
        return max(0.0, min(self._printed_at + _QUIET_S, self._prompt_since + _ASK_WITHIN_S) - now)

    def _return_unsent(self) -> None:
        """Print what was typed and was neither an answer nor a message."""
        self._drop_prompt()
        for line in self._keyboard.drain():
            self._print_not_sent(line.decode(errors="backslashreplace"))
        self.output.flush()

    def _handle(self, kind: SignalKind, value: Any) -> None:
        if kind == "event":
            self._handle_event(value)
        elif kind == "snapshot":
            self.output.note("(some events are missing: the server has an older copy of the log)", fg="yellow")
            self._index, self._should_check = value["index"], True
        elif kind == "lost":
            self._is_disconnected = True
            self.output.note("(lost the server; reconnecting …)", fg="yellow")
        elif kind == "session":
            self._session, self._is_disconnected, self._should_check = value, False, True
            self.output.note("(reconnected)", fg="yellow")
        elif kind == "over":
            self._failure = value

    def _handle_event(self, event: Any) -> None:
        self._index = event["index"]
        if self._print_event is not None:
            self._print_event(event)
        else:
            self.renderer.render(event)
        if self._prompt is not None and event["type"] in GATE_CLOSED and event.get("gate_id") == self._prompt.gate_id:
            self._drop_prompt()  # Another client or a rule closed it. Later lines aren't answers to it.
        self._should_check = self._should_check or event["type"] in _FINISHING or event["type"] in GATE_CHANGED

    def _check_session(self) -> Exit | None:
        """Read the view if an event came that may have changed it. Return the exit code if the session finished."""
        if not self._should_check:
            return None
        try:
            view = self._session.show()
        except QuarterdeckError as error:
            if not is_server_away(error):
                raise
            return None  # The stream reports what became of the server.
        if view.index > self._index:
            return None  # The events that led there are on their way; print them first.
        self._should_check = False
        code = self._exit_code(view)
        if code is None:
            self._update_prompt(view.gates)
        return code

    # --- the end

    def _exit_code(self, view: SessionView) -> Exit | None:
        """Return how the session finished, or None while something is going on."""
        pending = [item for item in view.queue if item.receipt in _PENDING_RECEIPTS]
        is_active = view.lifecycle == "active"
        if is_active and (view.flags.isActive or view.gates or (pending and view.phase != "error")):
            return None
        for item in view.queue:
            self._print_not_read(item.text)
        outcome = view.phase if is_active else view.lifecycle
        if self._print_event is None:
            self.output.note(_format_summary(view, outcome), dim=True)
        if outcome == "error" and view.error:
            self._print_error(view.error)
        return _EXIT_OF_PHASE.get(outcome, Exit.FAILED)

    def _print_error(self, error: Failure) -> None:
        if self._print_event is not None:
            self.output.note(f"failed ({error.kind}): {error.message}", fg="red")
        if error.resets_at:
            at = time.strftime("%H:%M", time.localtime(error.resets_at / 1000))
            self.output.note(f"the limit resets at {at}", fg="yellow")

    # --- gates

    def _update_prompt(self, gates: Sequence[GateShown]) -> None:
        """Make typed lines answer the first open gate."""
        first = gates[0] if gates else None
        if first is None or self._prompt is None or self._prompt.gate_id != first.id:
            self._drop_prompt()
            self._prompt = prompt_for(first) if first is not None else None
        prompt = self._prompt
        announcement = f"{prompt.gate_id}:{prompt.question}" if prompt is not None else ""
        if prompt is None or announcement == self._announced:
            return
        self._announced = announcement
        if not self._keyboard.is_readable:
            self.output.note(f"  waiting for an answer: {prompt.http_instructions(self._session.id)}", fg="yellow")

    def _drop_prompt(self) -> None:
        """Forget a gate that closed, and print the answers that were typed for some of its questions."""
        prompt, self._prompt = self._prompt, None
        for text in prompt.typed if prompt is not None else ():
            self._print_not_sent(text)

    def _print_invitation(self, prompt: GatePrompt) -> None:
        if prompt.question:
            self.output.note(f"  {prompt.question}", fg="yellow")
            for number, option in enumerate(prompt.options, 1):
                self.output.note(f"  {number}. {option.get('label') or option['id']}", fg="yellow")
        self.output.ask(prompt.invitation)

    # --- typed lines

    def _read_keyboard(self) -> None:
        lines = self._keyboard.read()
        if lines:
            self.output.user_ended_line()
        for line in lines:
            text = decode_line(line)
            if text is None:
                self.output.note("that line isn't UTF-8", fg="red")
                self._print_not_sent(line.decode(errors="backslashreplace"))
            else:
                self._handle_line(text)
        if not self._keyboard.is_open:
            self.output.note("(end of input; only following)", dim=True)
        self._announced, self._should_check = "", True  # Repeat the invitation if the gate is still open.

    def _handle_line(self, line: str) -> None:
        prompt = self._prompt
        if prompt is None:
            if is_decision(line):
                self.output.note(f"no approval is open; not sent: {line.strip()}", fg="yellow")
            elif line.strip():
                self._send_message(line)
            return
        reply = prompt.take(line)
        if isinstance(reply, InvalidReply):
            self.output.note(reply.reason, fg="yellow")
        elif reply is not None:
            self._send_reply(prompt, reply, line)
        elif line.strip() and not prompt.is_partly_answered:
            self._send_message(line)

    def _send_reply(self, prompt: GatePrompt, reply: Reply, line: str) -> None:
        self._prompt = None
        arguments = {**reply.arguments, "client_id": uuid4().hex}
        try:
            _try_twice(lambda: getattr(self._session, reply.verb)(**arguments))
        except QuarterdeckError as error:
            self.output.note(f"not accepted: {error.message}", fg="red")
            if prompt.kind != "approval":
                for text in prompt.typed or [line]:
                    self._print_not_read(text)

    def _send_message(self, line: str) -> None:
        client_id = uuid4().hex
        try:
            receipt = _try_twice(lambda: self._session.prompt(line, client_id=client_id))
        except QuarterdeckError as error:
            self.output.note(f"not accepted: {error.message}", fg="red")
            self._print_not_read(line)
            return
        self.renderer.typed_message_ids.add(receipt.message_id)
        reason = f": {receipt.reason[0].lower()}{receipt.reason[1:]}" if receipt.reason else ""
        self.output.note(f"({receipt.disposition}{reason})", dim=True)

    def _print_not_read(self, text: str) -> None:
        self.output.note(f"not read by the agent: {text}", fg="yellow")

    def _print_not_sent(self, text: str) -> None:
        self.output.note(f"not sent: {text}", fg="yellow")

    # --- Ctrl-C

    @contextmanager
    def caught_signals(self) -> Generator[None]:
        """Count Ctrl-C instead of raising KeyboardInterrupt, up to the third."""

        def interrupt(*_: object) -> None:
            self._interrupts += 1
            if self._interrupts > 2:
                raise KeyboardInterrupt
            self._stream.ring()

        def continue_(*_: object) -> None:
            self._was_continued = True
            self._stream.ring()

        handlers = signal.signal(signal.SIGINT, interrupt), signal.signal(signal.SIGCONT, continue_)
        # The system may deliver a signal to the stream's thread. Then only the wakeup descriptor wakes the main thread.
        wakeup = signal.set_wakeup_fd(self._stream.wake_writer, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in zip((signal.SIGINT, signal.SIGCONT), handlers, strict=True):
                signal.signal(number, handler)

    def _handle_interrupts(self) -> Exit | None:
        if self._interrupts > 1:
            self.output.terminal_echoed()
            self.output.note(f"(left; session {self._session.id} keeps running)", fg="yellow")
            return Exit.INTERRUPTED
        if self._interrupts == 1 and not self._is_stopping:
            self._is_stopping = True
            self.output.terminal_echoed()
            self.output.note("(stopping the turn; press Ctrl-C again to leave without waiting)", fg="yellow")
            self._stop_turn()
        return None

    def _stop_turn(self) -> None:
        try:
            dropped = self._session.abort(clear_queue=True).dropped
        except QuarterdeckError as error:
            self.output.note(f"the turn can't be stopped now: {error.message}", fg="red")
            return
        for text in dropped:
            self._print_not_read(text)
        self._should_check = True


def _try_twice(send: Callable[[], T]) -> T:
    """Repeat a request whose connection was lost. Its client_id makes the server carry it out once."""
    try:
        return send()
    except Unreachable:
        return send()


def _format_summary(view: SessionView, outcome: str) -> str:
    """Format the last line: how the session finished, how long it took and what it used."""
    parts = [outcome.replace("_", " ")]
    seconds = max(0, view.last_active_at - view.created_at) // 1000
    parts.append(f"{seconds // 60} min {seconds % 60} s" if seconds >= 60 else f"{seconds} s")
    usage = view.usage.total
    if usage.total_tokens:
        parts.append(f"{usage.total_tokens:,} tokens")
    if usage.cost_usd:
        parts.append(f"${usage.cost_usd:.4f}")
    if view.background:
        parts.append(f"{len(view.background)} still in the background")
    return f"— {', '.join(parts)} (session {view.id})"
