"""Track Claude Code's sub-agents and its work in the background.

A sub-agent is identified by its agent_id, which is also the id of its task. Its events carry a path: the agents that
started one another, outermost first. Hooks name only the agent itself, so its parent is taken from the Agent call that
was open at that time. Sub-agents run in the background unless their call says otherwise; a shell does if its call says so.
"""

from __future__ import annotations

from typing import Any

from quarterdeck import events as ev
from quarterdeck.events import Json
from quarterdeck.harness.base import Object, is_object, list_of, object_of, text_of
from quarterdeck.harness.claude import tables
from quarterdeck.harness.claude.session import ClaudeSession
from quarterdeck.harness.tracker import AgentPath


class Subagents:
    """The sub-agents and background tasks of one session."""

    def __init__(self, session: ClaudeSession) -> None:
        self.tracker = session.tracker
        self.reset()

    def reset(self) -> None:
        self._paths: dict[str, AgentPath] = {}
        #: Ids of the sub-agents that work now, in the order they started.
        self.working: dict[str, None] = {}
        #: Agent calls whose sub-agent isn't known yet → the path of the agent that called.
        self._spawning: dict[str, AgentPath] = {}
        #: Agent calls → the id of the sub-agent that they started.
        self._started_by: dict[str, str] = {}

    # --- whose events

    def note_spawn(self, call_id: str, path: AgentPath) -> None:
        """Remember a call that starts a sub-agent."""
        if call_id not in self._started_by:
            self._spawning[call_id] = path

    def forget_spawn(self, call_id: str) -> None:
        """Forget a call that ended, whether or not it started a sub-agent."""
        self._spawning.pop(call_id, None)

    def path_of(self, agent_id: str, call_id: str = "") -> AgentPath:
        """Return the path of an agent. `call_id` is the call that started it, if that is known."""
        agent_id = agent_id or self._started_by.get(call_id) or call_id
        known = self._paths.get(agent_id)
        if known is not None:
            return known
        call_id = call_id or next(iter(self._spawning), "")
        path = (*self._spawning.pop(call_id, ()), agent_id)
        self._paths[agent_id] = path
        if call_id:
            self._started_by[call_id] = agent_id
        return path

    def path_in(self, line: Object) -> AgentPath:
        """Return the path of the agent that a line of the stream belongs to."""
        agent_id, call_id = text_of(line, "agent_id"), text_of(line, "parent_tool_use_id")
        return self.path_of(agent_id, call_id) if agent_id or call_id else ()

    def _call_of(self, agent_id: str) -> str:
        return next((call_id for call_id, started in self._started_by.items() if started == agent_id), "")

    # --- sub-agents

    def start(self, agent_id: str, title: str = "", call_id: str = "") -> None:
        """Record that a sub-agent works."""
        path = self.path_of(agent_id, call_id)
        if agent_id in self.working:
            return
        self.working[agent_id] = None
        self.tracker.emit(
            ev.SubagentStart(
                child_sid=agent_id,
                description=title,
                call_id=call_id or self._call_of(agent_id),
                turn_id=self.tracker.turn_id or None,
                agent_path=path[:-1],
            )
        )

    def end(self, agent_id: str, ok: bool = True, result: Json = None) -> None:
        """Record that a sub-agent ended, and close everything that it had open."""
        path = self._paths.get(agent_id, (agent_id,))
        self.tracker.close_subagent(path)
        if agent_id in self.working:
            del self.working[agent_id]
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

    def end_with_turn(self, ok: bool) -> None:
        """End the sub-agents that don't run in the background."""
        for agent_id in list(self.working):
            if agent_id not in self.tracker.background:
                self.end(agent_id, ok)

    # --- background tasks, which are sub-agents and shells

    def start_task(self, task_id: str, kind: str, title: str) -> None:
        """Record that a task continues in the background."""
        is_agent = "agent" in kind
        if is_agent:
            self.start(task_id, title)
        self.tracker.start_background("subagent" if is_agent else "shell", task_id, title)

    def end_task(self, task_id: str, ok: bool | None, result: Json = None) -> None:
        if task_id in self.working:
            self.end(task_id, ok is not False, result)
        else:
            self.tracker.end_background(task_id, ok)

    def sync_tasks(self, tasks: list[Any]) -> None:
        """Apply the complete list of background tasks: those that aren't in it are over."""
        listed: dict[str, Object] = {}
        for task in map(object_of, tasks):
            task_id = text_of(task, "id", "task_id")
            if task_id and text_of(task, "status") not in tables.TASK_ENDS:
                listed[task_id] = task
        for task_id in list(self.tracker.background):
            if task_id not in listed:
                self.end_task(task_id, None)
        for task_id, task in listed.items():
            self.start_task(task_id, text_of(task, "type", "task_type"), text_of(task, "description", "command"))

    def read_response(self, args: Json, response: Json) -> None:
        """Record what a finished call left running in the background, or the sub-agent that it waited for."""
        fields = object_of(response)
        agent_id, shell_id = text_of(fields, "agentId"), text_of(fields, "backgroundTaskId")
        if shell_id:
            self.start_task(shell_id, "shell", text_of(object_of(args), "description", "command"))
        elif agent_id and (fields.get("isAsync") is True or text_of(fields, "status") == "async_launched"):
            self.start_task(agent_id, "agent", text_of(fields, "description"))
        elif agent_id in self.working and agent_id not in self.tracker.background:
            self.end(agent_id, result=joined_texts(list_of(fields, "content")) or None)

    def read_notification(self, prompt: str) -> None:
        """End the task that a notification prompt reports as over."""
        task_id, status = _element(prompt, "task-id"), _element(prompt, "status")
        if task_id and status in tables.TASK_ENDS:
            self.end_task(task_id, tables.TASK_ENDS[status])


def _element(text: str, name: str) -> str:
    """Return the content of the first XML element of this name, which has no attributes."""
    _, opened, rest = text.partition(f"<{name}>")
    content, closed, _ = rest.partition(f"</{name}>")
    return content.strip() if opened and closed else ""


def joined_texts(blocks: list[Any]) -> str:
    """Return the texts of a list of content blocks, one per line."""
    texts = [text_of(block, "text") for block in blocks if is_object(block)]
    return "\n".join(text for text in texts if text)
