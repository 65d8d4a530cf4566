"""Check that every figure of the benchmarks can still be measured. Speed itself isn't tested here."""

from __future__ import annotations

import asyncio
import gc
import json
from importlib import import_module

import pytest

from bench import bare, sessions, worker
from bench.__main__ import GROUPS, figures_of
from bench.figure import Figure, table
from bench.measure import SMOKE, Ratio, Work, ratio
from quarterdeck import events as ev
from quarterdeck.kernel.view import fold


@pytest.mark.parametrize("group", GROUPS)
def test_every_figure_of_a_group_can_be_measured(group: str):
    for module in getattr(import_module(f"bench.{group}"), "NEEDS", ()):
        pytest.importorskip(
            module, reason="it measures against a program of requirements-bench.txt, which is not installed"
        )
    found = list(figures_of(group)(SMOKE))
    assert {one.group for one in found} == {group}
    assert all(one.ratio.low <= one.ratio.median <= one.ratio.high for one in found)
    assert all(json.loads(json.dumps(one.as_json()))["figure"] == one.name for one in found)


def test_a_worker_that_hears_another_reply_than_it_should_ends():
    """A framework that stopped half way would look fast."""

    async def turn(_: str) -> str:
        return "half of"

    with pytest.raises(ValueError, match="ended with 'half of'"):
        asyncio.run(worker.spent_ns(turn, "burst", 2, "half of it"))
    assert gc.isenabled()


def test_our_steps_and_the_floor_walk_the_tape_alike():
    from bench import machine

    tape = bare.tape()
    assert len(tape) == bare.TAPE_LENGTH
    machine.table_step(tape).run()
    machine.phase_step(tape).run()
    assert len({one.after for one in tape}) > 6


def test_decoding_needs_no_library_but_ours_to_be_tried():
    from bench import decode

    tape = decode.tape()
    assert len({type(ev.decode_body(body)[0]) for body in tape}) == 7
    assert 150 < sum(map(len, tape)) / len(tape) < 220


def test_every_event_is_folded_in_every_state():
    assert {type(body) for body in sessions.bodies()} == set(ev.TYPES)
    for view in sessions.views(10).values():
        for body in sessions.bodies():
            assert fold(view, sessions.next_event(view, body)).index == view.index + 1


@pytest.mark.parametrize("entries", [0, 10, 33])
def test_a_session_grows_to_the_size_that_was_asked_for(entries: int):
    assert sessions.length(sessions.grown(entries).timeline) == entries


def test_a_figure_is_judged_by_its_bound():
    found = Ratio(2.0, 1.9, 2.1, 200.0, 100.0)
    judged = [
        Figure("g", "slow enough", found, 2.5),
        Figure("g", "too slow", found, 1.5),
        Figure("g", "far enough ahead", found, 1.5, "at least"),
        Figure("g", "told only", found),
    ]
    assert [one.verdict for one in judged] == ["ok", "OVER", "ok", ""]
    assert "OVER" in "\n".join(table(judged))


def test_a_ratio_has_the_times_of_one_operation():
    found = ratio(Work(lambda: sum(range(1000)), 1), Work(lambda: sum(range(1000)), 1), SMOKE)
    assert found.subject_ns > 0
    assert found.floor_ns > 0
