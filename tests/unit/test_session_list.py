"""Test the list of sessions: filters, pages, the badge, and who needs attention."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from quarterdeck.events import Repo
from quarterdeck.kernel.phase import flags
from quarterdeck.kernel.session_list import (
    PAGE,
    Badge,
    Filter,
    Page,
    badge,
    is_listed,
    manager_phase,
    matches,
    needing,
    page,
)
from quarterdeck.kernel.summary import Attention, Summary, summary
from tests.support.tape import Tape

PLAIN = summary(Tape().opened().view)


def row(session_id: str, **fields: Any) -> Summary:
    return replace(PLAIN, id=session_id, **fields)


def wanted(kind: str, since: int = 0) -> Attention:
    return Attention(kind, "g1" if kind in ("approval", "dialog", "question") else None, since)


STATES = ("active", "suspended", "archived", "error")
EVERY = [row(status, lifecycle=status) for status in STATES]


class TestTheList:
    def test_active_and_suspended_sessions_are_listed_and_archived_ones_on_request(self) -> None:
        assert [status for status in STATES if is_listed(status)] == ["active", "suspended"]
        assert [status for status in STATES if is_listed(status, archived=True)] == ["active", "suspended", "archived"]

    def test_a_status_that_is_asked_for_by_name_is_shown(self) -> None:
        assert [one.id for one in EVERY if matches(one, Filter(status=("error", "archived")))] == ["archived", "error"]
        assert [one.id for one in EVERY if matches(one, Filter())] == ["active", "suspended"]
        assert [one.id for one in EVERY if matches(one, Filter(archived=True))] == ["active", "suspended", "archived"]

    @pytest.mark.parametrize(
        "wanted",
        [
            Filter(agent="claude"),
            Filter(cwd="/src"),
            Filter(repo="/root"),
            Filter(q="BUG"),
            Filter(q="/SR"),
            Filter(q="claud"),
            Filter(q="done"),
            Filter(agent="claude", cwd="/src", repo="/root", q="bug", status=("active",)),
        ],
        ids=str,
    )
    def test_a_filter_keeps_what_fits_and_nothing_else(self, wanted: Filter) -> None:
        repo = Repo(root="/root", name="r")
        fits = row("a", agent="claude", cwd="/src", repo=repo, name="Fix the Bug", last_text="All Done")
        other = row("b", agent="codex", cwd="/elsewhere", repo=Repo(root="/other", name="r"), name="x")
        assert matches(fits, wanted)
        assert not matches(other, wanted)
        assert not matches(row("c", agent="gemini"), wanted)

    def test_every_part_of_a_filter_must_fit(self) -> None:
        one = row("a", agent="claude", cwd="/src", name="x")
        assert not matches(one, Filter(agent="claude", cwd="/other"))
        assert not matches(one, Filter(agent="claude", status=("archived",)))
        assert not matches(one, Filter(agent="claude", q="y"))


class TestPages:
    @given(st.lists(st.integers(0, 5), max_size=30), st.integers(1, 7))
    def test_page_by_page_every_session_is_met_once_newest_first(self, times: list[int], limit: int) -> None:
        rows = [row(f"s{number}.x", created_at=at) for number, at in enumerate(times)]
        met: list[Summary] = []
        cursor: str | None = ""
        while cursor is not None:
            found = page(rows, Filter(), limit, cursor)
            assert len(found.sessions) <= limit
            met += found.sessions
            cursor = found.next_cursor
        assert met == sorted(rows, key=lambda one: (one.created_at, one.id), reverse=True)

    def test_a_page_has_20_sessions_unless_another_number_is_wanted(self) -> None:
        rows = [row(f"s{number:02}", created_at=number) for number in range(21)]
        first = page(rows, Filter())
        assert len(first.sessions) == PAGE == 20
        assert [one.id for one in page(rows, Filter(), cursor=first.next_cursor or "").sessions] == ["s00"]

    def test_the_badge_counts_all_and_not_only_the_page(self) -> None:
        rows = [*EVERY, row("x", attention=wanted("approval"))]
        assert page(rows, Filter(q="no such"), now=5) == Page((), None, Badge(3, 1))

    @pytest.mark.parametrize("cursor", ["", "x", "-1.s", ".", "1e9.s", "9" * 5_000 + ".s", "²"])
    def test_a_cursor_that_is_none_of_ours_begins_at_the_start(self, cursor: str) -> None:
        assert [one.id for one in page([row("a", created_at=5)], Filter(), cursor=cursor).sessions] == ["a"]


class TestWhatNeedsAPerson:
    def test_blocking_ones_first_then_by_how_long_they_wait(self) -> None:
        rows = [
            row("finished", attention=wanted("finished", 1)),
            row("question", attention=wanted("question", 9)),
            row("failed", attention=wanted("failed", 3)),
            row("approval", attention=wanted("approval", 7)),
            row("dialog", attention=wanted("dialog", 8)),
            row("busy"),
            row("also finished", attention=wanted("finished", 1)),
        ]
        assert [one.id for one in needing(rows)] == [
            "approval",
            "dialog",
            "question",
            "also finished",
            "finished",
            "failed",
        ]

    def test_a_snoozed_session_waits_until_its_time(self) -> None:
        rows = [row("a", attention=wanted("approval"), snoozed_until=10)]
        assert needing(rows, now=9) == []
        assert needing(rows, now=10) == rows

    def test_the_badge_counts_usable_sessions_and_what_is_wanted(self) -> None:
        rows = [*EVERY, row("x", attention=wanted("failed")), row("y", attention=wanted("failed"), snoozed_until=10)]
        assert badge(rows, now=5) == Badge(4, 1)
        assert badge(rows, now=10) == Badge(4, 2)
        assert badge([]) == Badge(0, 0)


class TestTheManager:
    def test_it_shows_the_selected_sessions_phase(self) -> None:
        rows = [row("a", phase="streaming", flags=flags("streaming")), row("b", phase="error", flags=flags("error"))]
        assert manager_phase(rows, "a") == ("streaming", flags("streaming"))
        assert manager_phase(rows, "b") == ("error", flags("error"))

    @pytest.mark.parametrize("selected", [None, "gone"])
    def test_it_is_idle_when_none_is_selected(self, selected: str | None) -> None:
        assert manager_phase([row("a", phase="streaming")], selected) == ("idle", flags("idle"))
