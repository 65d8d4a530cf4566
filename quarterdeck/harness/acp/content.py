"""What stands in ACP's content blocks and tool calls: texts, images, arguments, changes, results."""

from __future__ import annotations

from typing import Any, cast

from msgspec import Struct

from quarterdeck.events import Image, Json, Option, Plan, PlanStep, Question
from quarterdeck.harness.acp.profile import Profile
from quarterdeck.harness.base import Object, is_object, list_of, object_of, objects_of, text_of


def text_of_block(block: Object) -> str:
    """A content block as text; what is no text is named."""
    kind = block.get("type")
    if kind == "text" or kind is None:
        text = block.get("text")
        return text if isinstance(text, str) else ""
    if kind == "resource":
        return text_of(object_of(block, "resource"), "text", "uri")
    return text_of(block, "uri", "name") or f"[{kind}]"


def prompt_text(params: Object) -> str:
    """What a person wrote; images stand beside it."""
    blocks = objects_of(params, "prompt")
    return "\n".join([text for one in blocks if one.get("type") != "image" and (text := text_of_block(one))])


def prompt_images(params: Object) -> tuple[Image, ...]:
    """The images of a prompt."""
    return tuple(
        [
            Image(media_type=text_of(one, "mimeType"), data=text_of(one, "data"))
            for one in objects_of(params, "prompt")
            if one.get("type") == "image"
        ]
    )


def output_text(update: Object) -> str:
    """The texts of a call's content, joined."""
    told = ""
    for one in list_of(update, "content"):
        if is_object(one) and one.get("type") == "content":
            text = text_of_block(object_of(one, "content"))
            told = f"{told}\n{text}" if told and text else told or text
    return told


def diffs(update: Object) -> list[Object]:
    """The changes of files among a call's content."""
    return [
        {"path": text_of(one, "path"), "oldText": one.get("oldText"), "newText": one.get("newText")}
        for one in objects_of(update, "content")
        if one.get("type") == "diff"
    ]


def result_of(update: Object) -> Json:
    """What a call gave: its texts, else what else the agent says of it, else the changes that it made."""
    text = output_text(update)
    if text:
        return text
    raw: Json = update.get("rawOutput")
    if isinstance(raw, dict):
        return text_of(cast(Object, raw), "output", "error", "reason") or cast(Json, raw)
    return raw if raw not in (None, "", []) else diffs(update) or None


class ToolInfo(Struct):
    """What is known of a call."""

    name: str
    title: str
    kind: str
    args: Any = None
    output: str = ""
    #: first seen in a permission request, whose title says what is asked and not what the tool is called
    provisional: bool = False


def tool_info(profile: Profile, call_id: str, update: Object) -> ToolInfo:
    """A call as its first word describes it."""
    title = cleaned(profile, text_of(update, "title"))
    kind = text_of(update, "kind")
    name = _name(profile, call_id, update) or profile.kind_names.get(kind, "") or title or kind or "tool"
    return ToolInfo(name, title or name, kind, arguments(profile, update))


def asking_info(profile: Profile, call_id: str, update: Object) -> ToolInfo:
    """A call as the question about it, or a replay, describes it: the title is what it does, not what the tool is called."""
    info = tool_info(profile, call_id, update)
    known = _name(profile, call_id, update) or info.kind in profile.kind_names
    if not known and info.kind not in ("", "other"):
        info.name, info.provisional = info.kind, True
    return info


def _name(profile: Profile, call_id: str, update: Object) -> str:
    """The tool's own name, where the agent lets it be seen."""
    if profile.names == "id":
        return _name_in_id(call_id)
    if profile.names == "input":
        return text_of(object_of(update, "rawInput"), "tool")
    meta = object_of(update, "_meta")
    return text_of(meta, "toolName") or text_of(object_of(meta, "claudeCode"), "toolName")


def _name_in_id(call_id: str) -> str:
    """`run_shell_command__fc_1_0`, or `run_shell_command-1700000000000-1` when the model gave no id."""
    head, mark, _ = call_id.partition("__")
    if not mark:
        head, mark, rest = call_id.partition("-")
        mark = mark if rest[:1].isdigit() else ""
    return head if mark and head.isidentifier() else ""


def arguments(profile: Profile, update: Object) -> Object | None:
    """A call's arguments. An agent that gives none says in the title and the places what it works on."""
    raw = object_of(update, "rawInput")
    if raw:
        command = raw.get("command")
        if profile.suffix and isinstance(command, str) and command.endswith(profile.suffix):
            return {**raw, "command": cleaned(profile, command)}
        return raw
    if "rawInput" in update:
        return None
    title = cleaned(profile, text_of(update, "title"))
    places = [path for one in objects_of(update, "locations") if (path := text_of(one, "path"))]
    if places:
        return {"path": places[0], "description": title}
    if not title:
        return None
    return {"command": title} if update.get("kind") == "execute" else {"description": title}


def cleaned(profile: Profile, text: str) -> str:
    """Without what the agent glues to a command."""
    return text.removesuffix(profile.suffix).rstrip() if profile.suffix else text


def options_of(params: Object) -> tuple[Option, ...]:
    """The answers that a permission request offers."""
    return tuple(
        [
            Option(id=text_of(one, "optionId"), label=text_of(one, "name"), kind=text_of(one, "kind"))
            for one in objects_of(params, "options")
        ]
    )


_STEPS = ("pending", "in_progress", "completed")


def plan_of(update: Object) -> Plan:
    """The agent's plan, whole."""
    steps = [
        PlanStep(
            description=text_of(one, "content"),
            status=status if (status := text_of(one, "status")) in _STEPS else "pending",
        )
        for one in objects_of(update, "entries")
    ]
    return Plan(steps=tuple(steps))


def fields_of(schema: Object) -> tuple[Question, ...]:
    """The fields of a form, each as a question of its own."""
    properties = object_of(schema, "properties")
    return tuple(_field(name, object_of(properties, name)) for name in properties)


def _field(name: str, field: Object) -> Question:
    """A choice is spelled in one of two ways, and of several things that may be chosen it describes one."""
    several = field.get("type") == "array"
    choice = object_of(field, "items") if several else field
    given = [one for one in list_of(choice, "enum") if isinstance(one, str)]
    options = [Option(id=one, label=one) for one in (["true", "false"] if field.get("type") == "boolean" else given)]
    for one in (*objects_of(choice, "oneOf"), *objects_of(choice, "anyOf")):
        value = text_of(one, "const")
        options.append(Option(id=value, label=text_of(one, "title") or value))
    words = text_of(field, "description", "title") or name
    return Question(text=words, options=tuple(options), multiple=several, header=name)
