"""The book under any order of words: the owners never contradict each other, and every turn is closed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from quarterdeck import events as ev
from quarterdeck.events import Body, Event, TokenUsage
from quarterdeck.harness.tracker import Book
from quarterdeck.kernel.view import View, fold
from tests.fuzz.legal import unclosed, violations

Word = tuple[str, Callable[[Book], Any]]

IDS = ("a", "b")
PATHS: tuple[tuple[str, ...], ...] = ((), ("child",))

WORDS: list[Word] = [
    ("process_starting", lambda book: book.process_starting()),
    ("ready", lambda book: book.ready("n", "m")),
    ("ended", lambda book: book.ended("over")),
    ("exit 0", lambda book: book.process_exited(0)),
    ("exit 1", lambda book: book.process_exited(1)),
    ("killed", lambda book: book.process_exited(None, "SIGKILL")),
    ("asked exit", lambda book: book.process_exited(0, asked=True)),
    ("process_failed", lambda book: book.process_failed("no")),
    ("prompt", lambda book: book.prompt("hello", "m1")),
    ("agent's prompt", lambda book: book.prompt("wake", source="agent")),
    ("begin", lambda book: book.begin()),
    ("request", lambda book: book.request()),
    ("end", lambda book: book.end()),
    ("abort", lambda book: book.abort("stop")),
    ("abort, calls go on", lambda book: book.abort("stop", kill_calls=False)),
    ("fail", lambda book: book.fail("api", "500")),
    ("compact_start", lambda book: book.compact_start("auto")),
    ("compact_end", lambda book: book.compact_end()),
    ("linger", lambda book: setattr(book, "lingering", bool(book.turn))),
    ("usage", lambda book: book.usage(TokenUsage(input=1), "u")),
    ("notice", lambda book: book.notice("hm")),
    ("stale", lambda book: book.signal("stale")),
    ("restored", lambda book: book.restored(True)),
]
for name in IDS:
    WORDS += [
        (f"background_start {name}", lambda book, name=name: book.background_start("subagent", name)),
        (f"background_end {name}", lambda book, name=name: book.background_end(name)),
        (f"dialog {name}", lambda book, name=name: book.dialog(f"d{name}", "confirm", "sure?")),
        (f"close_dialog {name}", lambda book, name=name: book.close_dialog(f"d{name}", True)),
        (f"resolve {name}", lambda book, name=name: book.resolve(f"g{name}", "approved")),
        (f"allow {name}", lambda book, name=name: book.allow_call(f"g{name}")),
        (f"refuse {name}", lambda book, name=name: book.refuse_call(f"g{name}")),
        (f"aside {name}", lambda book, name=name: book.aside(f"aside{name}", 0, "by the way")),
        (f"answer {name}", lambda book, name=name: book.answer(f"q{name}", "yes")),
        (f"message_done {name}", lambda book, name=name: book.message_done(name)),
        (f"message_dropped {name}", lambda book, name=name: book.message_dropped(name)),
    ]
    for path in PATHS:
        call = f"{name}{''.join(path)}"
        WORDS += [
            (f"text {name} {path}", lambda book, name=name, path=path: book.text(name, 0, "hi", path)),
            (f"thinking {name} {path}", lambda book, name=name, path=path: book.thinking(name, 1, "hm", path)),
            (f"announce {call}", lambda book, call=call, path=path: book.announce(call, "shell", {}, path=path)),
            (f"start {call}", lambda book, call=call, path=path: book.start_call(call, "shell", path=path)),
            (f"output {call}", lambda book, call=call: book.output_so_far(call, "out")),
            (f"end {call}", lambda book, call=call, path=path: book.end_call(call, name="shell", path=path)),
            (f"block {call}", lambda book, call=call: book.block_call(call, "no")),
            (f"ask {call}", lambda book, call=call, path=path: book.ask(f"g{call}", "shell", call_id=call, path=path)),
            (f"question {call}", lambda book, call=call, path=path: book.question(f"q{call}", "?", path=path)),
        ]

sentences = st.lists(st.sampled_from(WORDS), max_size=40)


def written(book: Book, view: View) -> tuple[View, list[Body]]:
    bodies = book.take()
    for body in bodies:
        view = fold(view, Event("s", view.index + 1, view.index, "stream", body))
    return view, bodies


def opened() -> View:
    return fold(View(), Event("s", 1, 0, "user", ev.SessionOpened(agent="test")))


@given(sentences)
def test_no_order_of_words_makes_the_owners_contradict_each_other(words: list[Word]) -> None:
    book, view, said = Book(), opened(), list[Body]()
    for name, word in words:
        word(book)
        view, bodies = written(book, view)
        said += bodies
        assert not violations(view), name
        assert book.activity == view.state.activity.value, name
        assert bool(book.turn) == view.state.turn.is_open, name
        assert len(book.gates) == len(view.state.gates.open), name
    assert not unclosed(said)


@given(sentences, sentences)
def test_a_book_restored_in_the_middle_goes_on_as_if_nothing_had_been(before: list[Word], after: list[Word]) -> None:
    book, view = Book(), opened()
    for _, word in before:
        word(book)
    view, _ = written(book, view)
    restored = Book()
    restored.restore(view)
    for name, word in after:
        word(restored)
        view, _ = written(restored, view)
        assert not violations(view), name
