"""Read ACP's payloads: content blocks, tool calls, permission options, plans, forms and replayed history.

Everything here is a pure function of one message, except `History`, which collects a replay.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, cast

from msgspec import Struct

from quarterdeck.events import Block, HistoryMessage, Image, Json, Option, Plan, PlanStep, Question
from quarterdeck.harness.acp.profile import Profile
from quarterdeck.harness.base import Object, list_of, object_of, objects_of, text_of
from quarterdeck.kernel.timeline import json_text

# ----------------------------------------------------------------------------------------------------------------------
# Content blocks
# ----------------------------------------------------------------------------------------------------------------------


def block_text(block: Object) -> str:
    """Return a content block as text. A block that isn't text is represented by its address, name or type."""
    kind = block.get("type")
    if kind == "text" or kind is None:
        text = block.get("text")
        return text if isinstance(text, str) else ""
    if kind == "resource":
        return text_of(object_of(block, "resource"), "text", "uri")
    return text_of(block, "uri", "name") or f"[{kind}]"


def prompt_text(params: Object) -> str:
    """Return the text of a prompt, without its images."""
    blocks = objects_of(params, "prompt")
    return "\n".join(text for block in blocks if block.get("type") != "image" and (text := block_text(block)))


def prompt_images(params: Object) -> tuple[Image, ...]:
    """Return the images of a prompt."""
    return tuple(
        Image(media_type=text_of(block, "mimeType"), data=text_of(block, "data"))
        for block in objects_of(params, "prompt")
        if block.get("type") == "image"
    )


# ----------------------------------------------------------------------------------------------------------------------
# Tool calls
# ----------------------------------------------------------------------------------------------------------------------


class ToolInfo(Struct):
    """What is known about a tool call."""

    name: str
    title: str
    kind: str
    args: Any = None
    #: Output so far, for agents that repeat all of it in each update.
    output: str = ""
    #: The call was first seen in a permission request, whose title says what is asked and not what the tool is called.
    provisional: bool = False


def tool_info(profile: Profile, call_id: str, update: Object) -> ToolInfo:
    """Describe a call from the first update about it."""
    title = without_suffix(profile, text_of(update, "title"))
    kind = text_of(update, "kind")
    name = _tool_name(profile, call_id, update) or profile.kind_names.get(kind, "") or title or kind or "tool"
    return ToolInfo(name, title or name, kind, arguments(profile, update))


def asking_tool_info(profile: Profile, call_id: str, update: Object) -> ToolInfo:
    """Describe a call from a permission request or a replay, where the title says what the call does."""
    info = tool_info(profile, call_id, update)
    has_name = _tool_name(profile, call_id, update) or info.kind in profile.kind_names
    if not has_name and info.kind not in ("", "other"):
        info.name, info.provisional = info.kind, True
    return info


def _tool_name(profile: Profile, call_id: str, update: Object) -> str:
    """Return the tool's own name, or '' if the agent doesn't show it."""
    if profile.tool_name_in == "id":
        return _tool_name_in_id(call_id)
    if profile.tool_name_in == "input":
        return text_of(object_of(update, "rawInput"), "tool")
    meta = object_of(update, "_meta")
    return text_of(meta, "toolName") or text_of(object_of(meta, "claudeCode"), "toolName")


def _tool_name_in_id(call_id: str) -> str:
    """Parse `run_shell_command__fc_1_0`, or `run_shell_command-1700000000000-1` for a call that the model gave no id."""
    name, separator, _ = call_id.partition("__")
    if not separator:
        name, separator, rest = call_id.partition("-")
        separator = separator if rest[:1].isdigit() else ""
    return name if separator and name.isidentifier() else ""


def arguments(profile: Profile, update: Object) -> Object | None:
    """Return a call's arguments. For an agent that sends none, derive them from the title and the locations."""
    raw = object_of(update, "rawInput")
    if raw:
        command = raw.get("command")
        if profile.suffix and isinstance(command, str) and command.endswith(profile.suffix):
            return {**raw, "command": without_suffix(profile, command)}
        return raw
    if "rawInput" in update:
        return None
    title = without_suffix(profile, text_of(update, "title"))
    paths = [path for location in objects_of(update, "locations") if (path := text_of(location, "path"))]
    if paths:
        return {"path": paths[0], "description": title}
    if not title:
        return None
    return {"command": title} if update.get("kind") == "execute" else {"description": title}


def without_suffix(profile: Profile, text: str) -> str:
    """Remove the suffix that the agent appends to a command that needs approval."""
    return text.removesuffix(profile.suffix).rstrip() if profile.suffix else text


def output_text(update: Object) -> str:
    """Return the texts of a call's content, joined by newlines."""
    contents = [object_of(item, "content") for item in objects_of(update, "content") if item.get("type") == "content"]
    return "\n".join(text for content in contents if (text := block_text(content)))


def file_changes(update: Object) -> list[Object]:
    """Return the diffs among a call's content."""
    return [
        {"path": text_of(item, "path"), "oldText": item.get("oldText"), "newText": item.get("newText")}
        for item in objects_of(update, "content")
        if item.get("type") == "diff"
    ]


def result_of(update: Object) -> Json:
    """Return a call's result: its texts, else its raw output, else the file changes that it made."""
    text = output_text(update)
    if text:
        return text
    raw: Json = update.get("rawOutput")
    if isinstance(raw, dict):
        return text_of(cast(Object, raw), "output", "error", "reason") or cast(Json, raw)
    return raw if raw not in (None, "", []) else file_changes(update) or None


