"""`demo:`: a model that is none. It plays a short script with the agent's real tools, without a network and without a key.

The first prompt of a session gets the tour: it thinks, keeps a list, writes, reads and changes a file in a folder of its
own, asks for an approval and asks a question, and says what was shown. Later prompts may name what they want to see again.
What comes next is read from the conversation and from nothing else, so a session that was killed goes on where it was. A
text that comes in the middle is taken up in the next reply.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

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
_COPY = f"mkdir -p {FOLDER}/kept && cp {_NOTES} {FOLDER}/kept/"
_REMOVE = f"rm -r {FOLDER}"
_QUESTION = f"Shall the folder {FOLDER} stay when I am done?"
_KEEP, _DELETE = "Keep it", "Remove it"
_WORDS = re.compile(r"\S+\s*|\s+")
_LONGEST_QUOTE = 200


class Said(NamedTuple):
    """One reply. Calls are tools with their arguments."""

    text: str
    think: str = ""
    calls: tuple[tuple[str, dict[str, Json]], ...] = ()


class Scene(NamedTuple):
    """Where the conversation is: its prompt, what was asked in the middle, what the last calls gave."""

    prompt: str
    asides: tuple[str, ...]
    results: tuple[Result, ...]
    tools: Mapping[str, ToolSpec]

    def result(self, tool: str) -> Result | None:
        return next((one for one in self.results if one.name == tool), None)


Step: TypeAlias = Callable[[Scene], Said | None]


class DemoModel:
    """The model. `pause` in the options is how long a word takes; nothing at all with 0."""

    provider = "demo"

    def __init__(self, options: Mapping[str, Json] | None = None) -> None:
        pause = (options or {}).get("pause", PAUSE_S)
        if not isinstance(pause, int | float) or isinstance(pause, bool) or not 0 <= pause <= 60:
            raise InvalidProvider("demo: pause must be seconds between 0 and 60", "Leave it out for the usual pace.")
        self.pause = float(pause)

    async def stream(self, request: Request) -> AsyncGenerator[Sequence[Chunk]]:
        said = reply(request)
        words = 0
        for kind, text in ((ThinkingPiece, said.think), (TextPiece, said.text)):
            for word in _WORDS.findall(text):
                words += 1
                yield (kind(word),)
                if self.pause:
                    await asyncio.sleep(self.pause)
        name = secrets.token_hex(6)
        for at, (tool, args) in enumerate(said.calls):
            arguments = msgspec.json.encode(args).decode()
            half = len(arguments) // 2
            yield (
                CallBegun(at, f"demo_{name}_{at}", tool),
                CallPiece(at, arguments[:half]),
                CallPiece(at, arguments[half:]),
            )
        # its tokens are words, and they cost nothing
        heard = sum(len(message.text.split()) for message in request.messages)
        usage = TokenUsage(input=heard, output=words, cost_usd=0.0)
        yield (Finished("tools" if said.calls else "end", usage),)


# --- what is said next


def reply(request: Request) -> Said:
    """Pure: the same conversation gets the same reply. What was played before is played again to know what is next."""
    start = _start(request.messages)
    tools = {tool.name: tool for tool in request.tools}
    prompt = request.messages[start].text if request.messages else ""
    since = request.messages[start + 1 :]
    spoken = [at for at, message in enumerate(since) if message.role == "assistant"]
    steps = _wanted(prompt, is_first=start == 0 and bool(tools))
    following = before = 0
    for at in spoken:
        _, following = _played(steps, _scene(prompt, since[before:at], tools), following)
        before = at
    scene = _scene(prompt, since[before:], tools)
    said, _ = _played(steps, scene, following)
    return Said(_heard(scene) + said.text, said.think, _offered(said.calls, tools))


def _scene(prompt: str, latest: Sequence[Message], tools: Mapping[str, ToolSpec]) -> Scene:
    """What is known before a reply: all that came since the one before."""
    asides = tuple(message.text for message in latest if message.role == "user" and message.text.strip())
    results = tuple(part for message in latest for part in message.parts if isinstance(part, Result))
    return Scene(prompt, asides, results, tools)


def _start(messages: Sequence[Message]) -> int:
    """The prompt that is being answered: a text in the middle of a turn follows on results, a prompt does not."""
    for at in range(len(messages) - 1, 0, -1):
        before = messages[at - 1]
        is_prompt = before.role == "assistant" and not before.calls
        if messages[at].role == "user" and (is_prompt or _show(messages[at].text)):
            return at
    return 0


def _played(steps: Sequence[Step], scene: Scene, number: int) -> tuple[Said, int]:
    """The first step from this number on that has something to do, and the number of the one after it."""
    for at in range(number, len(steps)):
        said = steps[at](scene)
        if said is not None:
            return said, at + 1
    return Said("I am done with that.\n\n" + _MENU), len(steps)


def _wanted(prompt: str, is_first: bool) -> tuple[Step, ...]:
    return _show(prompt) or (_TOUR if is_first else (_anything,))


def _show(prompt: str) -> tuple[Step, ...]:
    """What a prompt of one word, or nearly so, names."""
    words = re.findall(r"[a-z]+", prompt.lower())
    return next((_SHOWS[word] for word in words if word in _SHOWS), ()) if len(words) <= 4 else ()


def _heard(scene: Scene) -> str:
    """What was said in the middle is taken up first."""
    if not scene.asides:
        return ""
    quoted = " and ".join(_quoted(text) for text in scene.asides)
    return f"You said {quoted} while I was at work. I have heard it, and go on with that in mind.\n\n"


def _quoted(text: str) -> str:
    short = " ".join(text.split())
    return f"“{short[:_LONGEST_QUOTE]}…”" if len(short) > _LONGEST_QUOTE else f"“{short}”"


def _offered(calls: tuple[tuple[str, dict[str, Json]], ...], tools: Mapping[str, ToolSpec]) -> Any:
    return tuple((name, fitted(args, tools[name].parameters)) for name, args in calls if name in tools)


def fitted(value: Json, schema: Json, root: Json = None) -> Json:
    """The value without what the schema does not know: tools may be other people's."""
    told = cast("dict[str, Json]", schema if isinstance(schema, dict) else {})
    root = told if root is None else root
    if isinstance(told.get("$ref"), str):
        found: Json = root
        for key in told["$ref"].removeprefix("#/").split("/"):
            found = cast("dict[str, Json]", found).get(key, {}) if isinstance(found, dict) else {}
        return fitted(value, found, root)
    if isinstance(value, dict):
        held = cast("dict[str, Json]", value)
        if told.get("type") == "string":
            return held.get("label", "")
        known = told.get("properties")
        names = cast("dict[str, Json]", known) if isinstance(known, dict) else dict.fromkeys(held)
        return {key: fitted(one, names[key], root) for key, one in held.items() if key in names}
    if isinstance(value, list):
        return [fitted(one, told.get("items"), root) for one in cast("list[Json]", value)]
    return value


