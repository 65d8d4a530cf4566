"""Run sub-agents: turns with an agent path that write to the parent's log.

A sub-agent uses the parent's model, tools and options unless its kind says otherwise. It doesn't see the parent's messages.
"""

from __future__ import annotations

import asyncio

from quarterdeck import events as ev
from quarterdeck.engine.conversation import EMPTY
from quarterdeck.engine.model import ModelError
from quarterdeck.engine.options import SubAgent
from quarterdeck.engine.subscription import child_of
from quarterdeck.engine.tools.base import Outcome
from quarterdeck.engine.turn import Prompt, Turn, describe_error
from quarterdeck.errors import QuarterdeckError

#: Name of the tool that starts sub-agents. Sub-agents don't get it.
SPAWNER = "task"
_INHERIT_ALL = SubAgent()
_ENDED_BY_PERSON = "a person ended it"


async def run_subagent(parent: Turn, call_id: str, description: str, prompt: str, kind: str) -> Outcome:
    """Run a sub-agent for a tool call and return its last text, or why it failed. Its failure never ends the parent."""
    kinds = parent.runtime.options.subagents
    if parent.path:
        return Outcome("a sub-agent can't start sub-agents", ok=False)
    if kind and kind not in kinds:
        return Outcome(f"unknown kind of sub-agent: {kind}. Known kinds: {', '.join(kinds) or 'none'}", ok=False)
    try:
        child = _create_child(parent, call_id, prompt, kinds.get(kind, _INHERIT_ALL))
    except QuarterdeckError as error:
        return Outcome(f"the sub-agent couldn't be started: {error.message}", ok=False)
    outcome = Outcome("the sub-agent was ended before it finished", ok=False)
    parent.record(ev.SubagentStart, child_sid=child.path[-1], description=description, call_id=call_id)
    try:
        outcome = await _run_child(child)
    finally:
        _remove_child(child)
        if child.usage is not None:
            parent.add_usage(child.usage)
        parent.record(ev.SubagentEnd, child_sid=child.path[-1], result=outcome.text, ok=outcome.ok)
    return outcome


def _create_child(parent: Turn, call_id: str, prompt: str, kind: SubAgent) -> Turn:
    runtime = parent.runtime
    path = (*parent.path, child_of(call_id, parent.rounds))
    tools = runtime.tools if kind.tools is None else {tool.name: tool for tool in kind.tools}
    child = Turn(
        runtime,
        Prompt(prompt, runtime.next_id("p"), source="agent"),
        path,
        model=parent.model if kind.model is None else runtime.select_model(kind.model),
        tools={name: tool for name, tool in tools.items() if name != SPAWNER},
        system_prompt=kind.system_prompt,
        max_turns=kind.max_turns,
    )
    runtime.journal.conversations[path] = EMPTY
    runtime.children[path] = child
    return child


def _remove_child(child: Turn) -> None:
    child.runtime.journal.conversations.pop(child.path, None)
    child.runtime.children.pop(child.path, None)


async def _run_child(child: Turn) -> Outcome:
    """Run the child in a task of its own, so that it can be cancelled without the parent's call."""
    child.begin()
    limit = child.runtime.options.subagent_timeout
    child.task = asyncio.get_running_loop().create_task(child.run_rounds())
    try:
        async with asyncio.timeout(limit):
            await asyncio.wait((child.task,))
    except TimeoutError:
        await _cancel_child(child, f"the sub-agent took longer than {limit:g} s")
        return Outcome(f"the sub-agent took longer than {limit:g} s and was ended", ok=False)
    except asyncio.CancelledError:
        await _cancel_child(child, "the parent's call was ended")
        raise
    return _close_child(child)


async def _cancel_child(child: Turn, reason: str) -> None:
    assert child.task is not None
    child.write(*child.interrupt("all", reason), child.body(ev.AgentAbort, reason=reason))
    child.task.cancel()
    unwinding = child.unwinding()
    if unwinding:
        await asyncio.wait(unwinding)


def _close_child(child: Turn) -> Outcome:
    """Write the event that closes a child whose task has ended, and return the outcome of the parent's call."""
    assert child.task is not None
    if child.task.cancelled():
        # A person rejected one of its calls without resuming it (approvals.py).
        child.write(*child.interrupt("all", _ENDED_BY_PERSON), child.body(ev.AgentAbort, reason=_ENDED_BY_PERSON))
        return Outcome("the sub-agent was ended: a person rejected one of its tool calls", ok=False)
    error = child.task.exception()
    if error is not None:
        message = describe_error(error)
        kind = error.kind if isinstance(error, ModelError) and error.kind != "overflow" else "internal"
        child.write(
            *child.interrupt("all", message),
            child.body(ev.TurnFailed, kind=kind, message=message),
            child.body(ev.AgentEnd, outcome="failed", usage=child.usage),
        )
        return Outcome(f"the sub-agent failed: {message}", ok=False)
    child.record(ev.AgentEnd, usage=child.usage)
    return Outcome(child.texts[-1] if child.texts else "the sub-agent returned no text")
