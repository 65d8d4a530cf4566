"""Sub-agents: the same loop with a path, in the parent's log. A child shares what its parent has, not what it said."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from quarterdeck import events as ev
from quarterdeck.engine.conversation import EMPTY
from quarterdeck.engine.model import ModelError
from quarterdeck.engine.options import SubAgent
from quarterdeck.engine.subscription import child_of
from quarterdeck.engine.tools.base import Outcome
from quarterdeck.engine.turn import Prompt, Turn
from quarterdeck.errors import QuarterdeckError

if TYPE_CHECKING:
    from quarterdeck.engine.runtime import Core

#: The tool that starts sub-agents: a child does not have it.
SPAWNER = "task"
_INHERITS = SubAgent()


async def delegated(parent: Turn, call_id: str, description: str, prompt: str, kind: str) -> Outcome:
    """The child's last text, or why there is none. Whatever happens in it, the parent goes on."""
    core = parent.core
    if parent.path:
        return Outcome("a sub-agent cannot start sub-agents of its own", ok=False)
    if kind and kind not in core.options.subagents:
        known = ", ".join(core.options.subagents) or "none"
        return Outcome(f"there is no kind of sub-agent {kind}; known are: {known}", ok=False)
    try:
        child = _child(parent, call_id, prompt, core.options.subagents.get(kind, _INHERITS))
    except QuarterdeckError as error:
        return Outcome(f"the sub-agent could not be started: {error.message}", ok=False)
    outcome = Outcome("the sub-agent was ended before it was done", ok=False)
    parent.tell(ev.SubagentStart, child_sid=child.path[-1], description=description, call_id=call_id)
    try:
        outcome = await _worked(core, child)
    finally:
        _gone(core, child)
        if child.usage is not None:
            parent.add_usage(child.usage)
        parent.tell(ev.SubagentEnd, child_sid=child.path[-1], result=outcome.text, ok=outcome.ok)
    return outcome


def _child(parent: Turn, call_id: str, prompt: str, kind: SubAgent) -> Turn:
    core = parent.core
    path = (*parent.path, child_of(call_id, parent.rounds))
    tools = core.tools if kind.tools is None else {tool.name: tool for tool in kind.tools}
    model = (parent.model, parent.own_model_name, parent.model_name)
    if kind.model is not None:
        model = (*core.resolved(kind.model, core.provider_opts), kind.model)
    child = Turn(
        core,
        Prompt(prompt, core.next_id("p"), source="agent"),
        path,
        model=model,
        tools={name: tool for name, tool in tools.items() if name != SPAWNER},
        system_prompt=kind.system_prompt,
        max_turns=kind.max_turns,
    )
    core.journal.conversations[path] = EMPTY
    core.children = {**(core.children or {}), path: child}
    return child


def _gone(core: Core, child: Turn) -> None:
    core.journal.conversations.pop(child.path, None)
    core.children = {path: one for path, one in (core.children or {}).items() if path != child.path}


async def _worked(core: Core, child: Turn) -> Outcome:
    """In a task of its own, so that it can be ended without its parent."""
    child.open()
    limit = core.options.subagent_s
    child.task = asyncio.get_running_loop().create_task(child.rounds_of_work())
    try:
        async with asyncio.timeout(limit):
            await asyncio.wait((child.task,))
    except TimeoutError:
        await _cut(child, f"the sub-agent took longer than {limit:g} s")
        return Outcome(f"the sub-agent took longer than {limit:g} s and was ended", ok=False)
    except asyncio.CancelledError:
        await _cut(child, "the parent was ended")
        raise
    return _outcome(child)


async def _cut(child: Turn, reason: str) -> None:
    assert child.task is not None
    child.say(*child.interrupted("all", reason), child.made(ev.AgentAbort, reason=reason))
    child.task.cancel()
    left = child.left()
    if left:
        await asyncio.wait(left)


def _outcome(child: Turn) -> Outcome:
    """Its last text; or what went wrong, which is not the parent's failure."""
    assert child.task is not None
    if child.task.cancelled():
        child.say(*child.interrupted("all", "a person ended it"), child.made(ev.AgentAbort, reason="a person ended it"))
        return Outcome("the sub-agent was ended: a person refused what it wanted to do", ok=False)
    error = child.task.exception()
    if error is not None:
        said = error.message if isinstance(error, QuarterdeckError) else f"{type(error).__name__}: {error}"
        kind = error.kind if isinstance(error, ModelError) and error.kind != "overflow" else "internal"
        failed = child.made(ev.TurnFailed, kind=kind, message=said)
        child.say(*child.interrupted("all", said), failed, child.made(ev.AgentEnd, outcome="failed", usage=child.usage))
        return Outcome(f"the sub-agent failed: {said}", ok=False)
    child.tell(ev.AgentEnd, usage=child.usage)
    return Outcome(child.texts[-1] if child.texts else "the sub-agent said nothing")