# --- the tour


def _todos(done: int) -> dict[str, Json]:
    lines = ("Write a note", "Read it and change it", "Copy it, if I may", "Ask what to do with it")
    states = ["completed"] * done + ["in_progress"] + ["pending"] * len(lines)
    return {
        "todos": [{"id": str(at), "content": line, "status": states[at]} for at, line in enumerate(lines)],
    }


def _hello(scene: Scene) -> Said | None:
    if "write_file" not in scene.tools:
        return None
    note = "# A note\n\nIt was written by the demo of Quarterdeck.\nStatus: new\n"
    return Said(
        "<title>A first look around</title><status>Writing a note</status>"
        f"You wrote {_quoted(scene.prompt)}. There is no model behind me, only a script, so I show you what an agent does"
        " here, with real tools and real files.\n\n"
        f"I keep a list of what is to be done, and write a file in the folder {FOLDER}.",
        "This is somebody's first session. I show one thing after the other, and I leave nothing behind that is not wanted.",
        (("write_todos", _todos(0)), ("write_file", {"path": _NOTES, "content": note})),
    )


def _look(scene: Scene) -> Said | None:
    if not {"read_file", "write_file"} <= scene.tools.keys():
        return None
    text = "<status>Reading it</status>What I wrote I can read. Every step shows what went in and what came out."
    return Said(text, calls=(("write_todos", _todos(1)), ("read_file", {"path": _NOTES})))


