"""Define what every translator provides, the base class that most of them share, and helpers for reading untrusted JSON.

A translator is the reading half of a harness (`driver.py` is the writing half). It is pure: raw signals of an agent go in
with the time they arrived, canonical events come out. Time is monotonic seconds and always passed in, so replaying a
recording under a virtual clock gives exact results.

What we send to the agent is fed in too (sources `stdin` and `hook.reply`), because our own answer to an approval is the
first evidence that it was decided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias, TypeGuard, cast

from msgspec import Struct

from quarterdeck.events import Body, Json, Origin
from quarterdeck.harness.tracker import EventTracker
from quarterdeck.kernel.view import View

#: A JSON object sent by an agent.
Object: TypeAlias = dict[str, Any]
#: Reads one signal of a source and returns whether it knew what the signal is.
Reader: TypeAlias = Callable[[Json], bool]


class Signal(Struct, frozen=True, gc=False):
    """One raw message from an agent, or one that we sent to it."""

    #: Where the signal came from: `stdout`, `hook`, `proc`, `otlp.log`, … (contract section 5).
    src: str
    data: Json


class Translator(Protocol):
    """Turns the raw signals of one session into canonical events."""

    @property
    def origins(self) -> Mapping[str, Origin]:
        """Origins of events by source, where they differ from `origin_of`."""
        ...

    @property
    def unknown(self) -> int:
        """How many signals were not recognised. Signals of newer releases are counted here and never raise."""
        ...

    def feed(self, signal: Signal, now: float) -> list[Body]:
        """Return the events that a signal means."""
        ...

    def deadline(self) -> float | None:
        """Return when `tick` must be called if no signal arrives before, or None."""
        ...

    def tick(self, now: float) -> list[Body]:
        """Return the events of every deadline that is due: debounces, races, watchdogs."""
        ...

    def end(self, now: float) -> list[Body]:
        """Return the events that follow because no signal will arrive any more."""
        ...

    def restore(self, view: View) -> None:
        """Continue in the middle of a session whose view is known."""
        ...


class BaseTranslator:
    """A translator with one reader per source, an event tracker, and named timers.

    A subclass adds its readers to `self.readers` and its timers' callbacks to `self.timer_callbacks` in `__init__`, and
    writes events through `self.tracker`.
    """

    origins: Mapping[str, Origin] = {}

    def __init__(self) -> None:
        self.tracker = EventTracker()
        self.unknown = 0
        #: The time of the signal or deadline that is being handled.
        self.now = 0.0
        self.readers: dict[str, Reader] = {"proc": self.read_proc, "stderr": ignore}
        #: Due times of the timers that are set. Timers that are due together run in the order they were first set.
        self.timers: dict[str, float] = {}
        self.timer_callbacks: dict[str, Callable[[], None]] = {}

    def feed(self, signal: Signal, now: float) -> list[Body]:
        self.now = now
        reader = self.readers.get(signal.src)
        if reader is None or not reader(signal.data):
            self.unknown += 1
        return self.tracker.take_events()

    def deadline(self) -> float | None:
        return min(self.timers.values(), default=None)

    def tick(self, now: float) -> list[Body]:
        self.now = now
        for name in [name for name, due in self.timers.items() if due <= now]:
            del self.timers[name]
            self.timer_callbacks[name]()
        return self.tracker.take_events()

    def end(self, now: float) -> list[Body]:
        """Mark the evidence as lost. A source that ends without an exit of the process doesn't make the agent idle."""
        self.now = now
        self.timers.clear()
        if not self.tracker.has_exited:
            self.tracker.set_signal("lost", "the source ended")
        return self.tracker.take_events()

    def restore(self, view: View) -> None:
        self.tracker.restore(view)

    def set_timer(self, name: str, seconds: float) -> None:
        """Call `timer_callbacks[name]` after this many seconds, unless the timer is set again or cleared before."""
        self.timers[name] = self.now + seconds

    def clear_timer(self, name: str) -> None:
        self.timers.pop(name, None)

    # ------------------------------------------------------------------------------------------------------------------
    # The process, which every agent has
    # ------------------------------------------------------------------------------------------------------------------

    def read_proc(self, data: Json) -> bool:
        fields = object_of(data)
        event = fields.get("event")
        if event == "start":
            self.tracker.record_process_start()
        elif event == "exit":
            code, signal = parse_exit(fields.get("code"), fields.get("signal"))
            self.on_exit(code, signal)
        elif event == "note":
            if "warning" in fields:
                self.tracker.add_notice(text_of(fields, "warning"), "warning", "process")
        elif event == "signal":
            self.tracker.stop_requested = True
        else:
            return event == "stdin_closed"
        return True

    def on_exit(self, code: int | None, signal: str | None) -> None:
        """Record the exit of the process. A subclass that has open questions of its own closes them first."""
        self.timers.clear()
        asked = self.tracker.stop_requested or (self.is_server() and code == 0)
        self.tracker.record_process_exit(code, signal, asked=asked)

    def is_server(self) -> bool:
        """Return whether the agent serves requests on its standard input (pi, ACP, the Codex app-server).

        A server exits with code 0 when its input is closed, which is how we stop one; Gemini and the Codex app-server also
        do when they receive a signal. No server has been seen to exit with 0 on its own. Therefore such an exit counts
        as requested even if no record says that we closed the input.
        """
        return False


