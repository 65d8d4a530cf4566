"""Track the items of a turn in the app-server: texts, reasoning, calls, plans and changes.

An item is reported by `item/started`, deltas and `item/completed`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from quarterdeck import events as ev
from quarterdeck.events import Block, HistoryMessage, Image, Plan
from quarterdeck.harness.base import Object, int_of, list_of, object_of, text_of
from quarterdeck.harness.codex import names
from quarterdeck.harness.codex.threads import Thread, Threads
from quarterdeck.harness.todos import todos_in

_ItemReader: TypeAlias = Callable[[Thread, Object], None]

# ----------------------------------------------------------------------------------------------------------------------
# Content of items
# ----------------------------------------------------------------------------------------------------------------------

#: Block number of the first raw reasoning. Its summary has the numbers from 0.
_RAW_REASONING = 1000


def content_text(content: list[Any]) -> str:
    """Return the text of a user's message."""
    return "\n".join(text for part in map(object_of, content) if (text := text_of(part, "text")))


def images_of(content: list[Any]) -> tuple[Image, ...]:
    """Return the images of a user's message. Each is a file or a data URL."""
    images: list[Image] = []
    for part in map(object_of, content):
        if text_of(part, "type") in ("image", "localImage"):
            url = text_of(part, "url")
            head, _, data = url.partition(";base64,")
            if data:
                images.append(Image(media_type=head.removeprefix("data:"), data=data))
            else:
                images.append(Image(media_type="", path=text_of(part, "path") or url))
    return tuple(images)


def reasoning_blocks(item: Object) -> tuple[Block, ...]:
    """Return a complete reasoning item as blocks."""
    parts = list(enumerate(list_of(item, "summary")))
    parts += enumerate(list_of(item, "content"), _RAW_REASONING)
    return tuple(
        Block(block=number, kind="thinking", text=text) for number, text in parts if isinstance(text, str) and text
    )


def _lines_by_file(diff: str) -> dict[str, tuple[int, int]]:
    """Return the lines added and removed, by file."""
    counts: dict[str, tuple[int, int]] = {}
    path = ""
    for line in diff.split("\n"):
        if line.startswith("diff --git "):
            path = line.rpartition(" b/")[2]
            counts[path] = (0, 0)
        elif path and line[:1] in ("+", "-") and not line.startswith(("+++", "---")):
            added, removed = counts[path]
            counts[path] = (added + 1, removed) if line[0] == "+" else (added, removed + 1)
    return counts


# ----------------------------------------------------------------------------------------------------------------------
# Items of a turn that runs
# ----------------------------------------------------------------------------------------------------------------------


