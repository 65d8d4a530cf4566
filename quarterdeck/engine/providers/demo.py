"""`demo:`: play a short script with the agent's real tools, without a network and without a key.

The first prompt of a session starts the tour: it reasons, keeps a to-do list, writes, reads and edits a file in a folder of
its own, asks for an approval, asks a question, and says what it has left behind. Later prompts may name a part to see again.

The next step is derived from the conversation alone, so a session that was killed continues where it was. A steering message
is answered in the next reply.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, cast

import msgspec

from quarterdeck.engine.model import (
    CallBegun,
    CallPiece,
    Chunk,
    Finished,
    Message,
    Request,
    Result,
    TextPiece,
    ThinkingPiece,
    ToolSpec,
)
from quarterdeck.engine.providers.credentials import InvalidProvider
from quarterdeck.events import Json, TokenUsage

#: Seconds between two words.
PAUSE_S = 0.02
FOLDER = "quarterdeck-demo"
_NOTES = f"{FOLDER}/notes.md"
_COPY_COMMAND = f"mkdir -p {FOLDER}/kept && cp {_NOTES} {FOLDER}/kept/"
_REMOVE_COMMAND = f"rm -r {FOLDER}"
_KEEP, _REMOVE = "Keep it", "Remove it"
_WORDS = re.compile(r"\S+\s*|\s+")
_QUOTE_LENGTH = 200

#: Tool calls of a reply: the tool's name and its arguments.
Calls: TypeAlias = tuple[tuple[str, dict[str, Json]], ...]


class DemoReply(NamedTuple):
    """One reply of the script."""

    text: str
    thinking: str = ""
    calls: Calls = ()


class DemoState(NamedTuple):
    """What a step of the script knows about the conversation."""

    prompt: str
    #: Steering messages since the last reply.
    steering: tuple[str, ...]
    #: Results since the last reply, and all results since the prompt.
    results: tuple[Result, ...]
    all_results: tuple[Result, ...]
    tools: Mapping[str, ToolSpec]

    def result(self, tool: str) -> Result | None:
        return next((result for result in self.results if result.name == tool), None)

    def has_succeeded(self, tool: str) -> bool:
        """Return whether a call of this tool has succeeded since the prompt."""
        return any(result.ok for result in self.all_results if result.name == tool)


#: A step returns None if there is nothing to do, for example because a tool is missing.
DemoStep: TypeAlias = Callable[[DemoState], DemoReply | None]


class DemoModel:
    """A model that plays the script. The option `pause` is the number of seconds between two words."""

    provider = "demo"

    def __init__(self, options: Mapping[str, Json] | None = None) -> None:
        pause = (options or {}).get("pause", PAUSE_S)
        if not isinstance(pause, int | float) or isinstance(pause, bool) or not 0 <= pause <= 60:
            raise InvalidProvider("demo: pause must be between 0 and 60 seconds", "Leave it out for the usual pace.")
        self.pause = float(pause)

    async def stream(self, request: Request) -> AsyncGenerator[Sequence[Chunk]]:
        reply = next_reply(request)
        word_count = 0
        for kind, text in ((ThinkingPiece, reply.thinking), (TextPiece, reply.text)):
            for word in _WORDS.findall(text):
                word_count += 1
                yield (kind(word),)
                if self.pause:
                    await asyncio.sleep(self.pause)
        reply_id = secrets.token_hex(6)
        for at, (tool, args) in enumerate(reply.calls):
            arguments = msgspec.json.encode(args).decode()
            half = len(arguments) // 2
            yield (
                CallBegun(at, f"demo_{reply_id}_{at}", tool),
                CallPiece(at, arguments[:half]),
                CallPiece(at, arguments[half:]),
            )
        # Count words as tokens. They cost nothing.
        read = sum(len(message.text.split()) for message in request.messages)
        usage = TokenUsage(input=read, output=word_count, cost_usd=0.0)
        yield (Finished("tools" if reply.calls else "end", usage),)


# -------------------------------------------------------------------------------------------------- the next reply


def next_reply(request: Request) -> DemoReply:
    """Return the next reply of the script. Pure: the same conversation gets the same reply.

    Earlier replies since the prompt are played again to find out which step is next.
    """
    start = _find_prompt(request.messages)
    tools = {tool.name: tool for tool in request.tools}
    prompt = request.messages[start].text if request.messages else ""
    messages = request.messages[start + 1 :]
    replies = [at for at, message in enumerate(messages) if message.role == "assistant"]
    steps = _choose_steps(prompt, is_first=start == 0 and bool(tools))
    step = last_reply = 0
    for at in replies:
        _, step = _play(steps, _state_at(prompt, messages, last_reply, at, tools), step)
        last_reply = at
    state = _state_at(prompt, messages, last_reply, len(messages), tools)
    reply, _ = _play(steps, state, step)
    return DemoReply(_answer_steering(state) + reply.text, reply.thinking, _available_calls(reply.calls, tools))


def _state_at(
    prompt: str, messages: Sequence[Message], last_reply: int, end: int, tools: Mapping[str, ToolSpec]
) -> DemoState:
    latest = messages[last_reply:end]
    steering = tuple(message.text for message in latest if message.role == "user" and message.text.strip())
    return DemoState(prompt, steering, _results(latest), _results(messages[:end]), tools)


def _results(messages: Sequence[Message]) -> tuple[Result, ...]:
    return tuple(part for message in messages for part in message.parts if isinstance(part, Result))


def _find_prompt(messages: Sequence[Message]) -> int:
    """Return the position of the prompt that is being answered.

    A steering message follows on results, a prompt on a reply without calls. A message that names a show starts over.
    """
    for at in range(len(messages) - 1, 0, -1):
        before = messages[at - 1]
        is_prompt = before.role == "assistant" and not before.calls
        if messages[at].role == "user" and (is_prompt or _find_show(messages[at].text)):
            return at
    return 0


def _choose_steps(prompt: str, is_first: bool) -> tuple[DemoStep, ...]:
    return _find_show(prompt) or (_TOUR if is_first else (_say_what_is_possible,))


def _find_show(prompt: str) -> tuple[DemoStep, ...]:
    """Return the show that a prompt of at most four words names."""
    words = re.findall(r"[a-z]+", prompt.lower())
    return next((_SHOWS[word] for word in words if word in _SHOWS), ()) if len(words) <= 4 else ()


def _play(steps: Sequence[DemoStep], state: DemoState, number: int) -> tuple[DemoReply, int]:
    """Play the first step from this number on that has something to do. Return it with the number of the next one."""
    for at in range(number, len(steps)):
        reply = steps[at](state)
        if reply is not None:
            return reply, at + 1
    return DemoReply(f"I'm done with that.\n\n{_MENU}"), len(steps)


def _answer_steering(state: DemoState) -> str:
    if not state.steering:
        return ""
    quotes = " and ".join(_quote(text) for text in state.steering)
    return f"You wrote {quotes} while I was working. Got it, I'll keep that in mind.\n\n"


def _quote(text: str) -> str:
    words = " ".join(text.split())
    return f"“{words[:_QUOTE_LENGTH]}…”" if len(words) > _QUOTE_LENGTH else f"“{words}”"


def _available_calls(calls: Calls, tools: Mapping[str, ToolSpec]) -> Calls:
    return tuple(
        (name, cast("dict[str, Json]", fit_to_schema(args, tools[name].parameters)))
        for name, args in calls
        if name in tools
    )


def fit_to_schema(value: Json, schema: Json, root: Json = None) -> Json:
    """Remove what a tool's schema doesn't know, because tools of these names may be the caller's own."""
    rules = cast("dict[str, Json]", schema if isinstance(schema, dict) else {})
    root = rules if root is None else root
    if isinstance(rules.get("$ref"), str):
        target: Json = root
        for key in rules["$ref"].removeprefix("#/").split("/"):
            target = cast("dict[str, Json]", target).get(key, {}) if isinstance(target, dict) else {}
        return fit_to_schema(value, target, root)
    if isinstance(value, dict):
        fields = cast("dict[str, Json]", value)
        if rules.get("type") == "string":
            return fields.get("label", "")
        properties = rules.get("properties")
        known = cast("dict[str, Json]", properties) if isinstance(properties, dict) else dict.fromkeys(fields)
        return {key: fit_to_schema(item, known[key], root) for key, item in fields.items() if key in known}
    if isinstance(value, list):
        return [fit_to_schema(item, rules.get("items"), root) for item in cast("list[Json]", value)]
    return value


