"""Mutate recordings of ACP agents, also under the name of another agent: no exception, no impossible state."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarterdeck.kernel.view import View
from tests.fuzz.mutate import lines_of, mutated, recordings, replayed

FOLDERS = {"gemini": "gemini", "opencode": "opencode", "kilo": "kilo", "cline/2.18.0-acp": "cline"}
ALL = [(path, agent) for folder, agent in FOLDERS.items() for path in recordings(folder)]


def never_idle_while_something_is_open(view: View) -> None:
    """Assert that the agent isn't shown as idle while a call or a gate is open."""
    state = view.state
    if state.activity.value == "idle":
        assert not state.turn.calls
        assert not [gate for gate in state.gates.open if not gate.path]


@settings(max_examples=120)
@given(st.sampled_from(ALL), st.data())
def test_a_mutated_recording_breaks_nothing(chosen: tuple[Path, str], data: st.DataObject) -> None:
    path, agent = chosen
    lines = data.draw(mutated(lines_of(path)))
    replayed(agent, lines, never_idle_while_something_is_open)


@settings(max_examples=60)
@given(st.sampled_from(ALL), st.sampled_from(["acp", "gemini", "opencode", "kilo", "cline"]), st.data())
def test_nor_does_one_that_is_taken_for_another_agent(
    chosen: tuple[Path, str], agent: str, data: st.DataObject
) -> None:
    lines = [line for line in data.draw(mutated(lines_of(chosen[0]))) if b"agentInfo" not in line]
    replayed(agent, lines, never_idle_while_something_is_open)


@settings(max_examples=40)
@given(st.sampled_from(ALL), st.sampled_from(ALL), st.data())
def test_nor_do_two_recordings_one_after_the_other(
    first: tuple[Path, str], second: tuple[Path, str], data: st.DataObject
) -> None:
    lines = [*lines_of(first[0])[:60], *data.draw(mutated(lines_of(second[0])[:60]))]
    replayed("acp", lines, never_idle_while_something_is_open)


@pytest.mark.parametrize("only", ["stdout", "stdin", "proc"])
@pytest.mark.parametrize(("path", "agent"), ALL, ids=lambda value: str(value).rpartition("traces/")[2])
def test_one_source_alone_breaks_nothing(path: Path, agent: str, only: str) -> None:
    lines = [line for line in lines_of(path) if b'"src": "%s"' % only.encode() in line]
    assert replayed(agent, lines).unknown == 0