class Items:
    """Reads items, with one reader for each type at its start and one at its end."""

    def __init__(self, threads: Threads) -> None:
        self.threads = threads
        self.session = threads.session
        self.tracker = threads.tracker
        #: Lines added and removed, by turn and file.
        self._changes: dict[tuple[str, str], tuple[int, int]] = {}
        #: User's messages that were recorded: each is reported at its start and at its end.
        self._recorded_prompts: set[str] = set()
        self._start_readers: dict[str, _ItemReader] = {
            "userMessage": self._read_user_message,
            "hookPrompt": self._read_hook_prompt,
            "agentMessage": self._start_message,
            "plan": self._start_message,
            "reasoning": self._start_reasoning,
            "contextCompaction": self._start_compaction,
            "subAgentActivity": self._read_subagent_activity,
            "enteredReviewMode": self._enter_review,
            "exitedReviewMode": _ignore_item,
        }
        self._end_readers: dict[str, _ItemReader] = {
            "userMessage": self._read_user_message,
            "hookPrompt": _ignore_item,
            "agentMessage": self._complete_message,
            "plan": self._complete_plan,
            "reasoning": self._complete_reasoning,
            "contextCompaction": self._complete_compaction,
            "subAgentActivity": self._read_subagent_activity,
            "enteredReviewMode": _ignore_item,
            "exitedReviewMode": self._exit_review,
        }

    def reset(self) -> None:
        """Forget the messages of the old process."""
        self._recorded_prompts.clear()

    def start(self, params: Object) -> bool:
        """Read `item/started`. Return whether the type of the item is known."""
        return self._read(params, self._start_readers, self._start_call)

    def complete(self, params: Object) -> bool:
        """Read `item/completed`. Return whether the type of the item is known."""
        return self._read(params, self._end_readers, self._complete_call)

    def _read(self, params: Object, readers: dict[str, _ItemReader], call_reader: _ItemReader) -> bool:
        item = object_of(params, "item")
        kind = text_of(item, "type")
        reader = readers.get(kind) or (call_reader if kind in names.CALLS else None)
        thread = self.threads.find_or_adopt(params)
        if reader is not None and thread is not None and text_of(item, "id") and not self.tracker.has_exited:
            reader(thread, item)
        return reader is not None

    # --- texts

    def _read_user_message(self, thread: Thread, item: Object) -> None:
        """Record a text that the agent read: the turn's prompt, or one for the turn that already runs."""
        item_id = text_of(item, "id")
        if thread.path or item_id in self._recorded_prompts:
            return
        self._recorded_prompts.add(item_id)
        self.cut_message(thread)
        content = list_of(item, "content")
        text = content_text(content)
        # Hooks and telemetry must not record this prompt again.
        self.session.claim_prompt("app", text)
        client_id = text_of(item, "clientId")
        steer_id = client_id if client_id in self.threads.steers else ""
        if not steer_id and thread.has_prompt:
            steers = self.threads.steers.items()
            steer_id = next((message_id for message_id, steer_text in steers if steer_text == text), "")
        thread.has_prompt = True
        if steer_id:
            del self.threads.steers[steer_id]
            self.tracker.emit(ev.SteeringApplied(refs=(steer_id,), count=1, turn_id=self.tracker.turn_id or None))
            self.threads.start_request(thread)
        else:
            self.tracker.record_prompt(text, client_id or item_id, images=images_of(content))

    def _read_hook_prompt(self, thread: Thread, item: Object) -> None:
        """Record a text that a hook added to the conversation."""
        fragments = [text_of(object_of(fragment), "text") for fragment in list_of(item, "fragments")]
        if not thread.path:
            self.tracker.record_prompt("\n".join(fragments), text_of(item, "id"), source="agent")

    def cut_message(self, thread: Thread, keep: bool = True) -> None:
        """Close a message that won't continue. Codex doesn't say so: something else just begins."""
        if thread.message_id:
            self.tracker.abort_message(thread.message_id, keep, thread.path)
            thread.message_id = ""

    def _note_reply(self, thread: Thread) -> None:
        """Note that the model speaks. After calls that means that it was asked again."""
        if thread.request_due and not thread.path:
            self.threads.start_request(thread)

    def _start_message(self, thread: Thread, item: Object) -> None:
        item_id = text_of(item, "id")
        if thread.message_id != item_id:
            self.cut_message(thread)
        self._note_reply(thread)
        thread.message_id = item_id
        self.tracker.add_text(item_id, 0, text_of(item, "text"), thread.path)

    def _complete_message(self, thread: Thread, item: Object) -> None:
        item_id = text_of(item, "id")
        if thread.message_id == item_id:
            thread.message_id = ""
        self.tracker.finish_message(item_id, (Block(text=text_of(item, "text")),), path=thread.path)

    def _complete_plan(self, thread: Thread, item: Object) -> None:
        """Record the plan that plan mode ends with."""
        self._complete_message(thread, item)
        if not thread.path:
            plan = Plan(text=text_of(item, "text"))
            self.tracker.emit(ev.PlanGenerated(plan=plan, turn_id=self.tracker.turn_id or None))

    def _start_reasoning(self, thread: Thread, item: Object) -> None:
        self._note_reply(thread)
        for block in reasoning_blocks(item):
            self.tracker.add_thinking(text_of(item, "id"), block.block, block.text, thread.path)

    def _complete_reasoning(self, thread: Thread, item: Object) -> None:
        blocks = reasoning_blocks(item)
        self.tracker.finish_message(text_of(item, "id"), blocks or None, path=thread.path)

    def _enter_review(self, _thread: Thread, item: Object) -> None:
        self.tracker.add_notice(f"Review: {text_of(item, 'review')}", source="codex")

    def _exit_review(self, thread: Thread, item: Object) -> None:
        """Record the findings of a review."""
        self.tracker.finish_message(text_of(item, "id"), (Block(text=text_of(item, "review")),), path=thread.path)

    # --- deltas

    def read_message_delta(self, params: Object) -> None:
        thread, item_id, delta = self._delta_of(params)
        if thread is not None:
            self.tracker.add_text(item_id, 0, delta, thread.path)

    def read_summary_delta(self, params: Object) -> None:
        self._add_thinking(params, int_of(params, "summaryIndex"))

    def read_reasoning_delta(self, params: Object) -> None:
        self._add_thinking(params, _RAW_REASONING + int_of(params, "contentIndex"))

    def _add_thinking(self, params: Object, block: int) -> None:
        thread, item_id, delta = self._delta_of(params)
        if thread is not None:
            self.tracker.add_thinking(item_id, block, delta, thread.path)

    def _delta_of(self, params: Object) -> tuple[Thread | None, str, str]:
        """Return thread, item id and text of a delta. The thread is None if the delta changes nothing."""
        thread = self.threads.find_or_adopt(params)
        item_id, delta = params.get("itemId"), params.get("delta")
        if not isinstance(item_id, str) or not item_id or not isinstance(delta, str) or self.tracker.has_exited:
            return None, "", ""
        return thread, item_id, delta

    def read_output_delta(self, params: Object) -> None:
        thread, item_id, delta = self.threads.find(params), params.get("itemId"), params.get("delta")
        if thread is None or not isinstance(item_id, str) or not isinstance(delta, str):
            return
        if item_id in thread.user_shells:
            self.tracker.emit(ev.BashOutput(bash_id=item_id, delta=delta))
        else:
            self.tracker.add_output(item_id, delta)

    def read_progress(self, params: Object) -> None:
        """Record the progress of an MCP tool as output."""
        thread, message = self.threads.find(params), text_of(params, "message")
        if thread is not None and message:
            self.tracker.add_output(text_of(params, "itemId"), message + "\n")

    # --- calls

    def _start_call(self, thread: Thread, item: Object) -> None:
        call_id, shape = text_of(item, "id"), names.CALLS[text_of(item, "type")]
        if text_of(item, "source") == "userShell":
            thread.user_shells.add(call_id)
            command = names.plain_command(text_of(item, "command"))
            self.tracker.emit(ev.BashStart(bash_id=call_id, command=command))
            return
        has_process = item.get("processId") is not None
        if has_process:
            thread.terminals.add(call_id)
        tool, args = names.call_name(item, shape), names.call_args(item, shape)
        if shape.name == names.EXEC and thread.waits_for_approval and not has_process:
            thread.held_calls.append(call_id)
            self.tracker.open_call(call_id, tool, args, path=thread.path)
        else:
            self.session.start_call(call_id, tool, args, thread.path)
        self._add_spawned(thread, item)

    def _complete_call(self, thread: Thread, item: Object) -> None:
        call_id, shape = text_of(item, "id"), names.CALLS[text_of(item, "type")]
        thread.request_due = True
        thread.terminals.discard(call_id)
        if call_id in thread.held_calls:
            thread.held_calls.remove(call_id)
        tool = names.call_name(item, shape)
        if call_id in thread.user_shells:
            self._end_user_shell(thread, item)
        elif text_of(item, "status") == names.DECLINED:
            self.session.block_call(call_id, tool, names.DECLINED)
        else:
            thread.has_run_calls = True
            if call_id not in self.tracker.calls and self.tracker.turn_id:
                # Only the end of this call is reported, so record its arguments now.
                self.session.start_call(call_id, tool, names.call_args(item, shape), thread.path)
            self.session.end_call(call_id, tool, names.call_ok(item), names.call_result(item, shape), thread.path)
        self._add_spawned(thread, item)

    def release_held(self, thread: Thread, call_id: str = "") -> None:
        """Record that held calls run now: this one, or all that have no open approval."""
        asking = {gate.call_id for gate in self.tracker.gates.values()}
        for held_id in list(thread.held_calls):
            if held_id == call_id or (not call_id and held_id not in asking):
                thread.held_calls.remove(held_id)
                self.session.start_call(held_id, names.EXEC, path=thread.path)

    def _end_user_shell(self, thread: Thread, item: Object) -> None:
        item_id, code = text_of(item, "id"), item.get("exitCode")
        thread.user_shells.discard(item_id)
        self.tracker.emit(
            ev.BashEnd(
                bash_id=item_id,
                exit_code=code if isinstance(code, int) else None,
                output=text_of(item, "aggregatedOutput"),
                command=names.plain_command(text_of(item, "command")),
            )
        )

    # --- sub-agents

    def _add_spawned(self, thread: Thread, item: Object) -> None:
        """Add the sub-agents that a collaboration call created."""
        if text_of(item, "tool") == "spawnAgent":
            for child_id in list_of(item, "receiverThreadIds"):
                if isinstance(child_id, str):
                    self.threads.add_child(child_id, thread, text_of(item, "prompt")[:60])

    def _read_subagent_activity(self, thread: Thread, item: Object) -> None:
        """Read the parent's report on a sub-agent. `started` is the call that created it, `completed` its end."""
        child_id, title, kind = text_of(item, "agentThreadId"), text_of(item, "agentPath"), text_of(item, "kind")
        self.threads.add_child(child_id, thread, title)
        if kind == "started" and not thread.path:
            self.session.record_finished_call(text_of(item, "id"), "spawn_agent", {"name": title}, True, title)
            thread.request_due = thread.has_run_calls = True
        elif kind in ("completed", "interrupted") and child_id in self.threads.by_id:
            self.threads.end_child(self.threads.by_id[child_id], kind == "completed")

    # --- compaction, plans, diffs

    def _start_compaction(self, thread: Thread, _item: Object) -> None:
        """Record a compaction. If the user asked for it, it is a turn of its own without a prompt."""
        if not thread.path:
            self.tracker.start_compaction("auto" if thread.has_prompt else "manual")

    def _complete_compaction(self, thread: Thread, _item: Object) -> None:
        if not thread.path:
            thread.request_due = True
            self.tracker.end_compaction()

    def read_compacted(self, params: Object) -> None:
        """Read the notification of older servers, which comes once, after the compaction."""
        thread = self.threads.find(params)
        if thread is not None and not self.tracker.is_compacting and not thread.path:
            self._start_compaction(thread, {})
            self.tracker.end_compaction()

    def read_plan(self, params: Object) -> None:
        thread = self.threads.find_or_adopt(params)
        todos = todos_in(params.get("plan"))
        if thread is not None and not thread.path and todos is not None:
            self.tracker.emit(ev.TodoChange(todos=todos, turn_id=self.tracker.turn_id or None))

    def read_diff(self, params: Object) -> None:
        """Record the changes of the session: the sum over the diffs of its turns, with each file counted once."""
        thread = self.threads.find(params)
        if thread is None or thread.path:
            return
        turn_id = text_of(params, "turnId")
        lines = _lines_by_file(text_of(params, "diff"))
        changes = self._changes | {(turn_id, path): counts for path, counts in lines.items()}
        if changes != self._changes:
            self._changes = changes
            files = {path for _, path in changes}
            added = sum(counts[0] for counts in changes.values())
            removed = sum(counts[1] for counts in changes.values())
            self.tracker.emit(ev.ChangesUpdated(files=len(files), added=added, removed=removed))