# ------------------------------------------------------------------------------------------------------- the tour


def _todos(done: int) -> dict[str, Json]:
    items = ("Write a note", "Read and edit it", "Copy it, with your approval", "Ask whether to keep it")
    statuses = ["completed"] * done + ["in_progress"] + ["pending"] * len(items)
    return {"todos": [{"id": str(at), "content": text, "status": statuses[at]} for at, text in enumerate(items)]}


def _write_note(state: DemoState) -> DemoReply | None:
    if "write_file" not in state.tools:
        return None
    note = "# A note\n\nThe Quarterdeck demo wrote this file.\nStatus: new\n"
    return DemoReply(
        "<title>Quarterdeck tour</title><status>Writing a note</status>"
        f"Hi! You wrote {_quote(state.prompt)}. I'm a script, not a model, so I'll show you what an agent can do here."
        " The tools and the files are real.\n\n"
        f"First I make a to-do list and write a file in a new folder, {FOLDER}.",
        "This is the first prompt of the session. I'll show one feature after the other and use only my own folder.",
        (("write_todos", _todos(0)), ("write_file", {"path": _NOTES, "content": note})),
    )


def _read_note(state: DemoState) -> DemoReply | None:
    if not {"read_file", "write_file"} <= state.tools.keys():
        return None
    text = "<status>Reading the note</status>Now I read the file back. For every step you can see the input and the output."
    return DemoReply(text, calls=(("write_todos", _todos(1)), ("read_file", {"path": _NOTES})))


