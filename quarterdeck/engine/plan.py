"""A plan: a checklist with states. Pure; what cannot be is told as a value, never raised.

A step is pending until it is begun or skipped, and begun until it is completed or failed. Nothing leads back: a step that
has to be done again is a new step.

    - [ ] pending   - [~] in progress   - [x] completed   - [!] failed   - [-] skipped
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from quarterdeck.events import Plan, PlanStep

Status: TypeAlias = Literal["pending", "in_progress", "completed", "failed", "skipped"]

MOVES: dict[Status, tuple[Status, ...]] = {
    "pending": ("in_progress", "skipped"),
    "in_progress": ("completed", "failed"),
    "completed": (),
    "failed": (),
    "skipped": (),
}
#: The mark of each state in a checklist.
MARKS: dict[str, Status] = {
    " ": "pending",
    "~": "in_progress",
    ">": "in_progress",
    "x": "completed",
    "X": "completed",
    "!": "failed",
    "-": "skipped",
}
_LINE = re.compile(r"^[ \t]*(?:[-*+]|\d+[.)])[ \t]+\[([ ~>xX!-])\][ \t]+(\S.*?)[ \t]*$", re.MULTILINE)
_MOST_STEPS = 100


class PlanFault(Struct, frozen=True):
    """Why a step did not move. The plan is as it was."""

    code: Literal["no_such_step", "illegal_move"]
    message: str


def parsed(text: str) -> Plan | None:
    """The checklist in this text; None when there is none."""
    found = _LINE.findall(text)[:_MOST_STEPS]
    if not found:
        return None
    steps = (
        PlanStep(id=str(number), description=said, status=MARKS[mark]) for number, (mark, said) in enumerate(found, 1)
    )
    return Plan(steps=tuple(steps), text=text)


def moved(plan: Plan, step_id: str, to: Status) -> Plan | PlanFault:
    """The plan with one step in another state, or why it cannot be."""
    for place, step in enumerate(plan.steps):
        if step.id == step_id:
            if to not in MOVES[step.status]:
                return PlanFault("illegal_move", _illegal(step, to))
            return _with(plan, place, to)
    return PlanFault("no_such_step", f"no step {step_id!r} in this plan of {len(plan.steps)}")


def _illegal(step: PlanStep, to: str) -> str:
    legal = " or ".join(MOVES[step.status]) or "nothing: it is over"
    return f"step {step.id!r} is {step.status} and cannot become {to}; it can become {legal}"


def _with(plan: Plan, place: int, to: Status) -> Plan:
    steps = (*plan.steps[:place], replace(plan.steps[place], status=to), *plan.steps[place + 1 :])
    return replace(plan, steps=steps)


def caught_up(plan: Plan, told: Plan) -> Plan:
    """The plan after its checklist was told again. What would go back is not believed; a step done at once was begun.

    Steps are known by what they say. A checklist that shares none with the plan is another plan.
    """
    places = {_key(step): place for place, step in enumerate(plan.steps)}
    if not any(_key(step) in places for step in told.steps):
        return told
    for step in told.steps:
        place = places.get(_key(step))
        if place is not None:
            plan = _reached(plan, place, step.status)
    return plan


def _reached(plan: Plan, place: int, to: Status) -> Plan:
    now = plan.steps[place].status
    if to in MOVES[now]:
        return _with(plan, place, to)
    if now == "pending" and to in MOVES["in_progress"]:
        return _with(plan, place, to)
    return plan


def _key(step: PlanStep) -> str:
    return " ".join(step.description.casefold().split())
