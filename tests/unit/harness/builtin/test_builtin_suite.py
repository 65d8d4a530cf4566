"""Run the shipped harness checks with the built-in agent's real process and a scripted model over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from quarterdeck.harness.registry import harness
from quarterdeck.testing.harnesses import Check, checks, run
from quarterdeck.testing.model import ScriptedModel
from quarterdeck.testing.scene import Script
from quarterdeck.testing.script import Fault, ScriptedCall, Step
from quarterdeck.testing.script import Script as ModelScript
from tests.support.scripted_model import serving, variables

BUILTIN = harness("builtin")


def calls(name: str, **args: object) -> Step:
    return Step(text="I try.", calls=(ScriptedCall(name=name, args=dict(args)),))


DONE = Step(text="It is done.")
MODEL = ModelScript(
    scenario={
        "answer": (Step(think="Easy.", text="Hello there."), Step(text="I remember that I said hello.")),
        "hang": (Step(text="Never.", faults=(Fault(kind="hang", seconds=3600, times=0),)),),
        "ask": (calls("shell", command="touch made"), DONE),
        "question": (calls("ask_user", question="Which colour?", options=["red", "blue"]), DONE),
        "steps": (replace(calls("ls", path="."), faults=(Fault(kind="stall", at=2, seconds=0.3),)), DONE),
    }
)
SCRIPT = Script(
    answer="script:answer",
    answer_has="Hello there.",
    hang="script:hang",
    ask="script:ask",
    question="script:question",
    reply="blue",
    steps="script:steps",
    recall="What did you say?",
    recall_has="I remember",
    model="anthropic:scripted",
    other_model="anthropic:other",
)


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedModel]:
    with serving(MODEL) as found:
        yield found


@pytest.mark.parametrize("check", checks(BUILTIN, SCRIPT), ids=lambda check: check.__name__)
def test_the_built_in_agent(check: Check, model: ScriptedModel, tmp_path: Path) -> None:
    asyncio.run(run(check, BUILTIN, replace(SCRIPT, environment=variables(model, str(tmp_path))), str(tmp_path)))