def _change(scene: Scene) -> Said | None:
    if not {"edit_file", "write_file"} <= scene.tools.keys():
        return None
    edit = {"old": "Status: new", "new": "Status: read and changed"}
    old = {"old_string": edit["old"], "new_string": edit["new"]}
    return Said(
        "Now I change one line of it.", calls=(("edit_file", {"path": _NOTES, "edits": [edit], **edit, **old}),)
    )


def _permission(scene: Scene) -> Said | None:
    if "shell" not in scene.tools:
        return None
    return Said(
        "<status>Waiting for you</status>Next is a command for the shell. Such a thing is not done unasked: you see the"
        " command, and approve or reject it. Nothing happens until you do.",
        "A copy is harmless, and it shows how an approval works.",
        (("write_todos", _todos(2)), ("shell", {"command": _COPY})),
    )


def _question(scene: Scene) -> Said | None:
    if "ask_user" not in scene.tools:
        return None
    copied = scene.result("shell")
    told = ""
    if copied is not None:
        told = "Thank you: it is copied. " if copied.ok else "That was not allowed, or it failed, so there is no copy. "
    options = [{"id": "keep", "label": _KEEP}, {"id": "remove", "label": _DELETE}]
    ask: dict[str, Json] = {"question": _QUESTION, "options": options}
    text = f"<status>Asking you</status>{told}An agent can also ask you something, and waits for the answer."
    return Said(text, calls=(("write_todos", _todos(3)), ("ask_user", ask)))


def _settled(scene: Scene) -> Said | None:
    answer = scene.result("ask_user")
    if answer is not None and answer.ok and "remove" in answer.text.lower():
        calls = (("write_todos", _todos(4)), ("shell", {"command": _REMOVE}))
        return Said("Then I take the folder away, if you approve that too.", calls=calls)
    if "write_todos" not in scene.tools or not scene.results:
        return None
    told = "Nobody answered, so the folder stays." if answer is not None and not answer.ok else "So it stays."
    return Said(told, calls=(("write_todos", _todos(4)),))


def _goodbye(scene: Scene) -> Said | None:
    removed = scene.result("shell")
    left = ""
    if removed is not None:
        left = "The folder is gone. " if removed.ok else f"The folder {FOLDER} is still there. "
    text = (
        f"<status>Done</status>{left}That was the tour. You have seen reasoning, a list, files that were written, read and"
        " changed, an approval and a question: all of it is in the session, with its evidence.\n\n"
    )
    return Said(text + _MENU)


_MENU = (
    "What you can try now:\n"
    "- `long`: I talk for a while. Write something meanwhile, or press stop.\n"
    "- `approval`: I ask for a command.\n"
    "- `question`: I ask you something.\n"
    "- `tour`: all of it again.\n\n"
    "With a key of a model service (`ANTHROPIC_API_KEY`, `OPENAI_API_KEY`, `GEMINI_API_KEY`) a real model does real work."
)


# --- smaller shows


def _anything(scene: Scene) -> Said | None:
    return Said(
        f"You wrote {_quoted(scene.prompt)}. A real model would now work on it; I am a script, and can only show things."
        f"\n\n{_MENU}",
        "I cannot do that. I say so, and say what I can do.",
    )


def _long(_: Scene) -> Said | None:
    lines = [f"Line {number}: nothing happens, and it is said calmly." for number in range(1, 41)]
    return Said("<status>Talking</status>" + "\n".join(lines) + "\n\nThat was long. You may also stop such a thing.")


def _asked_only(scene: Scene) -> Said | None:
    answer = scene.result("ask_user")
    if answer is None:
        return _question(scene)
    return Said(f"You answered {_quoted(answer.text)}." if answer.ok else "Nobody answered.")


def _decided(scene: Scene) -> Said | None:
    done = scene.result("shell")
    if done is None:
        return None
    return Said(
        "You approved it, and it was done." if done.ok else "It was not allowed, or it failed. Nothing was done."
    )


def _approval_only(scene: Scene) -> Said | None:
    said = _permission(scene)
    return said and Said(said.text, said.think, (("shell", {"command": f"mkdir -p {FOLDER}"}),))


_TOUR: tuple[Step, ...] = (_hello, _look, _change, _permission, _question, _settled, _goodbye)
_SHOWS: dict[str, tuple[Step, ...]] = {
    "tour": _TOUR,
    "demo": _TOUR,
    "long": (_long,),
    "approval": (_approval_only, _decided),
    "question": (_asked_only, _asked_only),
}
