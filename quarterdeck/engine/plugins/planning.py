"""Planning: the agent says what it will do, as a checklist, before it does it; the plan then follows the work.

A prompt that is long enough is asked for a checklist first. The reply's checklist becomes the plan (`plan_generated`), and
every later reply that tells the checklist again moves its steps. An agent that does not make one is asked once more, and
then left alone.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from quarterdeck.engine.model import Message
from quarterdeck.engine.plan import caught_up, parsed
from quarterdeck.engine.plugins.base import Answers, Context, Emit, Intervene, InvalidPluginOption, Plugin
from quarterdeck.events import Json, Notice, Plan, PlanGenerated

_FIRST = (
    "Before you do anything: write your plan as a checklist, one step a line, each beginning with '- [ ] '. "
    "Tell the checklist again when steps change: [~] begun, [x] done, [!] failed, [-] skipped."
)
_AGAIN = "There is no checklist in your reply. Write the plan, one step a line, each beginning with '- [ ] '."
_GO_ON = "Good. Now carry out the plan, step by step."


class _State(Struct, frozen=True, omit_defaults=True):
    """`awaited` counts the replies that may still bring the plan."""

    awaited: int = 0
    plan: Plan | None = None


class Planning(Plugin):
    """With `plan_first` prompts of at least `shortest` characters are asked for a plan, `attempts` times at most. Without
    it, a checklist that the agent writes by itself is its plan."""

    name = "planning"
    priority = 200

    def __init__(self, *, plan_first: bool = True, shortest: int = 20, attempts: int = 2) -> None:
        if attempts < 1:
            raise InvalidPluginOption(
                self.name, "attempts", "there is at least one", "Use plan_first=False to ask for none."
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
        return Intervene(_FIRST)

    def after_response(self, message: Message, context: Context) -> Answers:
        if context.agent_path:  # a sub-agent's checklist is not the plan
            return None
        told = parsed(message.text)
        if self.state.awaited:
            return self._missing() if told is None else self._made(told, message, context)
        return None if told is None else self._followed(told)

    def _made(self, told: Plan, message: Message, context: Context) -> Answers:
        self.state = _State(plan=told)
        event = Emit(PlanGenerated(plan=told))
        is_at_work = bool(message.calls) or context.mode == "plan"
        return event if is_at_work else (event, Intervene(_GO_ON))

    def _missing(self) -> Answers:
        left = self.state.awaited - 1
        self.state = replace(self.state, awaited=left)
        if left:
            return Intervene(_AGAIN)
        return Emit(
            Notice(text=f"No plan after {self.attempts} attempts; the agent goes on without.", source=self.name)
        )

    def _followed(self, told: Plan) -> Answers:
        plan = told if self.state.plan is None else caught_up(self.state.plan, told)
        if plan == self.state.plan:
            return None
        self.state = replace(self.state, plan=plan)
        return Emit(PlanGenerated(plan=plan))
