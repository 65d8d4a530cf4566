"""Test Planning: the agent writes a checklist first, and the plan follows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quarterdeck.engine.model import Call, Message, Text
from quarterdeck.engine.plugins.base import Intervene, InvalidPluginOption
from quarterdeck.engine.plugins.planning import Planning
from quarterdeck.events import Notice, PlanGenerated
from tests.support.small_context import SmallContext, ask, assistant, events_of, others_of, restarted

LONG = "please rewrite the parser"
LIST = "My plan:\n- [ ] look\n- [ ] change"


@pytest.fixture
def context(tmp_path: Path) -> SmallContext:
    return SmallContext(tmp_path)


def prompted(plugin: Any, context: SmallContext, text: str = LONG) -> list[Any]:
    return ask(plugin, "before_prompt", text, context)


def replied(plugin: Any, context: SmallContext, message: Message | str) -> list[Any]:
    return ask(plugin, "after_response", assistant(message) if isinstance(message, str) else message, context)


class TestThePlanComesFirst:
    def test_a_prompt_of_20_characters_is_asked_for_a_checklist(self, context: SmallContext) -> None:
        assert prompted(Planning(), context, "x" * 19) == []
        assert prompted(Planning(), context, "  " + "x" * 19) == []
        [answer] = prompted(Planning(), context, "x" * 20)
        assert isinstance(answer, Intervene)
        assert "- [ ]" in answer.prompt

    def test_the_checklist_is_the_plan_and_then_it_is_carried_out(self, context: SmallContext) -> None:
        plugin = Planning()
        prompted(plugin, context)
        answers = replied(plugin, context, LIST)
        [event] = events_of(answers)
        assert isinstance(event, PlanGenerated)
        assert [step.description for step in event.plan.steps] == ["look", "change"]
        assert [type(one) for one in others_of(answers)] == [Intervene]

    def test_an_agent_that_is_at_work_already_is_not_told_to_begin(self, context: SmallContext) -> None:
        plugin = Planning()
        prompted(plugin, context)
        message = Message("assistant", (Text(LIST), Call("c1", "ls", {})))
        assert others_of(replied(plugin, context, message)) == []

    def test_in_plan_mode_the_plan_is_the_result(self, tmp_path: Path) -> None:
        plugin, context = Planning(), SmallContext(tmp_path, "plan")
        prompted(plugin, context)
        answers = replied(plugin, context, LIST)
        assert others_of(answers) == []
        assert len(events_of(answers)) == 1

    def test_it_is_asked_for_twice_and_then_not_again(self, context: SmallContext) -> None:
        plugin = Planning()
        prompted(plugin, context)
        [again] = replied(plugin, context, "I just begin.")
        assert isinstance(again, Intervene)
        [given_up] = events_of(replied(plugin, context, "No."))
        assert isinstance(given_up, Notice)
        assert replied(plugin, context, "Working.") == []

    def test_the_second_attempt_counts(self, context: SmallContext) -> None:
        plugin = Planning()
        prompted(plugin, context)
        replied(plugin, context, "I just begin.")
        assert [type(one) for one in events_of(replied(plugin, context, LIST))] == [PlanGenerated]

    def test_without_plan_first_nothing_is_asked_for(self, context: SmallContext) -> None:
        plugin = Planning(plan_first=False)
        assert prompted(plugin, context) == []
        assert replied(plugin, context, "ok") == []
        assert [type(one) for one in replied(plugin, context, LIST)] != []

    def test_a_sub_agent_makes_no_plan(self, context: SmallContext) -> None:
        plugin = Planning()
        context.agent_path = ("child",)
        assert prompted(plugin, context) == []
        assert replied(plugin, context, LIST) == []

    def test_attempts_below_one_are_refused(self) -> None:
        with pytest.raises(InvalidPluginOption, match="attempts"):
            Planning(attempts=0)


class TestThePlanFollowsTheWork:
    def planned(self, context: SmallContext) -> Planning:
        plugin = Planning()
        prompted(plugin, context)
        replied(plugin, context, LIST)
        return plugin

    def test_a_checklist_told_again_moves_the_steps(self, context: SmallContext) -> None:
        plugin = self.planned(context)
        [event] = events_of(replied(plugin, context, "- [x] look\n- [~] change"))
        assert isinstance(event, PlanGenerated)
        assert [step.status for step in event.plan.steps] == ["completed", "in_progress"]

    def test_nothing_new_is_not_told(self, context: SmallContext) -> None:
        plugin = self.planned(context)
        assert replied(plugin, context, LIST) == []
        assert replied(plugin, context, "working on it") == []

    def test_it_outlives_a_restart(self, context: SmallContext) -> None:
        plugin = restarted(self.planned(context), Planning())
        [event] = events_of(replied(plugin, context, "- [x] look"))
        assert isinstance(event, PlanGenerated)
        assert [step.status for step in event.plan.steps] == ["completed", "pending"]

    def test_an_attempt_outlives_a_restart(self, context: SmallContext) -> None:
        plugin = Planning()
        prompted(plugin, context)
        replied(plugin, context, "no list")
        again = restarted(plugin, Planning())
        assert [type(one) for one in events_of(replied(again, context, "no list"))] == [Notice]
