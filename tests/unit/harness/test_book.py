"""The book where agents leave things out: a compaction whose end is not seen, a refused call that is not spoken of again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quarterdeck.events import Body, Event, SessionOpened, type_of
from quarterdeck.harness.tracker import Book
from quarterdeck.kernel.view import View, fold
from tests.table import legal


class Told:
    """A book, and the view of what it told."""

    def __init__(self) -> None:
        self.book = Book()
        self.bodies: list[Body] = []
        self.view = fold(View(), Event("s1", 1, 0, "user", SessionOpened(agent="test")))

    def after(self, *words: Callable[[Book], object]) -> tuple[str, str]:
        """Run and activity after these words, each of which must leave a legal view."""
        for word in words:
            word(self.book)
            for body in self.book.take():
                self.bodies.append(body)
                self.view = fold(self.view, Event("s1", self.view.index + 1, 0, "stream", body))
            assert legal(self.view)
        return self.view.state.run.value, self.view.state.activity.value


def request(book: Book) -> None:
    book.request()


def text(book: Book) -> None:
    book.text("m1", 0, "hi")


def runs(book: Book) -> None:
    book.start_call("c1", "shell")


def ends(book: Book) -> None:
    book.end_call("c1")


def asks(book: Book) -> None:
    book.announce("c2", "shell")
    book.ask("g2", "shell", call_id="c2")


def question(book: Book) -> None:
    book.question("q1", "which?")


def refused(book: Book) -> None:
    book.refuse_call("g2", "user")


def compacts(book: Book) -> None:
    book.compact_start("auto")


def compacted(book: Book) -> None:
    book.compact_end()


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (text, ("streaming", "active/thinking")),
        (request, ("running", "active/thinking")),
        (runs, ("executing_tools", "active/tool_use")),
        (asks, ("idle", "active/waiting_for_permission")),
        (question, ("executing_tools", "active/waiting_for_permission")),
    ],
)
def test_who_does_something_else_compacts_no_more(word: Callable[[Book], None], expected: tuple[str, str]) -> None:
    told = Told()
    assert told.after(request, compacts) == ("running", "active/compacting")
    assert told.after(word) == expected
    # how it ended was not seen
    assert "compact_end" not in map(type_of, told.bodies)


@pytest.mark.parametrize("before", [asks, question])
def test_a_compaction_answers_what_was_asked(before: Callable[[Book], None]) -> None:
    told = Told()
    assert told.after(request, before, compacts) == ("running", "active/compacting")
    assert told.view.state.phase.value == "streaming"
    assert told.after(compacted) == ("running", "active/thinking")


def test_a_call_that_goes_on_beside_a_compaction_is_come_back_to() -> None:
    told = Told()
    assert told.after(request, runs, compacts) == ("running", "active/compacting")
    assert told.after(compacted) == ("executing_tools", "active/tool_use")


def test_a_text_beside_a_call_or_an_approval_moves_neither() -> None:
    told = Told()
    assert told.after(request, runs, text) == ("executing_tools", "active/tool_use")
    told = Told()
    assert told.after(request, asks, text) == ("idle", "active/waiting_for_permission")


def test_a_refused_call_is_over_when_the_model_answers_and_its_end_may_still_come() -> None:
    told = Told()
    assert told.after(request, asks, refused) == ("running", "active/tool_use")
    assert told.after(text) == ("streaming", "active/thinking")
    assert told.after(lambda book: book.end_call("c2", ok=False)) == ("streaming", "active/thinking")
    assert "tool_execution_start" not in map(type_of, told.bodies)


def test_a_refused_call_of_a_sub_agent_is_none_of_the_main_agent_though_they_share_a_name() -> None:
    told = Told()
    told.after(request, text, lambda book: book.ask("g2", "shell", call_id="c2", path=("child",)))
    told.after(lambda book: book.announce("c2", "shell"))
    assert told.after(refused) == ("streaming", "active/thinking")


def test_a_call_that_is_left_behind_does_not_keep_the_reply_waiting() -> None:
    told = Told()
    assert told.after(request, runs, lambda book: book.detach_call("c1"), text) == ("streaming", "active/thinking")
    assert told.after(asks, ends) == ("idle", "active/waiting_for_permission")