def ignore(_data: Json) -> bool:
    """Accept a signal of a known source that says nothing about the state."""
    return True


# ----------------------------------------------------------------------------------------------------------------------
# Sources and exits
# ----------------------------------------------------------------------------------------------------------------------

_SIGNAL_NAMES = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    6: "SIGABRT",
    9: "SIGKILL",
    11: "SIGSEGV",
    15: "SIGTERM",
}
#: Signals that people and supervisors use to stop a program.
_STOP_SIGNALS = frozenset({1, 2, 9, 15})


def parse_exit(code: object, signal: object = None) -> tuple[int | None, str | None]:
    """Return (exit code, signal name), each None if unknown.

    A negative code is a signal. So is 128 plus a stop signal: some programs catch the signal and exit with the number
    that a shell would show.
    """
    if isinstance(signal, int) and not isinstance(signal, bool):
        signal = _SIGNAL_NAMES.get(signal, f"signal {signal}")
    name = signal if isinstance(signal, str) else None
    if not isinstance(code, int) or isinstance(code, bool):
        return None, name
    if code < 0:
        return None, _SIGNAL_NAMES.get(-code, f"signal {-code}")
    if code - 128 in _STOP_SIGNALS:
        return None, _SIGNAL_NAMES[code - 128]
    return code, name


_ORIGINS: dict[str, Origin] = {
    "hook": "hook",
    "hook.reply": "user",
    "notify": "hook",
    "otlp": "otlp",
    "proc": "process",
    "file": "file",
    "stdin": "user",
    "stdout": "stream",
    "stderr": "stream",
}


def origin_of(src: str) -> Origin:
    """Return the origin of events that a source causes. `hook.reply` is our own answer to a hook."""
    return _ORIGINS.get(src) or _ORIGINS.get(src.partition(".")[0], "stream")


# ----------------------------------------------------------------------------------------------------------------------
# Reading JSON of agents: a field of the wrong type reads like a missing one
# ----------------------------------------------------------------------------------------------------------------------

#: Larger numbers can't be stored. No agent means them.
_INT_LIMIT = 1 << 63


def is_object(value: object) -> TypeGuard[Object]:
    """Return whether a value is a JSON object."""
    return isinstance(value, dict)


def text_of(fields: Object, *names: str) -> str:
    """Return the first of these fields that is a non-empty string, else ""."""
    for name in names:
        value = fields.get(name)
        if value and isinstance(value, str):
            return value
    return ""


def object_of(value: Any, *names: str) -> Object:
    """Return the object itself, or the object that this path of field names leads to; {} if there is none."""
    for name in names:
        value = value.get(name) if is_object(value) else None
    return value if is_object(value) else {}


def list_of(fields: Object, name: str) -> list[Any]:
    """Return the list in a field, else []."""
    value = fields.get(name)
    return cast("list[Any]", value) if isinstance(value, list) else []


def objects_of(fields: Object, name: str) -> list[Object]:
    """Return the objects of the list in a field."""
    return [item for item in list_of(fields, name) if is_object(item)]


def int_of(fields: Object, *names: str) -> int:
    """Return the first of these fields that is a whole number, also one written as text, else 0."""
    for name in names:
        value = fields.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and -_INT_LIMIT < value < _INT_LIMIT:
            return value
        if isinstance(value, float) and value == value and abs(value) < 1e15:
            return int(value)
        if isinstance(value, str) and value.isdecimal() and len(value) < 16:
            return int(value)
    return 0


def price_of(value: object) -> float | None:
    """Return a cost in dollars. 0 means unknown: agents use price lists in which a missing model costs 0."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0 < value < 1e15 else None
