"""The contract of a harness. This half is pure: the Translator, which reads an agent's raw signals.

`feed` takes one signal and gives the events that it means. Debounces, races and watchdogs are deadlines: `deadline` says
when the translator wants to be called again though nothing came, and `tick` is that call. `end` is the last word when the
source is gone. `restore` sets a translator up in the middle of a session whose view is known. Time is monotonic seconds
and always comes in from outside, so a replay under a virtual clock is exact.

What we send to the agent is fed in too (src `stdin`, `hook.reply`): an answer to an approval is evidence like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol, TypeAlias

from msgspec import Struct

from quarterdeck.events import Body, Json, Origin
from quarterdeck.harness.tracker import Book
from quarterdeck.kernel.view import View

#: A JSON object of an agent.
Object: TypeAlias = dict[str, Any]
#: A method of a translator that reads what one source says, and answers whether it knew the signal.
Reader: TypeAlias = Callable[[Any, Json], bool]


class Signal(Struct, frozen=True, gc=False):
    """One thing that came from an agent, or went to it. `src` is one of contract section 5."""

    src: str
    data: Json


class Translator(Protocol):
    """Raw signals in, canonical events out."""

    @property
    def unknown(self) -> int:
        """How many signals no rule knew. A line of a newer release is counted, never a failure."""
        ...

    def feed(self, signal: Signal, now: float) -> list[Body]: ...

    def deadline(self) -> float | None: ...

    def tick(self, now: float) -> list[Body]: ...

    def end(self, now: float) -> list[Body]: ...

    def restore(self, view: View) -> None: ...


class BookTranslator:
    """What most translators are: a table of readers by source, a book to write in, and named deadlines.

    A subclass adds its methods to `readers` (source → method) and writes through `self.book`. `timers` maps a name to the
    time at which `on_<name>` is to be called.

    Tables belong to the class and attributes have slots, because sessions are many and mostly short: what is built for
    each of them is paid at every start, and beyond thirty attributes without slots every call of a method costs twice.
    For the same reason what is called at every start names its parent instead of asking `super()` for it.
    """

    __slots__ = ("book", "now", "timers", "unknown")

    #: source → what reads it, for all translators of a class
    readers: ClassVar[dict[str, Reader]]

    def __init__(self) -> None:
        self.book = Book()
        self.unknown = 0
        self.now = 0.0
        self.timers: dict[str, float] = {}

    def feed(self, signal: Signal, now: float) -> list[Body]:
        self.now = now
        reader = self.readers.get(signal.src)
        if reader is None or not reader(self, signal.data):
            self.unknown += 1
        book = self.book
        out = book.out
        if out:  # what `take` does: a call less for every signal
            book.out = []
        return out

    def deadline(self) -> float | None:
        return min(self.timers.values()) if self.timers else None

    def tick(self, now: float) -> list[Body]:
        self.now = now
        for name in [name for name, at in self.timers.items() if at <= now]:
            del self.timers[name]
            getattr(self, f"on_{name}")()
        return self.book.take()

    def end(self, now: float) -> list[Body]:
        """The source is gone without a word about the process: what we know grows old, it does not become idle."""
        self.now = now
        self.timers.clear()
        if not self.book.exited:
            self.book.signal("lost", "the source ended")
        return self.book.take()

    def restore(self, view: View) -> None:
        self.book.restore(view)

    def set_timer(self, name: str, seconds: float) -> None:
        """`on_<name>` is called after this pause, unless it is set again or cleared."""
        self.timers[name] = self.now + seconds

    def clear_timer(self, name: str) -> None:
        self.timers.pop(name, None)

    # --- the process, the same for every agent

    def read_proc(self, data: Json) -> bool:
        found: Any = data if isinstance(data, DICT) else {}
        event = found.get("event")
        if event == "start":
            self.book.process_starting()
        elif event == "exit":
            code, signal = exit_of(found.get("code"), found.get("signal"))
            self.on_exit(code, signal)
        elif event == "note":
            if "warning" in found:
                self.book.notice(text_of(found, "warning"), "warning", "process")
        elif event == "signal":
            self.book.stop_asked = True
        else:
            return event == "stdin_closed"
        return True

    def on_exit(self, code: int | None, signal: str | None) -> None:
        """A translator that has open questions of its own closes them here first."""
        self.timers.clear()
        asked = self.book.stop_asked or (self.is_server() and code == 0)
        self.book.process_exited(code, signal, asked=asked)

    def is_server(self) -> bool:
        """Whether it serves its standard input. A server leaves with code zero when that is closed, and closing it is how
        we stop one; Gemini and the Codex app-server also when a signal ends them. None was seen to leave so by itself. Such
        an exit was asked for, whether or not anybody wrote down that we did."""
        return False


def ignored(_: BookTranslator, _data: Json) -> bool:
    """A source that is known and says nothing about the state."""
    return True


def _proc(translator: BookTranslator, data: Json) -> bool:
    return translator.read_proc(data)


BookTranslator.readers = {"proc": _proc, "stderr": ignored}


_SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    6: "SIGABRT",
    9: "SIGKILL",
    11: "SIGSEGV",
    15: "SIGTERM",
}
#: Signals by which somebody stops a program.
_STOPS = frozenset({1, 2, 9, 15})


def exit_of(code: object, signal: object = None) -> tuple[int | None, str | None]:
    """An exit as (code, signal name). A negative code is a signal, and so is 128 plus that of a signal that stops: some
    programs catch it and leave with the number that a shell would show. Anything but a number is unknown."""
    if isinstance(signal, int) and not isinstance(signal, bool):
        signal = _SIGNALS.get(signal, f"signal {signal}")
    name = signal if isinstance(signal, str) else None
    if not isinstance(code, int) or isinstance(code, bool):
        return None, name
    if code < 0:
        return None, _SIGNALS.get(-code, f"signal {-code}")
    if code - 128 in _STOPS:
        return None, _SIGNALS[code - 128]
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
    """Where events that this source caused came from. `hook.reply` is what we answered."""
    return _ORIGINS.get(src) or _ORIGINS.get(src.partition(".")[0], "stream")


# --- reading JSON that nobody promised us: wrong types read as absent


def text_of(found: Object, name: str, second: str = "", third: str = "", fourth: str = "") -> str:
    """The first of these fields that is a non-empty text; else ''."""
    value = found.get(name)
    if value and isinstance(value, str):
        return value
    # names one by one, because a call with any number of them costs half as much again
    return text_of(found, second, third, fourth) if second else ""


#: A checker learns nothing from a comparison with these, so it asks for no `cast`, which is a call at run time.
DICT: Any = dict
_LIST: Any = list


def object_of(found: Any, name: str = "", inner: str = "") -> Object:
    """This object, or the one of this name in it, or the second one's in that; an empty one where there is none."""
    if name:
        found = found.get(name) if isinstance(found, DICT) else None
        if inner:
            found = found.get(inner) if isinstance(found, DICT) else None
    return found if isinstance(found, DICT) else {}


