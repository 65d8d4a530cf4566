"""The items of a turn: what was said, thought, run and changed, as `item/started`, deltas and `item/completed` tell it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from quarterdeck import events as ev
from quarterdeck.events import Block, HistoryMessage, Image, Plan
from quarterdeck.harness.base import Object, int_of, list_of, object_of, text_of
from quarterdeck.harness.codex import names
from quarterdeck.harness.codex.threads import Thread, Threads
from quarterdeck.harness.todos import todos_in

_Reader: TypeAlias = Callable[["Items", Thread, Object], None]
#: Raw reasoning is numbered apart from its summary.
_RAW = 1000


def words_of(content: list[Any]) -> str:
    """The text of a user's message."""
    parts = [object_of(part) for part in content]
    return "\n".join(text for part in parts if (text := text_of(part, "text")))


def images_of(content: list[Any]) -> tuple[Image, ...]:
    """The images of a user's message: a file, or a data address."""
    found: list[Image] = []
    for part in map(object_of, content):
        if text_of(part, "type") in ("image", "localImage"):
            address = text_of(part, "url")
            head, _, data = address.partition(";base64,")
            if data:
                found.append(Image(media_type=head.removeprefix("data:"), data=data))
            else:
                found.append(Image(media_type="", path=text_of(part, "path") or address))
    return tuple(found)


def reasoning_blocks(item: Object) -> tuple[Block, ...]:
    """A reasoning item, whole."""
    parts = [(place, text) for place, text in enumerate(list_of(item, "summary"))]
    parts += [(_RAW + place, text) for place, text in enumerate(list_of(item, "content"))]
    return tuple(
        Block(block=place, kind="thinking", text=text) for place, text in parts if isinstance(text, str) and text
    )


