"""Test the loop of `qd run` with a fake stream and a fake session."""

from __future__ import annotations

import io
import os
import pty
from collections.abc import Iterator
from typing import Any, cast

import pytest

from quarterdeck.cli.terminal.follow import Follower
from quarterdeck.cli.terminal.gate_prompt import GatePrompt
from quarterdeck.cli.terminal.output import Output
from quarterdeck.cli.terminal.stream import SignalKind, Stream
from quarterdeck.client.errors import TimedOut
from quarterdeck.client.sync_client import Session
from quarterdeck.deck.deck import DeckClosed
from quarterdeck.errors import QuarterdeckError


class FakeStream:
    """A stream whose signals have already arrived."""

    def __init__(self, *signals: tuple[SignalKind, Any]) -> None:
        self._signals = [*signals]
        self.wake, self.wake_writer = os.pipe()
        os.write(self.wake_writer, b"!")

    def take(self) -> list[tuple[SignalKind, Any]]:
        signals, self._signals = self._signals, []
        return signals


class FailingSession:
    id = "s"

    def __init__(self, error: QuarterdeckError) -> None:
        self._error = error

    def show(self) -> None:
        raise self._error


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Screen]:
    """Make standard input a terminal, and let both output streams write to one screen."""
    master, slave = pty.openpty()
    screen = Screen()
    with os.fdopen(slave) as stdin:
        for name, file in (("stdin", stdin), ("stdout", screen), ("stderr", screen)):
            monkeypatch.setattr(f"sys.{name}", file)
        yield screen
    os.close(master)


def follower(stream: FakeStream, error: QuarterdeckError) -> Follower:
    return Follower(cast(Stream, stream), cast(Session, FailingSession(error)))


SUSPENDED = ("event", {"type": "session_suspended", "index": 1})


@pytest.mark.usefixtures("screen")
def test_a_server_that_is_shutting_down_does_not_end_it():
    """The server's stream ends next, and then the reader waits for the restart."""
    assert follower(FakeStream(SUSPENDED), DeckClosed())._step() is None


@pytest.mark.usefixtures("screen")
def test_but_other_errors_do():
    with pytest.raises(TimedOut):
        follower(FakeStream(SUSPENDED), TimedOut("GET /sessions/s", 1))._step()


def test_nothing_is_asked_while_the_server_is_away(screen: Screen):
    loop = follower(FakeStream(("lost", None)), DeckClosed())
    loop._prompt = GatePrompt("g1", "approval")
    loop._step()
    assert loop._timeout(is_readable=True) is None
    assert "[y]es" not in screen.getvalue()


def test_a_note_starts_below_the_terminals_echo_of_ctrl_c():
    screen = Screen()
    output = Output(screen, screen)
    output.reply("line\n")
    output.terminal_echoed()
    output.note("(stopping)")
    assert screen.getvalue() == "line\n\n(stopping)\n"
