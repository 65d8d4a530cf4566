"""What a scripted model says: a file of steps, and which of them a request gets.

A script is TOML or JSON. `default` is a list of steps; `scenario` has more such lists by name:

    [[default]]
    text = "Hello."

    [[scenario.fix]]
    think = "The lexer is wrong."
    text = "I look at it."
    calls = [{ name = "read_file", args = { path = "lexer.py" } }]

    [[scenario.fix]]
    text = "It is mended."
    usage = { input = 1200, output = 80, cache_read = 900 }
    faults = [{ kind = "http", status = 529, times = 2 }, { kind = "drop", at = 300 }]

    [aux]
    text = "A title"

    [trouble]
    delay = 0.2
    success_rate = 70
    fault = { kind = "http", status = 429, retry_after = 1 }

Nothing is remembered between requests: the last message of the user that holds `script:NAME` picks a scenario, and the
number of replies that the conversation has after it is the step. Without such a word it is `default`, counted from the
beginning. So a conversation that is resumed, by whomever, goes on where it was. What comes after the last step is
`over`. A request without tools gets `aux`, if there is one: a title, a summary.

Only faults count: each is played `times` times for one step of one conversation, then the next one, then the step itself.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta, Struct

from quarterdeck.errors import QuarterdeckError

Wire: TypeAlias = Literal["anthropic", "responses", "chat", "gemini"]

_MARK = re.compile(r"script:([\w.-]+)")


class BadScript(QuarterdeckError):
    """A script that cannot be played."""

    code = "bad_script"


class ScriptedCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool call. `raw` is said in place of `args` where arguments are text, and need not be JSON."""

    name: str
    args: dict[str, Any] = {}
    raw: str | None = None
    #: Made up, and never the same again, when it is empty.
    id: str = ""

    @property
    def arguments(self) -> str:
        return msgspec.json.encode(self.args).decode() if self.raw is None else self.raw


class ScriptedUsage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Four buckets that do not overlap; each format adds them up in its own way."""

    input: int = 100
    output: int = 20
    cache_read: int = 0
    cache_write: int = 0


class Fault(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What goes wrong.

    http     an error in place of a reply: `status`, `code` for one of several reasons (overflow, quota, credit, limit),
             `message`, `body` (in place of the service's own form), `headers`, `retry_after`
    hang     nothing at all for `seconds`, not even a status
    drop     the connection ends after `at` bytes of the body (half of them when nothing is said)
    cut      the same, but the body ends there as if it were whole
    error    the service says in the middle of the stream that it failed: `code`, `message`, after `at` events
    stall    silence for `seconds` after `at` events, and then the rest
    garbage  bytes that mean nothing, after `at` events
    drip     the body comes in `size` bytes at a time, `seconds` apart
    """

    kind: Literal["http", "hang", "drop", "cut", "error", "stall", "garbage", "drip"]
    #: How often before the next fault, or the step itself; 0 is for ever.
    times: int = 1
    status: int = 500
    code: str = ""
    message: str = ""
    body: Any = None
    headers: dict[str, str] = {}
    retry_after: float | None = None
    at: int | None = None
    seconds: float = 0.0
    size: int = 1


class Step(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One reply: reasoning, text, calls, in this order."""

    think: str = ""
    #: What proves the reasoning to the service, in formats that have such a thing.
    signature: str = "c2NyaXB0ZWQ="
    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    usage: ScriptedUsage = ScriptedUsage()
    #: end, tools, length, refused; or a word of the format itself.
    stop: str = ""
    #: Characters in one piece of text, reasoning or arguments.
    chunk: int = 12
    #: Seconds between two events of the stream. Without them the whole stream is one write.
    delay: float = 0.0
    faults: tuple[Fault, ...] = ()

    @property
    def stop_reason(self) -> str:
        return self.stop or ("tools" if self.calls else "end")


class Trouble(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What any request may meet, whatever it asks for: it waits, and by chance it fails."""

    #: Seconds before anything is said.
    delay: Annotated[float, Meta(ge=0, le=10)] = 0.0
    #: How many of a hundred requests go well.
    success_rate: Annotated[float, Meta(ge=0, le=100)] = 100.0
    fault: Fault = Fault(kind="http", status=500)
    #: The same seed fails the same requests.
    seed: int = 0


class Script(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole. `key`, if there is one, must come with every request; `trouble` is met by all of them."""

    default: tuple[Step, ...] = (Step(text="Hello. I am a script, and there is nothing in me yet."),)
    scenario: dict[str, tuple[Step, ...]] = {}
    over: Step = Step(text="The script is over.")
    aux: Step | None = None
    key: str = ""
    trouble: Trouble | None = None


class Turn(NamedTuple):
    """One message of a conversation, whatever its format. Calls and results by their ids."""

    role: Literal["user", "model", "result"]
    text: str = ""
    calls: tuple[str, ...] = ()
    results: tuple[str, ...] = ()


class Place(NamedTuple):
    """Which step it is, and what tells this conversation from others that play the same one."""

    scenario: str
    number: int
    told: str
    step: Step


def scripted(*steps: Step) -> Script:
    """A script of these replies, in this order."""
    return Script(default=steps)


def loaded(path: Path) -> Script:
    """BadScript."""
    try:
        data = path.read_bytes()
        told = msgspec.json.decode(data) if path.suffix == ".json" else tomllib.loads(data.decode())
        return msgspec.convert(told, Script)
    except OSError as error:
        raise BadScript(f"{path} cannot be read: {error.strerror}", "Name a file that exists.") from None
    except (tomllib.TOMLDecodeError, UnicodeError, msgspec.MsgspecError) as error:
        raise BadScript(f"{path}: {error}", "`qd testing model --help` says where the format is described.") from None


def place(script: Script, turns: Sequence[Turn], has_tools: bool) -> Place:
    """What is to be said now."""
    if script.aux and not has_tools:
        return Place("aux", 0, turns[-1].text if turns else "", script.aux)
    for at in range(len(turns) - 1, -1, -1):
        found = _MARK.findall(turns[at].text) if turns[at].role == "user" else []
        if found:
            return _step(script.over, found[-1], script.scenario.get(found[-1], ()), turns[at:])
    return _step(script.over, "default", script.default, turns)


def _step(over: Step, name: str, steps: Sequence[Step], turns: Sequence[Turn]) -> Place:
    number = replies(turns)
    told = next((turn.text for turn in turns if turn.role == "user"), "")
    return Place(name, number, told, steps[number] if number < len(steps) else over)


def replies(turns: Sequence[Turn]) -> int:
    """How often the model spoke. What follows each other is one reply: some formats make an item of every part."""
    return sum(turn.role == "model" and (at == 0 or turns[at - 1].role != "model") for at, turn in enumerate(turns))


def unanswered(turns: Sequence[Turn]) -> tuple[str, ...]:
    """Calls without a result when the model is asked again: every service refuses such a conversation."""
    waiting: list[str] = []
    for turn in turns:
        if turn.role == "result":
            waiting = [call for call in waiting if call not in turn.results]
        elif turn.role == "user" and waiting:
            break
        waiting += turn.calls
    return tuple(waiting)


def fault(step: Step, attempt: int) -> Fault | None:
    """What goes wrong at this attempt, counted from 0."""
    for one in step.faults:
        if one.times == 0 or attempt < one.times:
            return one
        attempt -= one.times
    return None


def pieces(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), max(size, 1))]