class Items:
    """One reader for each type of item, at its beginning and at its end."""

    def __init__(self, threads: Threads) -> None:
        self.threads = threads
        self.desk = threads.desk
        self.tracker = threads.tracker
        self._changes: dict[str, tuple[int, int]] = {}
        self._prompts: dict[str, None] = {}

    def reset(self) -> None:
        """Another process."""
        self._prompts.clear()

    def started(self, params: Object) -> bool:
        return self._read(params, _STARTED, Items.call_started)

    def completed(self, params: Object) -> bool:
        return self._read(params, _COMPLETED, Items.call_completed)

    def _read(self, params: Object, readers: dict[str, _Reader], call: _Reader) -> bool:
        item = object_of(params, "item")
        kind = text_of(item, "type")
        reader = readers.get(kind) or (call if kind in names.CALLS else None)
        thread = self.threads.heard(params)
        if reader is not None and thread is not None and text_of(item, "id") and not self.tracker.has_exited:
            reader(self, thread, item)
        return reader is not None

    def nothing(self, _thread: Thread, _item: Object) -> None:
        """Known, and its other half says it all."""

    # --- words

    def user_message(self, thread: Thread, item: Object) -> None:
        """The agent read a text: the turn's prompt, or one for the turn that runs already."""
        name = text_of(item, "id")
        if thread.path or name in self._prompts:
            return
        self._prompts[name] = None
        self.cut(thread)
        content = list_of(item, "content")
        text = words_of(content)
        self.desk.is_new_prompt("app", text)
        client = text_of(item, "clientId")
        ref = client if client in self.threads.steers else self._steer(text) if thread.prompted else ""
        thread.prompted = True
        if ref:
            del self.threads.steers[ref]
            self.tracker.emit(ev.SteeringApplied(refs=(ref,), count=1, turn_id=self.tracker.turn_id or None))
            self.threads.requested(thread)
        else:
            self.tracker.record_prompt(text, client or name, images=images_of(content))

    def _steer(self, text: str) -> str:
        return next((ref for ref, words in self.threads.steers.items() if words == text), "")

    def hook_prompt(self, thread: Thread, item: Object) -> None:
        """A hook put a text into the conversation."""
        fragments = [text_of(object_of(one), "text") for one in list_of(item, "fragments")]
        if not thread.path:
            self.tracker.record_prompt("\n".join(fragments), text_of(item, "id"), source="agent")

    def cut(self, thread: Thread, keep: bool = True) -> None:
        """A message that was being streamed will not go on: nobody says so, something else just begins."""
        if thread.message:
            self.tracker.abort_message(thread.message, keep, thread.path)
            thread.message = ""

    def speaks(self, thread: Thread) -> None:
        """The model speaks; after calls that means it was asked again."""
        if thread.request_due and not thread.path:
            self.threads.requested(thread)

    def message_started(self, thread: Thread, item: Object) -> None:
        name = text_of(item, "id")
        if thread.message != name:
            self.cut(thread)
        self.speaks(thread)
        thread.message = name
        self.tracker.add_text(name, 0, text_of(item, "text"), thread.path)

    def message_completed(self, thread: Thread, item: Object) -> None:
        name = text_of(item, "id")
        if thread.message == name:
            thread.message = ""
        self.tracker.finish_message(name, (Block(text=text_of(item, "text")),), path=thread.path)

    def plan_completed(self, thread: Thread, item: Object) -> None:
        """The plan that plan mode ends in."""
        self.message_completed(thread, item)
        if not thread.path:
            self.tracker.emit(
                ev.PlanGenerated(plan=Plan(text=text_of(item, "text")), turn_id=self.tracker.turn_id or None)
            )

    def reasoning_started(self, thread: Thread, item: Object) -> None:
        self.speaks(thread)
        for block in reasoning_blocks(item):
            self.tracker.add_thinking(text_of(item, "id"), block.block, block.text, thread.path)

    def reasoning_completed(self, thread: Thread, item: Object) -> None:
        blocks = reasoning_blocks(item)
        self.tracker.finish_message(text_of(item, "id"), blocks or None, path=thread.path)

    def review_entered(self, _thread: Thread, item: Object) -> None:
        self.tracker.add_notice(f"Review: {text_of(item, 'review')}", source="codex")

    def review_exited(self, thread: Thread, item: Object) -> None:
        """What a review found."""
        self.tracker.finish_message(text_of(item, "id"), (Block(text=text_of(item, "review")),), path=thread.path)

    # --- deltas

    def message_delta(self, params: Object) -> None:
        thread, name, delta = self.threads.heard(params), params.get("itemId"), params.get("delta")
        if (
            thread is not None
            and isinstance(name, str)
            and isinstance(delta, str)
            and name
            and not self.tracker.has_exited
        ):
            self.tracker.add_text(name, 0, delta, thread.path)

    def summary_delta(self, params: Object) -> None:
        self._think(params, int_of(params, "summaryIndex"))

    def reasoning_delta(self, params: Object) -> None:
        self._think(params, _RAW + int_of(params, "contentIndex"))

    def _think(self, params: Object, block: int) -> None:
        thread, name, delta = self.threads.heard(params), params.get("itemId"), params.get("delta")
        if (
            thread is not None
            and isinstance(name, str)
            and isinstance(delta, str)
            and name
            and not self.tracker.has_exited
        ):
            self.tracker.add_thinking(name, block, delta, thread.path)

    def output_delta(self, params: Object) -> None:
        thread, name, delta = self.threads.of(params), params.get("itemId"), params.get("delta")
        if thread is None or not isinstance(name, str) or not isinstance(delta, str):
            return
        if name in thread.shells:
            self.tracker.emit(ev.BashOutput(bash_id=name, delta=delta))
        else:
            self.tracker.add_output(name, delta)

    def progress(self, params: Object) -> None:
        """An MCP tool says how far it is."""
        thread, message = self.threads.of(params), text_of(params, "message")
        if thread is not None and message:
            self.tracker.add_output(text_of(params, "itemId"), message + "\n")

    # --- calls

    def call_started(self, thread: Thread, item: Object) -> None:
        name, shape = text_of(item, "id"), names.CALLS[text_of(item, "type")]
        if text_of(item, "source") == "userShell":
            thread.shells.add(name)
            self.tracker.emit(ev.BashStart(bash_id=name, command=names.plain_command(text_of(item, "command"))))
            return
        has_process = item.get("processId") is not None
        if has_process:
            thread.terminals.add(name)
        tool, args = names.call_name(item, shape), names.call_args(item, shape)
        if shape.name == names.EXEC and thread.waits_for_approval and not has_process:
            thread.held.append(name)
            self.tracker.open_call(name, tool, args, path=thread.path)
        else:
            self.desk.start_call(name, tool, args, thread.path)
        self._spawned(thread, item)

    def call_completed(self, thread: Thread, item: Object) -> None:
        name, shape = text_of(item, "id"), names.CALLS[text_of(item, "type")]
        thread.request_due = True
        thread.terminals.discard(name)
        if name in thread.held:
            thread.held.remove(name)
        tool = names.call_name(item, shape)
        if name in thread.shells:
            self._shell_ended(thread, item)
        elif text_of(item, "status") == names.DECLINED:
            self.desk.block_call(name, tool, names.DECLINED)
        else:
            thread.ran = True
            self._with_args(thread, item, shape)
            self.desk.end_call(name, tool, names.call_ok(item), names.call_result(item, shape), thread.path)
        self._spawned(thread, item)

    def _with_args(self, thread: Thread, item: Object, shape: names.Shape) -> None:
        """A call that is told only at its end is told whole."""
        if text_of(item, "id") not in self.tracker.calls and self.tracker.turn_id:
            name = names.call_name(item, shape)
            self.desk.start_call(text_of(item, "id"), name, names.call_args(item, shape), thread.path)

    def release(self, thread: Thread, call_id: str = "") -> None:
        """Calls that waited for an approval run now: one, or all that nothing is asked about any more."""
        asked = {gate.call_id for gate in self.tracker.gates.values()}
        for name in list(thread.held):
            if name == call_id or (not call_id and name not in asked):
                thread.held.remove(name)
                self.desk.start_call(name, names.EXEC, path=thread.path)

    def _shell_ended(self, thread: Thread, item: Object) -> None:
        name, code = text_of(item, "id"), item.get("exitCode")
        thread.shells.discard(name)
        self.tracker.emit(
            ev.BashEnd(
                bash_id=name,
                exit_code=code if isinstance(code, int) else None,
                output=text_of(item, "aggregatedOutput"),
                command=names.plain_command(text_of(item, "command")),
            )
        )

    # --- sub-agents

    def _spawned(self, thread: Thread, item: Object) -> None:
        """A collaboration call names the agents that it made."""
        if text_of(item, "tool") == "spawnAgent":
            for child in list_of(item, "receiverThreadIds"):
                if isinstance(child, str):
                    self.threads.child(child, thread, text_of(item, "prompt")[:60])

    def sub_agent_activity(self, thread: Thread, item: Object) -> None:
        """The parent's own word on a sub-agent: started is the call that made it, completed its end."""
        child, title, kind = text_of(item, "agentThreadId"), text_of(item, "agentPath"), text_of(item, "kind")
        self.threads.child(child, thread, title)
        if kind == "started" and not thread.path:
            self.desk.add_call(text_of(item, "id"), "spawn_agent", {"name": title}, True, title)
            thread.request_due = thread.ran = True
        elif kind in ("completed", "interrupted") and child in self.threads.by_id:
            self.threads.child_ends(self.threads.by_id[child], kind == "completed")

    # --- compaction, plans, diffs

    def compaction_started(self, thread: Thread, _item: Object) -> None:
        """Asked for by hand it is a turn of its own, in which nobody said anything."""
        if not thread.path:
            self.tracker.start_compaction("auto" if thread.prompted else "manual")

    def compaction_completed(self, thread: Thread, _item: Object) -> None:
        if not thread.path:
            thread.request_due = True
            self.tracker.end_compaction()

    def compacted(self, params: Object) -> None:
        """Older servers say it once, afterwards."""
        thread = self.threads.of(params)
        if thread is not None and not self.tracker.is_compacting and not thread.path:
            self.compaction_started(thread, {})
            self.tracker.end_compaction()

    def plan_updated(self, params: Object) -> None:
        thread = self.threads.heard(params)
        todos = todos_in(params.get("plan"))
        if thread is not None and not thread.path and todos is not None:
            self.tracker.emit(ev.TodoChange(todos=todos, turn_id=self.tracker.turn_id or None))

    def diff_updated(self, params: Object) -> None:
        """The diff is the turn's; the session's is the sum over its turns, files counted once."""
        thread, diff = self.threads.of(params), text_of(params, "diff")
        if thread is None or thread.path:
            return
        turn = text_of(params, "turnId")
        before = dict(self._changes)
        self._changes |= {f"{turn} {path}": lines for path, lines in _lines_of(diff).items()}
        if self._changes != before:
            files = {name.partition(" ")[2] for name in self._changes}
            added, removed = (sum(lines[side] for lines in self._changes.values()) for side in (0, 1))
            self.tracker.emit(ev.ChangesUpdated(files=len(files), added=added, removed=removed))