def _edit_note(state: DemoState) -> DemoReply | None:
    if not {"edit_file", "write_file"} <= state.tools.keys():
        return None
    edit = {"old": "Status: new", "new": "Status: read and edited"}
    # Other edit_file tools take old_string and new_string, or one edit without a list.
    variants: dict[str, Json] = {"edits": [edit], **edit, "old_string": edit["old"], "new_string": edit["new"]}
    return DemoReply("Now I change one line.", calls=(("edit_file", {"path": _NOTES, **variants}),))


def _copy_note(state: DemoState) -> DemoReply | None:
    if "shell" not in state.tools:
        return None
    return DemoReply(
        "<status>Waiting for your approval</status>Next I want to run a shell command. That needs your approval: you see the"
        " command and approve or reject it. Nothing runs before you decide.",
        "Copying a file is harmless, and it shows how approvals work.",
        (("write_todos", _todos(2)), ("shell", {"command": _COPY_COMMAND})),
    )


def _ask_question(state: DemoState) -> DemoReply | None:
    if "ask_user" not in state.tools:
        return None
    copied = state.result("shell")
    outcome = ""
    if copied is not None:
        outcome = (
            "Thanks, I copied the note. " if copied.ok else "The command was rejected or failed, so I made no copy. "
        )
    options = [{"id": "keep", "label": _KEEP}, {"id": "remove", "label": _REMOVE}]
    question: dict[str, Json] = {"question": f"Should I keep the folder {FOLDER}?", "options": options}
    text = f"<status>Asking a question</status>{outcome}An agent can also ask you a question and wait for your answer."
    return DemoReply(text, calls=(("write_todos", _todos(3)), ("ask_user", question)))


