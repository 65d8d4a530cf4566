"""Measure ratios on a machine that also does other work.

Subject and floor take turns, a few milliseconds each, and each turn of the subject is divided by the mean of the floor's
turns right before and right after it: a slow machine slows all three. The figure is the median of these quotients. Time is
CPU time of this process (or of the child processes), so waiting for a core doesn't count. The garbage collector is off,
because it would run at random times.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from msgspec import Struct

Clock: TypeAlias = Callable[[], int]


class Effort(Struct, frozen=True):
    """How long to measure: turns of the subject, and the minimum length of a turn."""

    rounds: int
    turn_s: float
    process_rounds: int


FULL = Effort(rounds=31, turn_s=0.004, process_rounds=15)
#: A first look, to choose the cases that deserve the full effort.
QUICK = Effort(rounds=5, turn_s=0.0015, process_rounds=5)
#: Only shows that a figure can be measured; its numbers mean nothing.
SMOKE = Effort(rounds=1, turn_s=0.0, process_rounds=1)


class Work(Struct, frozen=True):
    """Something to measure: `run` does it `operations` times. `rest` runs after each `run`, outside the measured time, so
    that leftover work of one doesn't count for the other."""

    run: Callable[[], object]
    operations: int
    rest: Callable[[], object] | None = None


class Ratio(Struct, frozen=True):
    """Subject to floor: the median, and the range that holds eight of ten quotients. Times are per operation.

    `subject_range_ns` holds eight of ten times of the subject, for comparisons with a fixed budget.
    """

    median: float
    low: float
    high: float
    subject_ns: float
    floor_ns: float
    subject_range_ns: tuple[float, float] = (0.0, 0.0)


def ratio(subject: Work, floor: Work, effort: Effort, clock: Clock = time.process_time_ns) -> Ratio:
    """Divide the time of one operation of the subject by that of the floor. CPU time unless the caller passes a clock."""
    with _no_collector():
        repeat_subject, repeat_floor = (_repeats(work, effort.turn_s, clock) for work in (subject, floor))
        return in_turns(
            lambda: _spent_ns(subject, repeat_subject, clock), lambda: _spent_ns(floor, repeat_floor, clock), effort
        )


def in_turns(subject: Callable[[], float], floor: Callable[[], float], effort: Effort) -> Ratio:
    """Do the same with functions that return nanoseconds per operation themselves, because the work runs elsewhere."""
    before = floor()
    subjects: list[float] = []
    floors: list[float] = []
    for _ in range(effort.rounds):
        subjects.append(subject())
        after = floor()
        floors.append((before + after) / 2)
        before = after
    return _summed_up(subjects, floors)


async def ratio_of_waits(
    subject: Callable[[], Awaitable[object]], floor: Callable[[], object], effort: Effort, each: int = 12
) -> Ratio:
    """Do the same in wall time, for work that waits for a disk.

    Disks are irregular: one operation can take a hundred times as long as the next. So the two take short turns, each
    operation is timed by itself, and a round compares the medians of its operations. They don't alternate one by one: a
    file system that sees two threads write in turns delays each for the other.
    """
    subjects: list[float] = []
    floors: list[float] = []
    with _no_collector():
        for _ in range(effort.rounds):
            bare: list[int] = []
            for _ in range(each):
                start = time.perf_counter_ns()
                floor()
                bare.append(time.perf_counter_ns() - start)
            ours: list[int] = []
            for _ in range(each):
                start = time.perf_counter_ns()
                await subject()
                ours.append(time.perf_counter_ns() - start)
            subjects.append(statistics.median(ours))
            floors.append(statistics.median(bare))
    return _summed_up(subjects, floors)


def process_ratio(subject: Sequence[str], floor: Sequence[str], effort: Effort) -> Ratio:
    """Do the same for two commands: the CPU time of a child process, user and system."""
    for command in (floor, subject):
        _child_cpu_ns(command)  # The first run writes bytecode and fills caches.
    floors: list[float] = []
    subjects: list[float] = []
    for _ in range(effort.process_rounds):
        floors.append(_child_cpu_ns(floor))
        subjects.append(_child_cpu_ns(subject))
    return _summed_up(subjects, floors)


def _summed_up(subjects: list[float], floors: list[float]) -> Ratio:
    quotients = [subject / floor for subject, floor in zip(subjects, floors, strict=True)]
    return Ratio(
        statistics.median(quotients),
        *_most_of(quotients),
        statistics.median(subjects),
        statistics.median(floors),
        _most_of(subjects),
    )


def _most_of(values: list[float]) -> tuple[float, float]:
    """Return the range that holds eight of ten values."""
    ordered, last = sorted(values), len(values) - 1
    return ordered[round(last * 0.1)], ordered[round(last * 0.9)]


def _repeats(work: Work, turn_s: float, clock: Clock) -> int:
    """Return how often `run` must be called to fill a turn. Finding out also warms up."""
    repeats = 1
    while True:
        spent = _spent_ns(work, repeats, clock) * work.operations * repeats / 1e9
        if spent >= turn_s:
            return repeats
        repeats = max(repeats * 2, int(repeats * turn_s / spent)) if spent > 0 else repeats * 2


def _spent_ns(work: Work, repeats: int, clock: Clock) -> float:
    run, rest, resting = work.run, work.rest, 0
    start = clock()
    for _ in range(repeats):
        run()
        if rest is not None:
            ended = clock()
            rest()
            resting += clock() - ended
    return max(clock() - start - resting, 1) / (repeats * work.operations)


def _child_cpu_ns(command: Sequence[str]) -> float:
    """Return the CPU time of one child process and discard its output. Raise if it fails: the bench is broken then."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    nowhere = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_WRONLY, 0) for stream in (1, 2)]
    pid = os.posix_spawn(command[0], command, environment, file_actions=nowhere)
    _, status, used = os.wait4(pid, 0)
    if status:
        raise RuntimeError(f"{' '.join(command)} ended with status {status}")
    return (used.ru_utime + used.ru_stime) * 1e9


@contextmanager
def _no_collector() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