# ----------------------------------------------------------------------------------------------------------------------
# Permission options, plans and forms
# ----------------------------------------------------------------------------------------------------------------------


def options_of(params: Object) -> tuple[Option, ...]:
    """Return the answers that a permission request offers."""
    return tuple(
        Option(id=text_of(option, "optionId"), label=text_of(option, "name"), kind=text_of(option, "kind"))
        for option in objects_of(params, "options")
    )


_STEP_STATUSES = ("pending", "in_progress", "completed")


def plan_of(update: Object) -> Plan:
    """Return the agent's plan. Each update repeats all of it."""
    steps = [
        PlanStep(
            description=text_of(entry, "content"),
            status=status if (status := text_of(entry, "status")) in _STEP_STATUSES else "pending",
        )
        for entry in objects_of(update, "entries")
    ]
    return Plan(steps=tuple(steps))


def form_questions(schema: Object) -> tuple[Question, ...]:
    """Return one question for each field of a form's JSON schema."""
    properties = object_of(schema, "properties")
    return tuple(_form_question(name, object_of(properties, name)) for name in properties)


def _form_question(name: str, field: Object) -> Question:
    """Read one field. A choice is written as `enum` or as `oneOf`/`anyOf`; a multiple choice describes it in `items`."""
    multiple = field.get("type") == "array"
    choice = object_of(field, "items") if multiple else field
    values = [value for value in list_of(choice, "enum") if isinstance(value, str)]
    if field.get("type") == "boolean":
        values = ["true", "false"]
    options = [Option(id=value, label=value) for value in values]
    for alternative in (*objects_of(choice, "oneOf"), *objects_of(choice, "anyOf")):
        value = text_of(alternative, "const")
        options.append(Option(id=value, label=text_of(alternative, "title") or value))
    text = text_of(field, "description", "title") or name
    return Question(text=text, options=tuple(options), multiple=multiple, header=name)


# ----------------------------------------------------------------------------------------------------------------------
# Replayed history
# ----------------------------------------------------------------------------------------------------------------------

_Role: TypeAlias = Literal["user", "assistant"]
_SPOKEN: dict[str, tuple[_Role, Literal["text", "thinking"]]] = {
    "user_message_chunk": ("user", "text"),
    "agent_message_chunk": ("assistant", "text"),
    "agent_thought_chunk": ("assistant", "thinking"),
}
#: Kinds of update that a replay consists of. All other kinds describe the present.
REPLAYED = frozenset({*_SPOKEN, "tool_call", "tool_call_update"})


class History:
    """The conversation of a loaded session, collected while the agent replays it."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        #: The agent answered the request that loads the session.
        self.answered = False
        #: The agent gave a sign of its own that the replay is complete.
        self.marked = False
        self._messages: list[tuple[str, _Role, list[Block]]] = []
        self._open_calls: set[str] = set()

    def add(self, kind: str, update: Object) -> None:
        """Add one update of the replay."""
        if kind in _SPOKEN:
            self._add_text(*_SPOKEN[kind], text_of(update, "messageId"), block_text(object_of(update, "content")))
        else:
            self._add_call(text_of(update, "toolCallId"), update)

    def _add_text(self, role: _Role, kind: Literal["text", "thinking"], native_id: str, text: str) -> None:
        message_id, last_role, blocks = self._messages[-1] if self._messages else ("", "", [])
        is_same = last_role == role and (native_id == message_id if native_id else role == "assistant")
        if not is_same:
            blocks = self._start_message(native_id, role)
        if blocks and blocks[-1].kind == kind:
            blocks[-1] = Block(block=len(blocks) - 1, kind=kind, text=blocks[-1].text + text)
        else:
            blocks.append(Block(block=len(blocks), kind=kind, text=text))

    def _start_message(self, native_id: str, role: _Role) -> list[Block]:
        blocks: list[Block] = []
        self._messages.append((native_id or f"history-{len(self._messages) + 1}", role, blocks))
        return blocks

    def _add_call(self, call_id: str, update: Object) -> None:
        blocks = self._messages[-1][2] if self._messages and self._messages[-1][1] == "assistant" else []
        if not blocks:
            blocks = self._start_message("", "assistant")
        if update.get("sessionUpdate") == "tool_call":
            # In a replay the title says what the call did, as it does in a permission request.
            name = asking_tool_info(self.profile, call_id, update).name
            args = arguments(self.profile, update)
            blocks.append(Block(block=len(blocks), kind="tool_call", call_id=call_id, name=name, args=args))
            self._open_calls.add(call_id)
        status = update.get("status")
        if status in ("completed", "failed"):
            result = result_of(update)
            text = result if isinstance(result, str) else "" if result is None else json_text(result)
            block = Block(block=len(blocks), kind="tool_result", call_id=call_id, text=text, ok=status == "completed")
            blocks.append(block)
            self._open_calls.discard(call_id)

    def messages(self) -> tuple[HistoryMessage, ...]:
        """Return the conversation, without the notes that the agent hides among the prompts."""
        return tuple(
            HistoryMessage(message_id=message_id, role=role, blocks=tuple(blocks))
            for message_id, role, blocks in self._messages
            if not (role == "user" and blocks[0].text.startswith(self.profile.hidden))
        )

    @property
    def is_finished(self) -> bool:
        """Whether the last turn completed: the agent spoke last, and no call was left open."""
        return bool(self._messages) and self._messages[-1][1] == "assistant" and not self._open_calls
