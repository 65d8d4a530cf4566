"""Planning: ask the agent for a plan before it works, and follow the plan while it works.

The plan is a checklist in the agent's reply. A new checklist is written as `plan_generated`, and later replies that repeat
the checklist move its steps. If the agent writes no checklist, it is asked once more and then continues without a plan.

A step starts as pending. It can be begun or skipped, and a step that was begun can be completed or failed. No step moves
back: work that has to be done again is a new step.

    - [ ] pending   - [~] in progress   - [x] completed   - [!] failed   - [-] skipped
"""

from __future__ import annotations

import re
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from quarterdeck.engine.model import Message
from quarterdeck.engine.plugins.base import Answers, Context, Emit, Intervene, InvalidPluginOption, Plugin
from quarterdeck.events import Json, Notice, Plan, PlanGenerated, PlanStep

_ASK = (
    "Before you start, write your plan as a checklist: one step per line, each beginning with '- [ ] '. "
    "Repeat the checklist when the state of a step changes: [~] in progress, [x] completed, [!] failed, [-] skipped."
)
_ASK_AGAIN = "Your reply has no checklist. Write the plan: one step per line, each beginning with '- [ ] '."
_PROCEED = "Good. Now carry out the plan step by step."

# --------------------------------------------------------------------------------------------- plans as checklists

Status: TypeAlias = Literal["pending", "in_progress", "completed", "failed", "skipped"]

#: The states that each state may move to.
MOVES: dict[Status, tuple[Status, ...]] = {
    "pending": ("in_progress", "skipped"),
    "in_progress": ("completed", "failed"),
    "completed": (),
    "failed": (),
    "skipped": (),
}
#: The state for each mark in a checklist.
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
_MAX_STEPS = 100


class PlanFault(Struct, frozen=True):
    """Why a step wasn't moved."""

    code: Literal["no_such_step", "illegal_move"]
    message: str


def parse_plan(text: str) -> Plan | None:
    """Return the checklist in a text, or None if it has none."""
    lines = _LINE.findall(text)[:_MAX_STEPS]
    if not lines:
        return None
    steps = (
        PlanStep(id=str(number), description=description, status=MARKS[mark])
        for number, (mark, description) in enumerate(lines, 1)
    )
    return Plan(steps=tuple(steps), text=text)


def move_step(plan: Plan, step_id: str, status: Status) -> Plan | PlanFault:
    """Return the plan with one step in another state, or why that isn't possible."""
    for index, step in enumerate(plan.steps):
        if step.id == step_id:
            if status not in MOVES[step.status]:
                allowed = " or ".join(MOVES[step.status]) or "nothing else"
                message = f"step {step.id!r} is {step.status} and can't become {status}; it can become {allowed}"
                return PlanFault("illegal_move", message)
            return _with_status(plan, index, status)
    return PlanFault("no_such_step", f"the plan has {len(plan.steps)} steps and no step {step_id!r}")


def update_plan(plan: Plan, checklist: Plan) -> Plan:
    """Return the plan after the agent repeated its checklist.

    Steps are matched by their description. A move back is ignored; a pending step that is now completed or failed was in
    progress in between. A checklist that shares no step with the plan is a new plan.
    """
    indexes = {_key(step): index for index, step in enumerate(plan.steps)}
    if not any(_key(step) in indexes for step in checklist.steps):
        return checklist
    for step in checklist.steps:
        index = indexes.get(_key(step))
        if index is None:
            continue
        current = plan.steps[index].status
        if step.status in MOVES[current] or (current == "pending" and step.status in MOVES["in_progress"]):
            plan = _with_status(plan, index, step.status)
    return plan


def _with_status(plan: Plan, index: int, status: Status) -> Plan:
    steps = (*plan.steps[:index], replace(plan.steps[index], status=status), *plan.steps[index + 1 :])
    return replace(plan, steps=steps)


def _key(step: PlanStep) -> str:
    return " ".join(step.description.casefold().split())


# --------------------------------------------------------------------------------------------------------- the plugin


class _State(Struct, frozen=True, omit_defaults=True):
    #: Number of further replies that may bring the plan.
    awaited: int = 0
    plan: Plan | None = None


class Planning(Plugin):
    """Ask for a plan as a checklist and follow it.

    With `plan_first`, prompts of at least `shortest` characters are asked for a plan, at most `attempts` times. Without it,
    a checklist that the agent writes on its own becomes the plan.
    """

    name = "planning"
    priority = 200

    def __init__(self, *, plan_first: bool = True, shortest: int = 20, attempts: int = 2) -> None:
        if attempts < 1:
            raise InvalidPluginOption(
                self.name, "attempts", "at least one attempt is needed", "Use plan_first=False to ask for no plan."
            )
        self.plan_first = plan_first
        self.shortest = shortest
        self.attempts = attempts
        self.state: Any = _State()

    def restore(self, state: Json) -> None:
        self.state = msgspec.convert(state, _State)

    def before_prompt(self, text: str, context: Context) -> Answers:
        if not self.plan_first or context.agent_path or len(text.strip()) < self.shortest:
            return None
        self.state = _State(awaited=self.attempts)
        return Intervene(_ASK)

    def after_response(self, message: Message, context: Context) -> Answers:
        if context.agent_path:
            # The checklist of a sub-agent isn't the session's plan.
            return None
        checklist = parse_plan(message.text)
        if self.state.awaited:
            return self._ask_again() if checklist is None else self._accept(checklist, message, context)
        return None if checklist is None else self._follow(checklist)

    def _accept(self, plan: Plan, message: Message, context: Context) -> Answers:
        self.state = _State(plan=plan)
        event = Emit(PlanGenerated(plan=plan))
        # In plan mode the plan is the result, so don't ask the agent to carry it out.
        needs_no_push = bool(message.calls) or context.mode == "plan"
        return event if needs_no_push else (event, Intervene(_PROCEED))

    def _ask_again(self) -> Answers:
        awaited = self.state.awaited - 1
        self.state = replace(self.state, awaited=awaited)
        if awaited:
            return Intervene(_ASK_AGAIN)
        text = f"No plan after {self.attempts} attempts; continuing without one."
        return Emit(Notice(text=text, source=self.name))

    def _follow(self, checklist: Plan) -> Answers:
        plan = checklist if self.state.plan is None else update_plan(self.state.plan, checklist)
        if plan == self.state.plan:
            return None
        self.state = replace(self.state, plan=plan)
        return Emit(PlanGenerated(plan=plan))
