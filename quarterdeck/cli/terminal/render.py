"""Render events as plain text: the streaming reply, tool steps, gates and failures. Printed lines never change."""

from __future__ import annotations

import json
from typing import Any, cast

from quarterdeck.cli.terminal.output import Output

EventJson = dict[str, Any]
#: Longest line of arguments and results.
_PREVIEW = 200
#: How many lines of a tool's output are printed. The log has the rest.
_OUTPUT_LINES = 12
_RESULT_LINES = 3
#: Tools that have events of their own, which are printed instead.
_TOOLS_WITH_EVENTS = frozenset({"write_todos", "ask_user"})
_MAIN_ARGUMENTS = ("command", "path", "file_path", "pattern", "question", "query", "url", "description")


class EventRenderer:
    """Print the events of one session. Each event type with an `on_…` method is printed; the others are not."""

    def __init__(self, output: Output) -> None:
        self.output = output
        #: Ids of messages that were typed here, and are on the screen already.
        self.typed_message_ids: set[str] = set()
        #: (message id, block) → number of printed characters.
        self._printed: dict[tuple[str, int], int] = {}
        self._todos: list[str] = []
        #: Call id → number of printed lines of output.
        self._output_lines: dict[str, int] = {}

    def render(self, event: EventJson) -> None:
        """Print one event."""
        handler = getattr(self, f"on_{event['type']}", None)
        if handler is not None and (not event.get("agent_path") or event["type"] in _SUBAGENT_EVENTS):
            handler(event)

    def _note(self, event: EventJson, text: str, **style: object) -> None:
        # Lines of sub-agents are indented.
        self.output.note("  " * len(event.get("agent_path") or ()) + text, **style)

    # --- texts

    def on_prompt_received(self, event: EventJson) -> None:
        if event.get("message_id") not in self.typed_message_ids:
            self._note(event, "> " + event["text"].strip().replace("\n", "\n> "), bold=True)

    def on_message_delta(self, event: EventJson) -> None:
        self._count(event["message_id"], event.get("block", 0), event["delta"])
        self.output.reply(event["delta"])

    def on_thinking_delta(self, event: EventJson) -> None:
        self._count(event["message_id"], event.get("block", 0), event["delta"])
        self.output.aside(event["delta"], "~ ")

    def on_response_complete(self, event: EventJson) -> None:
        # The log may have dropped the deltas before we connected, so print what is missing of the whole text.
        for block in event.get("blocks", ()):
            message_id, number, text = event["message_id"], block.get("block", 0), block.get("text", "")
            rest = text[self._printed.pop((message_id, number), 0) :]
            kind = block.get("kind", "text")
            if kind == "text":
                self.output.reply(rest)
                self.output.end_reply_line()
            elif kind == "thinking" and rest.strip():
                self.output.aside(rest + "\n", "~ ")

    def on_message_aborted(self, event: EventJson) -> None:
        self.output.end_reply_line()

    def _count(self, message_id: str, block: int, text: str) -> None:
        self._printed[message_id, block] = self._printed.get((message_id, block), 0) + len(text)

    def on_steering_applied(self, event: EventJson) -> None:
        self._note(event, "(the agent has read your message)", dim=True)

    def on_prompt_rejected(self, event: EventJson) -> None:
        self._note(event, f"refused: {event['reason']}", fg="red")

    # --- tools

    def on_tool_execution_start(self, event: EventJson) -> None:
        if event["name"] in _TOOLS_WITH_EVENTS:
            return
        self._output_lines[event["call_id"]] = 0
        self._note(event, f"* {event['name']} {preview(event.get('args'))}".rstrip(), fg="cyan")

    def on_tool_execution_output(self, event: EventJson) -> None:
        call = event["call_id"]
        for line in event["delta"].splitlines(keepends=True):
            if self._output_lines.get(call, 0) > _OUTPUT_LINES:
                return
            if self._output_lines.get(call, 0) == _OUTPUT_LINES:
                line = "…\n"
            self.output.aside(line, "  | ")
            self._output_lines[call] = self._output_lines.get(call, 0) + line.endswith("\n")

    def on_tool_execution_end(self, event: EventJson) -> None:
        if event["name"] in _TOOLS_WITH_EVENTS and event.get("ok", True):
            return
        shown = self._output_lines.pop(event["call_id"], 0)
        if event.get("ok", True):
            if not shown:
                for line in _first_lines(event.get("result")):
                    self._note(event, f"  | {line}", dim=True)
        else:
            self._note(
                event, "  failed: " + " / ".join(_first_lines(event.get("result")) or ["no reason given"]), fg="red"
            )

    def on_tool_blocked(self, event: EventJson) -> None:
        self._note(event, f"* {event['name']} was blocked: {event.get('reason', '')}", fg="red")

    def on_tool_killed(self, event: EventJson) -> None:
        self._note(event, f"* {event['name']} was stopped", fg="yellow")

    def on_tool_skipped_for_steering(self, event: EventJson) -> None:
        self._note(event, f"* {event['name']} was skipped because of your message", fg="yellow")

    def on_tool_call_unknown(self, event: EventJson) -> None:
        self._note(event, f"* {event['name']}: no such tool", fg="red")

    def on_subagent_start(self, event: EventJson) -> None:
        self._note(event, f"* sub-agent: {event.get('description', '')}", fg="cyan")

    def on_todo_change(self, event: EventJson) -> None:
        # Print only lines that are new or changed.
        marks = {"completed": "x", "in_progress": ">", "cancelled": "-"}
        lines = [f"  [{marks.get(todo.get('status'), ' ')}] {todo['content']}" for todo in event.get("todos", ())]
        changed = [line for line in lines if line not in self._todos]
        self._todos = lines
        if changed:
            self._note(event, "\n".join(changed), dim=True)

    # --- gates

    def on_approval_required(self, event: EventJson) -> None:
        gate = event["gate"]
        title = gate.get("title") or f"{gate.get('tool', '')} {preview(gate.get('args'))}".strip()
        # A command is quoted, other titles are phrases such as "Edit src/app.py" or "Network access to HOST".
        subject = f"`{title}`" if gate.get("ask") == "command" else title
        self._note(event, f"? Allow {subject}?  ({gate.get('gate_id', '')})", fg="yellow", bold=True)
        if gate.get("hint"):
            self._note(event, f"  {gate['hint']}", fg="yellow")

    def on_approval_resolved(self, event: EventJson) -> None:
        by = event.get("rule") or event.get("by", "")
        status = event["status"].replace("_", " ")
        self._note(event, f"  {status}{f' by {by}' if by and by != 'user' else ''}", dim=True)

    def on_ask_user(self, event: EventJson) -> None:
        self._note(event, f"? {event['question']}  ({event.get('gate_id', '')})", fg="yellow", bold=True)
        self._options(event, event.get("options", ()))

    def on_dialog_required(self, event: EventJson) -> None:
        text = " ".join(filter(None, (event.get("title"), event.get("message"))))
        self._note(event, f"? {text}  ({event.get('gate_id', '')})", fg="yellow", bold=True)
        self._options(event, event.get("options", ()))

    def _options(self, event: EventJson, options: Any) -> None:
        for number, option in enumerate(options, 1):
            self._note(event, f"  {number}. {option.get('label') or option['id']}", fg="yellow")

    # --- the session

    def on_notice(self, event: EventJson) -> None:
        colours = {"warning": "yellow", "error": "red"}
        level = event.get("level", "info")
        self._note(event, f"{'' if level == 'info' else f'{level}: '}{event['text']}", fg=colours.get(level))

    def on_retry(self, event: EventJson) -> None:
        reason = f": {event['reason']}" if event.get("reason") else ""
        self._note(event, f"retrying in {event.get('delay_ms', 0) / 1000:g} s{reason}", fg="yellow")

    def on_stream_stalled(self, event: EventJson) -> None:
        self._note(event, f"the model has sent nothing for {event.get('elapsed_s', 0):g} s", fg="yellow")

    def on_turn_failed(self, event: EventJson) -> None:
        self._note(event, f"failed ({event.get('kind', 'api')}): {event.get('message', '')}", fg="red")

    def on_process_error(self, event: EventJson) -> None:
        self._note(event, f"failed: {event.get('message', '')}", fg="red")

    def on_compact_start(self, event: EventJson) -> None:
        self._note(event, "(compacting the conversation …)", dim=True)

    def on_status_update(self, event: EventJson) -> None:
        self._note(event, f"({event['text']})", dim=True)

    def on_model_switched(self, event: EventJson) -> None:
        self._note(event, f"(switched to {event['to']})", dim=True)

    def on_background_started(self, event: EventJson) -> None:
        self._note(event, f"(in the background: {event.get('title') or event['kind']})", dim=True)


#: Events of sub-agents that are printed.
_SUBAGENT_EVENTS = frozenset(
    {"tool_execution_start", "tool_blocked", "approval_required", "approval_resolved", "ask_user", "dialog_required"}
)


def preview(args: Any) -> str:
    """Format the arguments of a call in one line: the most important one, or all of them."""
    value = args
    if isinstance(args, dict):
        arguments = cast(EventJson, args)
        main = next((arguments[name] for name in _MAIN_ARGUMENTS if isinstance(arguments.get(name), str)), None)
        value = main if main is not None else (json.dumps(arguments, ensure_ascii=False) if arguments else "")
    text = " ".join(str("" if value is None else value).split())
    return text if len(text) <= _PREVIEW else text[: _PREVIEW - 1] + "…"


def _first_lines(result: Any) -> list[str]:
    """Return the first lines of a call's result."""
    text = result if isinstance(result, str) else "" if result is None else json.dumps(result, ensure_ascii=False)
    lines = [line if len(line) <= _PREVIEW else line[: _PREVIEW - 1] + "…" for line in text.strip("\n").splitlines()]
    return lines if len(lines) <= _RESULT_LINES else [*lines[: _RESULT_LINES - 1], f"… {len(lines)} lines"]
