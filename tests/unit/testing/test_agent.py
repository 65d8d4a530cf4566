"""Test that the scripted agent runs each command of its scripts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from quarterdeck import events as ev
from quarterdeck.harness.driver import Decision
from quarterdeck.harness.registry import harness
from quarterdeck.process.identity import is_alive
from quarterdeck.testing.scene import Scene, Script

T = TypeVar("T")


def played(folder: Path, work: Callable[[Scene], Awaitable[T]], **environment: str) -> T:
    """Run `work` with a new agent in this environment and return its result."""

    async def main() -> T:
        scene = Scene(harness("test"), Script(answer="say hi", hang="hang", environment=environment), str(folder))
        await scene.begin()
        try:
            return await work(scene)
        finally:
            await scene.close()
            scene.check_end()

    return asyncio.run(main())


async def _said(scene: Scene, text: str) -> str:
    return scene.texts(await scene.finish(text))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("say a b", "a b "),
        ("anything else", "anything else "),
        ("say one; say two", "one two "),
        ("echo-env QD_X", "y "),
    ],
)
def test_it_says_what_it_is_told(tmp_path: Path, text: str, says: str) -> None:
    assert played(tmp_path, lambda scene: _said(scene, text), QD_X="y") == says


def test_a_file_shows_how_often_a_prompt_was_really_obeyed(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        for number in range(3):
            await scene.finish(f"write {tmp_path}/evidence done {number}")

    played(tmp_path, work)
    assert (tmp_path / "evidence").read_text() == "done 0\ndone 1\ndone 2\n"


# --- start


def test_a_slow_start(tmp_path: Path) -> None:
    async def work(scene: Scene) -> bool:
        await asyncio.sleep(0.2)
        was_starting = scene.state.process.value == "starting"
        await scene.ready()
        return was_starting

    assert played(tmp_path, work, QD_TEST_START_DELAY="0.8")


def test_a_start_that_never_ends(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        await asyncio.sleep(0.4)
        assert scene.state.process.value == "starting"
        assert is_alive(scene.process.identity)
        await scene.stop()

    played(tmp_path, work, QD_TEST_NEVER_READY="1")


def test_a_bad_start(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        assert await scene.process.exited == 4
        assert scene.process.last_words == ("QD_TEST_BAD_START is set",)
        assert scene.since(0, ev.AgentReady) == []

    played(tmp_path, work, QD_TEST_BAD_START="4")


# --- resumed sessions


def test_a_resumed_session_remembers_and_a_new_one_does_not(tmp_path: Path) -> None:
    async def work(scene: Scene) -> list[str]:
        said = [await _said(scene, "recall"), await _said(scene, "recall")]
        native = scene.state.profile.native_session_id
        await scene.crash()
        await scene.begin(native)
        said.append(await _said(scene, "recall"))
        await scene.stop()
        await scene.begin()
        said.append(await _said(scene, "recall"))
        return said

    said = played(tmp_path, work, QD_TEST_STATE=str(tmp_path / "state"))
    assert said == ["1 prompts ", "2 prompts ", "3 prompts ", "1 prompts "]


def test_a_session_that_never_was_cannot_be_resumed(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        await scene.ready()
        await scene.stop()
        await scene.begin("../nobody")
        assert await scene.process.exited == 1
        assert scene.process.last_words == ("no session ../nobody",)

    played(tmp_path, work, QD_TEST_STATE=str(tmp_path / "state"))
    assert len(os.listdir(tmp_path / "state")) == 1


# --- interrupts affect only earlier prompts


@pytest.mark.parametrize("text", ["hang", "ask make", "question why", "dialog input name", "sleep 300"])
def test_an_interrupt_right_behind_a_prompt_is_not_lost(tmp_path: Path, text: str) -> None:
    async def work(scene: Scene) -> None:
        await scene.ready()
        scene.say([*scene.driver.prompt(text, "p1"), *scene.driver.interrupt()])
        await scene.until(lambda: bool(scene.since(0, ev.AgentAbort)), "the turn is aborted")
        assert scene.state.gates.open == ()

    played(tmp_path, work)


def test_an_interrupt_in_between_does_not_meet_the_next_prompt(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        await scene.ready()
        scene.say([*scene.driver.interrupt(), *scene.driver.prompt("question why; say done", "p1")])
        scene.decide(await scene.gate("question"), Decision(status="answered", answer="so"))
        await scene.over()
        assert len(scene.since(0, ev.AgentEnd)) == 1

    played(tmp_path, work)


# --- background work and dialogs


def test_a_background_shell_outlives_its_turn_and_ends(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        await scene.finish("background 0.5; say done")
        assert [task.kind for task in scene.state.background] == ["shell"]
        await scene.until(lambda: not scene.state.background, "the shell ends")
        assert [body.ok for body in scene.since(0, ev.BackgroundEnded)] == [True]

    played(tmp_path, work)


@pytest.mark.parametrize(
    ("decision", "says"),
    [(Decision(status="answered", answer="left"), "you chose left "), (Decision(status="cancelled"), "you closed it ")],
)
def test_a_dialog(tmp_path: Path, decision: Decision, says: str) -> None:
    async def work(scene: Scene) -> str:
        await scene.prompt("dialog select which way")
        gate = await scene.gate("dialog")
        assert gate.title == "which way"
        scene.decide(gate, decision)
        await scene.over()
        return scene.texts(scene.bodies)

    assert played(tmp_path, work) == says
