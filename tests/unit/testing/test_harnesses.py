"""Test that the harness checks pass with the scripted agent and fail for wrong harnesses."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.events import Body, Image
from quarterdeck.harness.base import Object, Signal
from quarterdeck.harness.driver import Capabilities, Decision, KillTools, Lines, Spawn, Start
from quarterdeck.harness.registry import Harness, harness
from quarterdeck.kernel.gate import Gate
from quarterdeck.kernel.view import View
from quarterdeck.testing import harnesses
from quarterdeck.testing.harness import CAPABILITIES, TestDriver, TestTranslator
from quarterdeck.testing.harnesses import CHECKS, Check, checks, run
from quarterdeck.testing.scene import Script

SCRIPT = Script(
    answer="say hello there",
    answer_has="hello",
    hang="say wait; hang",
    ask="ask make; say asked",
    question="question which colour",
    reply="blue",
    dialog="dialog confirm really",
    steps="sleep 0.3; say one; sleep 0.3; say two",
    children="child 300; orphan 300",
    recall="recall",
    recall_has="2 prompts",
    other_model="bigger",
)
TEST = harness("test")


def name_of(check: Check) -> str:
    return check.__name__


def script_in(folder: Path) -> Script:
    return replace(SCRIPT, environment={"QD_TEST_STATE": str(folder / "state")})


@pytest.mark.parametrize("check", checks(TEST, SCRIPT), ids=name_of)
def test_the_scripted_agent(check: Check, tmp_path: Path) -> None:
    asyncio.run(run(check, TEST, script_in(tmp_path), str(tmp_path)))


def test_every_check_applies_to_the_scripted_agent() -> None:
    assert checks(TEST, SCRIPT) == CHECKS
    assert len(CHECKS) > 20


# --- omitted checks, and prompts that are required


def with_driver(driver: type[TestDriver]) -> Harness:
    return Harness("wrong", driver, TestTranslator)


def with_translator(translator: type[TestTranslator]) -> Harness:
    return Harness("wrong", TestDriver, translator)


class Modest(TestDriver):
    capabilities = Capabilities(interrupt=False)


def test_what_is_not_promised_is_left_out() -> None:
    names = set(map(name_of, checks(with_driver(Modest), Script(answer="a", hang="h"))))
    assert "a_prompt_is_answered_in_one_turn" in names
    assert not names & {"what_is_allowed_runs", "a_resumed_session_goes_on", "the_model_is_switched"}


def test_a_promise_without_a_prompt_to_show_it_is_an_error() -> None:
    with pytest.raises(ValueError, match="has the capability questions, but the script has no 'question'"):
        checks(TEST, replace(SCRIPT, question=""))


# --- wrong harnesses


class Mute(TestTranslator):
    def read_text(self, line: Object) -> None:
        """Ignore the text."""


class Nameless(TestTranslator):
    def read_ready(self, line: Object) -> None:
        self.tracker.report_ready()


class NeverEnds(TestTranslator):
    def read_turn_end(self, line: Object) -> None:
        """Leave the turn open."""


class Forgetful(TestTranslator):
    def read_may_i(self, line: Object) -> None:
        """Don't open a gate."""


class Random(TestTranslator):
    made = 0

    def __init__(self) -> None:
        super().__init__()
        Random.made += 1
        self.number = Random.made

    def read_text(self, line: Object) -> None:
        super().read_text({**line, "delta": f"{line['delta']} {self.number}"})


class Contradictory(TestTranslator):
    def read_text(self, line: Object) -> None:
        super().read_text(line)
        self.tracker.emit(ev.StateChange(state="idle"))


class Replaying(TestTranslator):
    """A translator that reports earlier turns as new."""

    was_resumed = False

    def restore(self, view: View) -> None:
        super().restore(view)
        self.was_resumed = bool(view.state.profile.native_session_id)

    def read_ready(self, line: Object) -> None:
        super().read_ready(line)
        if self.was_resumed:
            self.tracker.record_prompt("the old one")
            self.tracker.end_turn()


class Murderous(TestDriver):
    """A driver whose interrupt ends the whole process."""

    def interrupt(self, kill_tools: KillTools = "killable") -> Lines:
        return [{"op": "bye"}]


