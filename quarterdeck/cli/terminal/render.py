"""Events as plain text: the reply as it streams, tool steps, what is asked, what went wrong. Nothing moves, all is kept."""

from __future__ import annotations

import json
from typing import Any, cast

from quarterdeck.cli.terminal.output import Paper

Told = dict[str, Any]
_PREVIEW = 200
#: So much of a tool's output is shown; the rest is in the log.
_OUTPUT_LINES = 12
_RESULT_LINES = 3
_TOLD_ELSEWHERE = frozenset({"write_todos", "ask_user"})
_MAIN_ARGUMENTS = ("command", "path", "file_path", "pattern", "question", "query", "url", "description")


class Plain:
    """Tells one session on paper. `quiet` holds the ids of texts that were typed here: they are on the screen already."""

    def __init__(self, paper: Paper) -> None:
        self.paper = paper
        self.quiet: set[str] = set()
        #: (message, block) → how much of it is on the paper
        self._said: dict[tuple[str, int], int] = {}
        self._todos: list[str] = []
        #: call → lines of output that are on the paper
        self._lines: dict[str, int] = {}

    def tell(self, event: Told) -> None:
        """One event. What has no words here is not for people who read along."""
        handler = getattr(self, f"on_{event['type']}", None)
        if handler is not None and (not event.get("agent_path") or event["type"] in _OF_CHILDREN):
            handler(event)

    def _note(self, event: Told, text: str, **style: object) -> None:
        """A line; those of sub-agents stand in."""
        self.paper.note("  " * len(event.get("agent_path") or ()) + text, **style)

    # --- texts

    def on_prompt_received(self, event: Told) -> None:
        if event.get("message_id") not in self.quiet:
            self._note(event, "> " + event["text"].strip().replace("\n", "\n> "), bold=True)

    def on_message_delta(self, event: Told) -> None:
        self._say(event["message_id"], event.get("block", 0), event["delta"])

    def on_thinking_delta(self, event: Told) -> None:
        self._count(event["message_id"], event.get("block", 0), event["delta"])
        self.paper.aside(event["delta"], "~ ")

    def on_response_complete(self, event: Told) -> None:
        """Deltas may have been dropped before we came: what was not shown of the whole is shown now."""
        for block in event.get("blocks", ()):
            name, place, text = event["message_id"], block.get("block", 0), block.get("text", "")
            rest = text[self._said.pop((name, place), 0) :]
            kind = block.get("kind", "text")
            if kind == "text":
                self.paper.say(rest)
                self.paper.end_line()
            elif kind == "thinking" and rest.strip():
                self.paper.aside(rest + "\n", "~ ")

    def on_message_aborted(self, event: Told) -> None:
        self.paper.end_line()

    def _say(self, name: str, block: int, text: str) -> None:
        self._count(name, block, text)
        self.paper.say(text)

    def _count(self, name: str, block: int, text: str) -> None:
        self._said[name, block] = self._said.get((name, block), 0) + len(text)

    def on_steering_applied(self, event: Told) -> None:
        self._note(event, "(your text is read)", dim=True)

    def on_prompt_rejected(self, event: Told) -> None:
        self._note(event, f"refused: {event['reason']}", fg="red")

    # --- tools

    def on_tool_execution_start(self, event: Told) -> None:
        """The list and a question of the agent's are told by events of their own."""
        if event["name"] in _TOLD_ELSEWHERE:
            return
        self._lines[event["call_id"]] = 0
        self._note(event, f"* {event['name']} {preview(event.get('args'))}".rstrip(), fg="cyan")

    def on_tool_execution_output(self, event: Told) -> None:
        call = event["call_id"]
        for line in event["delta"].splitlines(keepends=True):
            if self._lines.get(call, 0) > _OUTPUT_LINES:
                return
            if self._lines.get(call, 0) == _OUTPUT_LINES:
                line = "…\n"
            self.paper.aside(line, "  | ")
            self._lines[call] = self._lines.get(call, 0) + line.endswith("\n")

    def on_tool_execution_end(self, event: Told) -> None:
        if event["name"] in _TOLD_ELSEWHERE and event.get("ok", True):
            return
        shown = self._lines.pop(event["call_id"], 0)
        if event.get("ok", True):
            if not shown:
                for line in _head(event.get("result")):
                    self._note(event, f"  | {line}", dim=True)
        else:
            self._note(event, "  failed: " + " / ".join(_head(event.get("result")) or ["no reason given"]), fg="red")

    def on_tool_blocked(self, event: Told) -> None:
        self._note(event, f"* {event['name']} was blocked: {event.get('reason', '')}", fg="red")

    def on_tool_killed(self, event: Told) -> None:
        self._note(event, f"* {event['name']} was stopped", fg="yellow")

    def on_tool_skipped_for_steering(self, event: Told) -> None:
        self._note(event, f"* {event['name']} gave way to your text", fg="yellow")

    def on_tool_call_unknown(self, event: Told) -> None:
        self._note(event, f"* {event['name']}: no such tool", fg="red")

    def on_subagent_start(self, event: Told) -> None:
        self._note(event, f"* sub-agent: {event.get('description', '')}", fg="cyan")

    def on_todo_change(self, event: Told) -> None:
        """The lines that are new, or not as they were."""
        marks = {"completed": "x", "in_progress": ">", "cancelled": "-"}
        lines = [f"  [{marks.get(one.get('status'), ' ')}] {one['content']}" for one in event.get("todos", ())]
        news = [line for line in lines if line not in self._todos]
        self._todos = lines
        if news:
            self._note(event, "\n".join(news), dim=True)

    # --- what is asked

    def on_approval_required(self, event: Told) -> None:
        gate = event["gate"]
        what = gate.get("title") or f"{gate.get('tool', '')} {preview(gate.get('args'))}".strip()
        self._note(event, f"? may it run: {what}  ({gate.get('gate_id', '')})", fg="yellow", bold=True)
        if gate.get("hint"):
            self._note(event, f"  {gate['hint']}", fg="yellow")

    def on_approval_resolved(self, event: Told) -> None:
        by = event.get("rule") or event.get("by", "")
        status = event["status"].replace("_", " ")
        self._note(event, f"  {status}{f' by {by}' if by and by != 'user' else ''}", dim=True)

    def on_ask_user(self, event: Told) -> None:
        self._note(event, f"? {event['question']}  ({event.get('gate_id', '')})", fg="yellow", bold=True)
        self._options(event, event.get("options", ()))

    def on_dialog_required(self, event: Told) -> None:
        what = " ".join(filter(None, (event.get("title"), event.get("message"))))
        self._note(event, f"? {what}  ({event.get('gate_id', '')})", fg="yellow", bold=True)
        self._options(event, event.get("options", ()))

    def _options(self, event: Told, options: Any) -> None:
        for number, option in enumerate(options, 1):
            self._note(event, f"  {number}. {option.get('label') or option['id']}", fg="yellow")

    # --- around

    def on_notice(self, event: Told) -> None:
        colours = {"warning": "yellow", "error": "red"}
        level = event.get("level", "info")
        self._note(event, f"{'' if level == 'info' else f'{level}: '}{event['text']}", fg=colours.get(level))

    def on_retry(self, event: Told) -> None:
        why = f": {event['reason']}" if event.get("reason") else ""
        self._note(event, f"tries again in {event.get('delay_ms', 0) / 1000:g} s{why}", fg="yellow")

    def on_stream_stalled(self, event: Told) -> None:
        self._note(event, f"no word from the model for {event.get('elapsed_s', 0):g} s", fg="yellow")

    def on_turn_failed(self, event: Told) -> None:
        self._note(event, f"failed ({event.get('kind', 'api')}): {event.get('message', '')}", fg="red")

    def on_process_error(self, event: Told) -> None:
        self._note(event, f"failed: {event.get('message', '')}", fg="red")

    def on_compact_start(self, event: Told) -> None:
        self._note(event, "(shortens the conversation …)", dim=True)

    def on_status_update(self, event: Told) -> None:
        self._note(event, f"({event['text']})", dim=True)

    def on_model_switched(self, event: Told) -> None:
        self._note(event, f"(from now on with {event['to']})", dim=True)

    def on_background_started(self, event: Told) -> None:
        self._note(event, f"(in the background: {event.get('title') or event['kind']})", dim=True)


#: Of a sub-agent's events those that a person has to see.
_OF_CHILDREN = frozenset(
    {"tool_execution_start", "tool_blocked", "approval_required", "approval_resolved", "ask_user", "dialog_required"}
)


def preview(args: Any) -> str:
    """The arguments of a call in one line: the one that matters, or all of them."""
    shown = args
    if isinstance(args, dict):
        given = cast(Told, args)
        main = next((given[name] for name in _MAIN_ARGUMENTS if isinstance(given.get(name), str)), None)
        shown = main if main is not None else (json.dumps(given, ensure_ascii=False) if given else "")
    text = " ".join(str("" if shown is None else shown).split())
    return text if len(text) <= _PREVIEW else text[: _PREVIEW - 1] + "…"


def _head(result: Any) -> list[str]:
    """The first lines of what a call gave."""
    text = result if isinstance(result, str) else "" if result is None else json.dumps(result, ensure_ascii=False)
    lines = [line if len(line) <= _PREVIEW else line[: _PREVIEW - 1] + "…" for line in text.strip("\n").splitlines()]
    return lines if len(lines) <= _RESULT_LINES else [*lines[: _RESULT_LINES - 1], f"… {len(lines)} lines"]