def _ignore_item(_thread: Thread, _item: Object) -> None:
    """Ignore an item whose other half has everything."""


# ----------------------------------------------------------------------------------------------------------------------
# History
# ----------------------------------------------------------------------------------------------------------------------


def history_of(turns: list[Any]) -> tuple[HistoryMessage, ...]:
    """Return the turns of a resumed thread, as far as Codex sent them."""
    items = [object_of(item) for turn in turns for item in list_of(object_of(turn), "items")]
    return tuple(message for item in items if (message := _history_message(item)) is not None)


def _history_message(item: Object) -> HistoryMessage | None:
    item_id, kind = text_of(item, "id"), text_of(item, "type")
    if kind == "userMessage":
        content = list_of(item, "content")
        block = Block(text=content_text(content), images=images_of(content))
        return HistoryMessage(message_id=text_of(item, "clientId") or item_id, role="user", blocks=(block,))
    if kind in ("agentMessage", "plan"):
        return HistoryMessage(message_id=item_id, role="assistant", blocks=(Block(text=text_of(item, "text")),))
    if kind == "reasoning":
        return HistoryMessage(message_id=item_id, role="assistant", blocks=reasoning_blocks(item))
    shape = names.CALLS.get(kind)
    if shape is None:
        return None
    tool, result = names.call_name(item, shape), names.call_result(item, shape)
    call = Block(kind="tool_call", call_id=item_id, name=tool, args=names.call_args(item, shape))
    text = result if isinstance(result, str) else str(result)
    end = Block(block=1, kind="tool_result", call_id=item_id, name=tool, text=text, ok=names.call_ok(item))
    return HistoryMessage(message_id=item_id, role="assistant", blocks=(call, end))