class Pretending(TestDriver):
    capabilities = replace(CAPABILITIES, images=False)


class Yes(TestDriver):
    """A driver that approves every refused call."""

    def answer(self, gate: Gate, decision: Decision) -> Lines:
        return super().answer(gate, replace(decision, status="approved"))


class Restless(TestDriver):
    """A driver that never resumes a session."""

    def spawn(self, start: Start) -> Spawn:
        return super().spawn(replace(start, native_session_id=""))


class Silent(TestDriver):
    def prompt(self, text: str, message_id: str, images: tuple[Image, ...] = ()) -> Lines:
        return []


WRONG = [
    (with_translator(Mute), "a_prompt_is_answered_in_one_turn", "the agent wrote no text"),
    (with_translator(Nameless), "says_which_session_it_has_and_what_it_can_do", "no native session id"),
    (with_translator(NeverEnds), "a_prompt_is_answered_in_one_turn", "not within .* s: the turn ends"),
    (with_translator(Forgetful), "what_is_allowed_runs", "a gate .approval. opens"),
    (with_translator(Random), "a_prompt_is_answered_in_one_turn", "translating the signals again"),
    (with_translator(Contradictory), "a_prompt_is_answered_in_one_turn", "activity idle in an open turn"),
    (with_translator(Replaying), "a_resumed_session_goes_on", "PromptReceived"),
    (
        with_driver(Murderous),
        "an_interrupt_ends_the_turn_and_not_the_process",
        "the process exited|doesn't read its input",
    ),
    (with_driver(Pretending), "what_it_cannot_do_is_refused_and_nothing_is_said", "no capability to take images"),
    (with_driver(Yes), "what_is_refused_does_not_run", "rejected"),
    (with_driver(Restless), "a_resumed_session_goes_on", "native"),
    (with_driver(Silent), "a_prompt_keeps_its_name_or_its_text", "the prompt starts a turn"),
]


@pytest.mark.parametrize(("wrong", "check", "why"), WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_it_finds_what_is_wrong(wrong: Harness, check: str, why: str, tmp_path: Path) -> None:
    script = replace(script_in(tmp_path), patience=3.0, grace=1.0)
    with pytest.raises(AssertionError, match=why):
        asyncio.run(run(getattr(harnesses, check), wrong, script, str(tmp_path)))


def test_nothing_that_it_heard_was_unknown(tmp_path: Path) -> None:
    """The translator must recognise every line of the scripted agent."""

    async def main() -> tuple[int, list[Body]]:
        scene = harnesses.Scene(TEST, script_in(tmp_path), str(tmp_path))
        await scene.begin()
        await scene.finish("think a; tool b; fail c; background 0.05; flood 3; stderr x; sleep 0.2; say end", "p1")
        await scene.finish("error it broke", "p2")
        await scene.close()
        scene.check_end()
        return scene.translator.unknown, scene.bodies

    unknown, bodies = asyncio.run(main())
    assert unknown == 0
    assert [body.ok for body in bodies if isinstance(body, ev.ToolExecutionEnd)] == [True, False]
    assert [body.ok for body in bodies if isinstance(body, ev.BackgroundEnded)] == [True]
    assert [body.outcome for body in bodies if isinstance(body, ev.AgentEnd)] == ["completed", "failed"]


def test_images_arrive(tmp_path: Path) -> None:
    image = Image(media_type="image/png", data="aGk=")

    async def main() -> list[ev.PromptReceived]:
        scene = harnesses.Scene(TEST, SCRIPT, str(tmp_path))
        await scene.begin()
        await scene.ready()
        scene.say(scene.driver.prompt("say hi", "p1", (image,)))
        await scene.until(lambda: bool(scene.since(0, ev.AgentEnd)), "the turn ends")
        await scene.close()
        return scene.since(0, ev.PromptReceived)

    (taken,) = asyncio.run(main())
    assert taken.images == (image,)


def test_a_line_that_is_no_word_of_the_agent_is_counted() -> None:
    translator = TestTranslator()
    for kind in ("exit", "silence", "nothing", ""):
        translator.feed(Signal("stdout", {"type": kind}), 0.0)
    assert translator.unknown == 4
