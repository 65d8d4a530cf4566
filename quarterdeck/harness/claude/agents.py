"""Sub-agents and work in the background.

A sub-agent is named by its agent_id, which is also its task's id. Its events go under a path: the agents that called one
another, outermost first. Hooks name only the agent, so a parent is known from the Agent call that was open at that time.
Sub-agents run in the background unless they are told not to; a shell does when its call says so.
"""

from __future__ import annotations

from typing import Any, cast

from quarterdeck import events as ev
from quarterdeck.events import Json
from quarterdeck.harness.base import Object, list_of, object_of, text_of
from quarterdeck.harness.claude import tables
from quarterdeck.harness.claude.core import Core
from quarterdeck.harness.tracker import AgentPath


class Agents(Core):
    """Who works for the main agent."""

    def new_process(self) -> None:
        Core.new_process(self)
        self.paths: dict[str, AgentPath] = {}
        #: sub-agents at work → the call that started them
        self.live: dict[str, str] = {}
        #: Agent calls whose sub-agent is not known yet → the path of the caller
        self.spawning: dict[str, AgentPath] = {}
        self.callers: dict[str, str] = {}

    def spawns(self, call_id: str, path: AgentPath) -> None:
        """A call that starts a sub-agent."""
        if call_id not in self.callers:
            self.spawning[call_id] = path

    def path_of(self, agent_id: str, call_id: str = "") -> AgentPath:
        """The path of an agent. `call_id` is the call that started it, where that is told."""
        agent_id = agent_id or self.callers.get(call_id) or call_id
        known = self.paths.get(agent_id)
        if known is not None:
            return known
        call_id = call_id or next(iter(self.spawning), "")
        path = (*self.spawning.pop(call_id, ()), agent_id)
        self.paths[agent_id] = path
        if call_id:
            self.callers[call_id] = agent_id
        return path

    def path_in(self, found: Object) -> AgentPath:
        """The agent that a line of the stream belongs to; empty for the main one."""
        agent, parent = found.get("agent_id"), found.get("parent_tool_use_id")
        if not agent and not parent:
            return ()
        agent_id, call_id = text_of(found, "agent_id"), text_of(found, "parent_tool_use_id")
        return self.path_of(agent_id, call_id) if agent_id or call_id else ()

    def agent_begins(self, agent_id: str, title: str = "", call_id: str = "") -> None:
        """A sub-agent is at work."""
        path = self.path_of(agent_id, call_id)
        if agent_id in self.live:
            return
        self.live[agent_id] = call_id
        self.tracker.emit(
            ev.SubagentStart(
                child_sid=agent_id,
                description=title,
                call_id=call_id or self.call_of(agent_id),
                turn_id=self.tracker.turn_id or None,
                agent_path=path[:-1],
            )
        )

    def call_of(self, agent_id: str) -> str:
        """The call that started this agent."""
        return next((call_id for call_id, name in self.callers.items() if name == agent_id), "")

    def agent_ends(self, agent_id: str, ok: bool = True, result: Json = None) -> None:
        """A sub-agent is done; nothing of it is open any more."""
        path = self.paths.get(agent_id, (agent_id,))
        self.tracker.close_subagent(path)
        if self.live.pop(agent_id, None) is not None:
            self.tracker.emit(
                ev.SubagentEnd(
                    child_sid=agent_id,
                    result=result,
                    ok=ok,
                    turn_id=self.tracker.turn_id or None,
                    agent_path=path[:-1],
                )
            )
        self.tracker.end_background(agent_id, ok)

    def close_work(self, ok: bool | None = None) -> None:
        """Sub-agents that are not in the background end with the turn."""
        Core.close_work(self, ok)
        for agent_id in list(self.live) if self.live else ():
            if agent_id not in self.tracker.background:
                self.agent_ends(agent_id, ok is not False)

    # --- tasks, which are both sub-agents and shells

    def task_runs(self, task_id: str, kind: str, title: str) -> None:
        """A task goes on in the background."""
        is_agent = "agent" in kind
        if is_agent:
            self.agent_begins(task_id, title)
        self.tracker.start_background("subagent" if is_agent else "shell", task_id, title)

    def task_over(self, task_id: str, ok: bool | None, result: Json = None) -> None:
        """A task is over."""
        if task_id in self.live:
            self.agent_ends(task_id, ok is not False, result)
        else:
            self.tracker.end_background(task_id, ok)

    def tasks_are(self, tasks: list[Any]) -> None:
        """The whole list of what runs in the background: what is not in it is over."""
        listed: dict[str, Object] = {}
        for task in map(object_of, tasks):
            name = text_of(task, "id", "task_id")
            if name and text_of(task, "status") not in tables.TASK_ENDS:
                listed[name] = task
        for task_id in list(self.tracker.background):
            if task_id not in listed:
                self.task_over(task_id, None)
        for task_id, task in listed.items():
            self.task_runs(task_id, text_of(task, "type", "task_type"), text_of(task, "description", "command"))

    def launched(self, args: Json, response: Json) -> None:
        """What a finished call left running, or brought to its end."""
        found = object_of(response)
        agent_id = text_of(found, "agentId") if "agentId" in found else ""
        shell = text_of(found, "backgroundTaskId") if "backgroundTaskId" in found else ""
        if shell:
            title = text_of(object_of(args), "description", "command")
            self.task_runs(shell, "shell", title)
        elif agent_id and (found.get("isAsync") is True or text_of(found, "status") == "async_launched"):
            self.task_runs(agent_id, "agent", text_of(found, "description"))
        elif agent_id and agent_id in self.live and agent_id not in self.tracker.background:
            self.agent_ends(agent_id, result=texts_in(list_of(found, "content")) or None)

    def notified(self, text: str) -> None:
        """A notification that wakes the agent says which task is over."""
        task_id = tagged(text, "task-id") if "<task-id>" in text else ""
        status = tagged(text, "status") if task_id else ""
        if task_id and status in tables.TASK_ENDS:
            self.task_over(task_id, tables.TASK_ENDS[status])


def tagged(text: str, name: str) -> str:
    """The content of an XML element without attributes."""
    _, opened, rest = text.partition(f"<{name}>")
    if not opened:
        return ""
    content, closed, _ = rest.partition(f"</{name}>")
    return content.strip() if closed else ""


def texts_in(parts: list[Any]) -> str:
    """The texts of a list of content blocks, joined."""
    found = [text_of(cast(Object, part), "text") for part in parts if isinstance(part, dict)]
    return "\n".join(text for text in found if text)