def _act_on_answer(state: DemoState) -> DemoReply | None:
    answer = state.result("ask_user")
    if answer is not None and answer.ok and "remove" in answer.text.lower():
        calls = (("write_todos", _todos(4)), ("shell", {"command": _REMOVE_COMMAND}))
        return DemoReply("OK, I'll remove the folder, if you approve that too.", calls=calls)
    if "write_todos" not in state.tools or not state.results:
        return None
    text = "OK, the folder stays."
    if answer is not None and not answer.ok:
        text = "There was no answer, so the folder stays."
    return DemoReply(text, calls=(("write_todos", _todos(4)),))


def _say_goodbye(state: DemoState) -> DemoReply | None:
    return DemoReply(
        "<status>Done</status>That was the tour. You have seen reasoning, a to-do list, a file that was written, read and"
        " edited, an approval and a question. Everything is recorded in this session.\n\n"
        f"{_MENU}\n\n{_describe_leftovers(state)}"
    )


def _describe_leftovers(state: DemoState) -> str:
    """Return the last sentence of the tour: what is in the folder, and how to delete it."""
    removed = state.result("shell")
    if not state.has_succeeded("write_file") or (removed is not None and removed.ok):
        return "I left no files behind."
    copy = " and a copy in kept/" if state.has_succeeded("shell") else ""
    return f"I left {FOLDER}/ with notes.md{copy}; delete it with `{_REMOVE_COMMAND}`."


_MENU = (
    "You can try these prompts next:\n"
    "- `long`: I write a long text. Send a message meanwhile, or stop me.\n"
    "- `approval`: I ask for your approval of a command.\n"
    "- `question`: I ask you a question.\n"
    "- `tour`: I start over.\n\n"
    "To let a real model work here, set a key: `ANTHROPIC_API_KEY`, `OPENAI_API_KEY` or `GEMINI_API_KEY`."
)


# ---------------------------------------------------------------------------------------------------- other shows


def _say_what_is_possible(state: DemoState) -> DemoReply | None:
    return DemoReply(
        f"You wrote {_quote(state.prompt)}. A real model would work on that now. I'm a script and can only show you a few"
        f" things.\n\n{_MENU}",
        "I can't do that. I'll say so, and say what I can do.",
    )


def _write_long_text(_: DemoState) -> DemoReply | None:
    lines = [f"Line {number} of a long text." for number in range(1, 41)]
    return DemoReply(
        "<status>Writing</status>" + "\n".join(lines) + "\n\nThat was long. You can stop a text like this."
    )


def _ask_and_confirm(state: DemoState) -> DemoReply | None:
    answer = state.result("ask_user")
    if answer is None:
        return _ask_question(state)
    return DemoReply(f"You answered {_quote(answer.text)}." if answer.ok else "There was no answer.")


def _ask_for_approval(state: DemoState) -> DemoReply | None:
    reply = _copy_note(state)
    return reply and DemoReply(reply.text, reply.thinking, (("shell", {"command": f"mkdir -p {FOLDER}"}),))


def _confirm_approval(state: DemoState) -> DemoReply | None:
    result = state.result("shell")
    if result is None:
        return None
    if not result.ok:
        return DemoReply("The command was rejected or failed, so nothing was done.")
    return DemoReply(
        f"You approved the command, and it ran. I left the folder {FOLDER}/; delete it with `{_REMOVE_COMMAND}`."
    )


_TOUR: tuple[DemoStep, ...] = (
    _write_note,
    _read_note,
    _edit_note,
    _copy_note,
    _ask_question,
    _act_on_answer,
    _say_goodbye,
)
_SHOWS: dict[str, tuple[DemoStep, ...]] = {
    "tour": _TOUR,
    "demo": _TOUR,
    "long": (_write_long_text,),
    "approval": (_ask_for_approval, _confirm_approval),
    "question": (_ask_and_confirm, _ask_and_confirm),
}
