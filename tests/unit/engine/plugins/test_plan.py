"""Test how checklists are parsed and how the steps of a plan move."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarterdeck.engine.plugins.planning import MARKS, MOVES, PlanFault, Status, move_step, parse_plan, update_plan
from quarterdeck.events import Plan, PlanStep
from tests.conformance.marks import case

STATUSES: list[Status] = list(MOVES)
statuses = st.sampled_from(STATUSES)


def plan_of(*given: Status) -> Plan:
    return Plan(steps=tuple(PlanStep(id=str(n), description=f"step {n}", status=one) for n, one in enumerate(given, 1)))


class TestMoves:
    LEGAL: ClassVar = {
        ("pending", "in_progress"),
        ("pending", "skipped"),
        ("in_progress", "completed"),
        ("in_progress", "failed"),
    }

    @case("U-061")
    @pytest.mark.parametrize("before", STATUSES)
    @pytest.mark.parametrize("after", STATUSES)
    def test_a_step_moves_as_the_table_says_and_an_illegal_move_is_a_value(self, before: Status, after: Status) -> None:
        plan = plan_of("completed", before)
        answer = move_step(plan, "2", after)
        if (before, after) in self.LEGAL:
            assert answer == plan_of("completed", after)
        else:
            assert isinstance(answer, PlanFault)
            assert answer.code == "illegal_move"
            assert f"is {before} and can't become {after}" in answer.message

    def test_a_step_that_is_not_there_is_a_value_too(self) -> None:
        answer = move_step(plan_of("pending"), "7", "skipped")
        assert isinstance(answer, PlanFault)
        assert answer.code == "no_such_step"

    @given(st.lists(statuses, min_size=1, max_size=4), st.lists(st.tuples(st.integers(1, 5), statuses), max_size=20))
    def test_whatever_is_tried_no_step_goes_back_and_others_stay(
        self, begun: list[Status], tries: list[tuple[int, Status]]
    ) -> None:
        plan = plan_of(*begun)
        for number, to in tries:
            answer = move_step(plan, str(number), to)
            if isinstance(answer, PlanFault):
                continue
            changed = [n for n, (old, new) in enumerate(zip(plan.steps, answer.steps), 1) if old != new]
            assert changed == [number]
            assert (plan.steps[number - 1].status, answer.steps[number - 1].status) in self.LEGAL
            plan = answer


class TestChecklists:
    def test_every_mark_is_read(self) -> None:
        text = "Here is the plan:\n\n- [ ] look\n* [~] change it\n1. [x] test\n2) [!] ship\n  + [-] drink\n\nDone."
        plan = parse_plan(text)
        assert plan is not None
        assert [(step.id, step.description, step.status) for step in plan.steps] == [
            ("1", "look", "pending"),
            ("2", "change it", "in_progress"),
            ("3", "test", "completed"),
            ("4", "ship", "failed"),
            ("5", "drink", "skipped"),
        ]
        assert plan.text == text

    @pytest.mark.parametrize(
        "text", ["", "- look\n- change", "[ ] look", "- [y] look", "- [ ]", "- [ ]   \n", "x - [ ] a"]
    )
    def test_what_is_no_checklist_is_no_plan(self, text: str) -> None:
        assert parse_plan(text) is None

    @given(st.text(max_size=200))
    def test_any_text_is_read_without_harm(self, text: str) -> None:
        plan = parse_plan(text)
        assert plan is None or all(step.description.strip() for step in plan.steps)

    def test_a_plan_has_at_most_100_steps(self) -> None:
        plan = parse_plan("- [ ] one\n" * 1_000)
        assert plan is not None
        assert len(plan.steps) == 100

    @given(st.lists(st.sampled_from(sorted(MARKS)), min_size=1, max_size=9))
    def test_marks_and_statuses_agree(self, marks: list[str]) -> None:
        plan = parse_plan("\n".join(f"- [{mark}] step {number}" for number, mark in enumerate(marks)))
        assert plan is not None
        assert [step.status for step in plan.steps] == [MARKS[mark] for mark in marks]


class TestToldAgain:
    @pytest.mark.parametrize(
        ("before", "told", "after"),
        [
            ("pending", "in_progress", "in_progress"),
            ("pending", "completed", "completed"),
            ("pending", "failed", "failed"),
            ("pending", "skipped", "skipped"),
            ("in_progress", "completed", "completed"),
            ("in_progress", "pending", "in_progress"),
            ("completed", "pending", "completed"),
            ("failed", "completed", "failed"),
            ("skipped", "in_progress", "skipped"),
        ],
    )
    def test_a_step_only_moves_on(self, before: Status, told: Status, after: Status) -> None:
        assert update_plan(plan_of(before), plan_of(told)) == plan_of(after)

    def test_steps_are_known_by_their_words(self) -> None:
        plan, told = parse_plan("- [ ] Look  here\n- [ ] test"), parse_plan("- [x] TEST\n- [ ] another")
        assert plan is not None
        assert told is not None
        assert [step.status for step in update_plan(plan, told).steps] == ["pending", "completed"]

    def test_a_checklist_that_shares_no_step_is_another_plan(self) -> None:
        other = parse_plan("- [ ] something else")
        assert other is not None
        assert update_plan(plan_of("completed"), other) == other