def _lines_of(diff: str) -> dict[str, tuple[int, int]]:
    """Lines added and removed, by file."""
    found: dict[str, tuple[int, int]] = {}
    path = ""
    for line in diff.split("\n"):
        if line.startswith("diff --git "):
            path = line.rpartition(" b/")[2]
            found[path] = (0, 0)
        elif path and line[:1] in ("+", "-") and not line.startswith(("+++", "---")):
            added, removed = found[path]
            found[path] = (added + 1, removed) if line[0] == "+" else (added, removed + 1)
    return found


def history_of(turns: list[Any]) -> tuple[HistoryMessage, ...]:
    """The turns of a resumed thread, as far as they were sent."""
    items = [object_of(item) for turn in turns for item in list_of(object_of(turn), "items")]
    return tuple(message for item in items if (message := _history(item)) is not None)


def _history(item: Object) -> HistoryMessage | None:
    name, kind = text_of(item, "id"), text_of(item, "type")
    if kind == "userMessage":
        content = list_of(item, "content")
        block = Block(text=words_of(content), images=images_of(content))
        return HistoryMessage(message_id=text_of(item, "clientId") or name, role="user", blocks=(block,))
    if kind in ("agentMessage", "plan"):
        return HistoryMessage(message_id=name, role="assistant", blocks=(Block(text=text_of(item, "text")),))
    if kind == "reasoning":
        return HistoryMessage(message_id=name, role="assistant", blocks=reasoning_blocks(item))
    shape = names.CALLS.get(kind)
    if shape is None:
        return None
    tool, result = names.call_name(item, shape), names.call_result(item, shape)
    call = Block(kind="tool_call", call_id=name, name=tool, args=names.call_args(item, shape))
    text = result if isinstance(result, str) else str(result)
    end = Block(block=1, kind="tool_result", call_id=name, name=tool, text=text, ok=names.call_ok(item))
    return HistoryMessage(message_id=name, role="assistant", blocks=(call, end))


#: Items that begin, by their type.
_STARTED: dict[str, _Reader] = {
    "userMessage": Items.user_message,
    "hookPrompt": Items.hook_prompt,
    "agentMessage": Items.message_started,
    "plan": Items.message_started,
    "reasoning": Items.reasoning_started,
    "contextCompaction": Items.compaction_started,
    "subAgentActivity": Items.sub_agent_activity,
    "enteredReviewMode": Items.review_entered,
    "exitedReviewMode": Items.nothing,
}


#: Items that are whole, by their type.
_COMPLETED: dict[str, _Reader] = {
    "userMessage": Items.user_message,
    "hookPrompt": Items.nothing,
    "agentMessage": Items.message_completed,
    "plan": Items.plan_completed,
    "reasoning": Items.reasoning_completed,
    "contextCompaction": Items.compaction_completed,
    "subAgentActivity": Items.sub_agent_activity,
    "enteredReviewMode": Items.nothing,
    "exitedReviewMode": Items.review_exited,
}