def part_of(found: Object, name: str) -> Object:
    """The object of this name, or an empty one: `object_of` where it is known to be an object that is looked into."""
    value: Any = found.get(name)
    return value if isinstance(value, DICT) else {}


def list_of(found: Object, name: str) -> list[Any]:
    """The list of this name, or an empty one."""
    value: Any = found.get(name)
    return value if isinstance(value, _LIST) else []


def objects_of(found: Object, name: str) -> list[Object]:
    """The objects of the list of this name."""
    value = found.get(name)
    return [one for one in value if isinstance(one, DICT)] if value and isinstance(value, _LIST) else []


#: A number beyond this cannot be stored; no agent means it.
_MOST = 1 << 63


def int_of(found: Object, *names: str) -> int:
    """The first of these fields that is a whole number, also one written as text; else 0."""
    for name in names:
        value = found.get(name)
        if type(value) is int and -_MOST < value < _MOST:  # a flag is a number in Python, and none here
            return value
        if isinstance(value, float) and value == value and abs(value) < 1e15:
            return int(value)
        if isinstance(value, str) and value.isdecimal() and len(value) < 16:
            return int(value)
    return 0


def price_of(value: object) -> float | None:
    """A cost in dollars. Agents count with price lists, in which a model that nobody priced costs 0: that is unknown."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0 < value < 1e15 else None
