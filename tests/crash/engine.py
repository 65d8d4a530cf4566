"""Run the built-in agent in the crash suite: its real process, with a model that obeys the scripted agent's commands.

Every message begins with `write FILE TOKEN`. The model calls a tool for it, once for each token that any message of the
conversation names and that no call was made for, regardless of the call's outcome. If a call is lost with its process
and run again, the file has the token twice. Run as a program, this module is the agent. Imported, it provides the
harness that starts the agent.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from quarterdeck.engine import process, setup
from quarterdeck.engine.model import (
    CallBegun,
    CallPiece,
    Chunk,
    Finished,
    Message,
    Model,
    ModelError,
    Request,
    Text,
    TextPiece,
    ThinkingPiece,
)
from quarterdeck.engine.tools.function import tool
from quarterdeck.harness.builtin import history
from quarterdeck.harness.builtin.driver import BuiltinDriver
from quarterdeck.harness.builtin.translate import BuiltinTranslator
from quarterdeck.harness.driver import Spawn, Start
from quarterdeck.harness.registry import Harness

_WRITE = re.compile(r"write (\S+) ([^\s;]+)")


class EngineDriver(BuiltinDriver):
    def spawn(self, start: Start) -> Spawn:
        home = os.path.join(tempfile.gettempdir(), "quarterdeck-crash-engine")
        return Spawn(
            argv=(sys.executable, "-m", "tests.crash.engine"), environment={"QUARTERDECK_HOME": home} | _path()
        )

    def model(self, wanted: str) -> str:
        return f"script:{wanted or 'first'}"


def _path() -> dict[str, str]:
    """Make our modules importable: the agent's working directory is the session's folder."""
    return {"PYTHONPATH": os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))}


def harness(name: str) -> Harness:
    return Harness(name, EngineDriver, BuiltinTranslator, history.TYPES)


# --- the tools


@tool
async def note(file: str, token: str) -> str:
    """Adds a line to a file, in one write."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, token.encode() + b"\n")
    finally:
        os.close(descriptor)
    return "written"


@tool
async def child(seconds: float) -> str:
    """Starts a process that lives so long, waits a moment, and leaves it."""
    sleep = f"import time; time.sleep({seconds})"
    await asyncio.create_subprocess_exec(sys.executable, "-c", sleep, start_new_session=True)
    await asyncio.sleep(0.1)
    return "it runs"


# --- the model


class ObedientModel:
    """A model that derives its next reply from the conversation alone, so that it continues after a restart."""

    provider = "script"

    async def stream(self, request: Request) -> AsyncGenerator[Sequence[Chunk]]:
        missing = _missing(request.messages)
        if missing:
            yield [*_called("note", len(request.messages), file=missing[0], token=missing[1]), Finished("tools")]
            return
        verb, _, rest = _word(request.messages).partition(" ")
        if verb == "exit":
            os._exit(int(rest or 0))
        if verb == "error":
            raise ModelError("api", rest)
        if verb == "sleep":
            await asyncio.sleep(float(rest))
        if verb == "flood":
            for number in range(int(rest)):
                yield [TextPiece(f"{number} ")]
                await asyncio.sleep(0)
        calls = _calls(verb, rest, len(request.messages))
        said = [ThinkingPiece(rest)] if verb == "think" else [TextPiece(f"{verb} {rest}.")]
        yield [*said, *calls, Finished("tools" if calls else "end")]


def _missing(messages: Sequence[Message]) -> tuple[str, str] | None:
    """Return the file and token of a `write` that no call was made for, or None."""
    called = {str(call.args.get("token")) for message in messages for call in message.calls if call.name == "note"}
    for message in messages:
        for file, token in _WRITE.findall(message.text) if message.role == "user" else ():
            if token not in called:
                return file, token
    return None


def _word(messages: Sequence[Message]) -> str:
    """Return the next command of the last message, after its `write`."""
    at = max(place for place, message in enumerate(messages) if message.role == "user")
    last = next(part.text for part in reversed(messages[at].parts) if isinstance(part, Text))
    words = [word.strip() for word in last.split(";")][1:]
    replies = [message for message in messages[at:] if message.role == "assistant"]
    done = sum(all(call.name != "note" for call in message.calls) for message in replies)
    return words[done] if done < len(words) else "over"


def _calls(verb: str, rest: str, place: int) -> list[Chunk]:
    if verb == "tool":
        return _called("ls", place, path=".")
    if verb == "ask":
        return _called("shell", place, command="touch asked")
    if verb == "question":
        return _called("ask_user", place, question=rest)
    if verb in ("child", "orphan"):
        return _called("child", place, seconds=float(rest))
    return _called("ls", place, path="nowhere") if verb == "fail" else []


def _called(name: str, place: int, **args: Any) -> list[Chunk]:
    call = f"call-{place}-{os.getpid()}"
    return [CallBegun(0, call, name), CallPiece(0, msgspec.json.encode(args).decode())]


def main() -> None:
    usual = setup.prepare_agent

    def resolve(name: str, _: Mapping[str, Any]) -> tuple[Model, str]:
        return ObedientModel(), name.partition(":")[2]

    def prepared(*args: Any) -> setup.Setup:
        made = usual(*args)
        more = {"tools": [*made.settings["tools"], note, child], "resolve": resolve}
        return replace(made, settings={**made.settings, **more})

    setup.prepare_agent = prepared
    process.main()


if __name__ == "__main__":
    main()
