"""Define what a scripted model replies: a file of steps, and how a request finds its step.

A script is TOML or JSON. `default` is a list of steps; `scenario` has more such lists by name:

    [[default]]
    text = "Hello."

    [[scenario.fix]]
    think = "The lexer is wrong."
    text = "I look at it."
    calls = [{ name = "read_file", args = { path = "lexer.py" } }]

    [[scenario.fix]]
    text = "It is fixed."
    usage = { input = 1200, output = 80, cache_read = 900 }
    faults = [{ kind = "http", status = 529, times = 2 }, { kind = "drop", at = 300 }]

    [aux]
    text = "A title"

    [trouble]
    delay = 0.2
    success_rate = 70
    fault = { kind = "http", status = 429, retry_after = 1 }

No state is kept between requests. The last user message that contains `script:NAME` picks a scenario, and the number of
replies after it is the step. Without such a message the scenario is `default`, counted from the start of the
conversation. So a resumed conversation continues where it was. After the last step the reply is `over`. A request without
tools gets `aux`, if there is one: a title or a summary.

Only faults are counted: each is played `times` times for one step of one conversation, then the next fault, then the step.
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

_SCENARIO = re.compile(r"script:([\w.-]+)")


class BadScript(QuarterdeckError):
    """A script can't be read or isn't valid."""

    code = "bad_script"


# ------------------------------------------------------------------------------------------------------- the script


class ScriptedCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool call."""

    name: str
    args: dict[str, Any] = {}
    #: Text to send instead of the encoded `args`. It doesn't have to be JSON.
    raw: str | None = None
    #: The id of the call. By default a new one every time.
    id: str = ""

    @property
    def arguments(self) -> str:
        return msgspec.json.encode(self.args).decode() if self.raw is None else self.raw


class ScriptedUsage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Four token counts that don't overlap. Each format adds them up in its own way."""

    input: int = 100
    output: int = 20
    cache_read: int = 0
    cache_write: int = 0


class Fault(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A failure instead of, or in the middle of, a reply.

    http     an HTTP error: `status`, `code` for one of several reasons (overflow, quota, credit, limit), `message`,
             `body` (instead of the service's own format), `headers`, `retry_after`
    hang     no response at all for `seconds`, not even a status
    drop     the connection breaks after `at` bytes of the body (default: half of it)
    cut      the same, but the body ends there as if it were complete
    error    the service reports an error inside the stream: `code`, `message`, after `at` events
    stall    a pause of `seconds` after `at` events, then the rest
    garbage  invalid bytes after `at` events
    drip     the body arrives in pieces of `size` bytes, `seconds` apart
    """

    kind: Literal["http", "hang", "drop", "cut", "error", "stall", "garbage", "drip"]
    #: How often the fault is played before the next one, or the step itself. 0 means always.
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
    """One reply: reasoning, text and calls, in this order."""

    think: str = ""
    #: Signature of the reasoning, in formats that have one.
    signature: str = "c2NyaXB0ZWQ="
    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    usage: ScriptedUsage = ScriptedUsage()
    #: `end`, `tools`, `length` or `refused`, or a stop reason of the format itself.
    stop: str = ""
    #: Number of characters in one piece of text, reasoning or arguments.
    chunk: int = 12
    #: Seconds between two events of the stream. Without it the whole stream is written at once.
    delay: float = 0.0
    faults: tuple[Fault, ...] = ()

    @property
    def stop_reason(self) -> str:
        return self.stop or ("tools" if self.calls else "end")


class Trouble(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Delays and random failures of all requests, whatever step they get."""

    #: Seconds before the response starts.
    delay: Annotated[float, Meta(ge=0, le=10)] = 0.0
    #: Percentage of requests that succeed.
    success_rate: Annotated[float, Meta(ge=0, le=100)] = 100.0
    fault: Fault = Fault(kind="http", status=500)
    #: The same seed makes the same requests fail.
    seed: int = 0


class Script(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole script."""

    default: tuple[Step, ...] = (Step(text="Hello. I am a scripted model without a script."),)
    scenario: dict[str, tuple[Step, ...]] = {}
    #: Reply after the last step.
    over: Step = Step(text="The script is over.")
    #: Reply to requests without tools.
    aux: Step | None = None
    #: If set, requests with another key are rejected.
    key: str = ""
    trouble: Trouble | None = None


def make_script(*steps: Step) -> Script:
    """Return a script with these replies, in this order."""
    return Script(default=steps)


def load_script(path: Path) -> Script:
    """Read a script from a TOML or JSON file.

    Raises:
        BadScript: the file can't be read or isn't a valid script.
    """
    try:
        data = path.read_bytes()
        content = msgspec.json.decode(data) if path.suffix == ".json" else tomllib.loads(data.decode())
        return msgspec.convert(content, Script)
    except OSError as error:
        raise BadScript(f"{path} can't be read: {error.strerror}", "Name a file that exists.") from None
    except (tomllib.TOMLDecodeError, UnicodeError, msgspec.MsgspecError) as error:
        raise BadScript(f"{path}: {error}", "docs/testing.md describes the format of scripts.") from None


# ------------------------------------------------------------------------------------------------- finding the step


class Turn(NamedTuple):
    """One message of a conversation, independent of the format. Calls and results are lists of ids."""

    role: Literal["user", "model", "result"]
    text: str = ""
    calls: tuple[str, ...] = ()
    results: tuple[str, ...] = ()


class ScriptPosition(NamedTuple):
    """The step that a request gets."""

    scenario: str
    number: int
    #: The text that started the scenario. Tells apart conversations that are at the same step, to count their faults.
    opening: str
    step: Step


def find_step(script: Script, turns: Sequence[Turn], has_tools: bool) -> ScriptPosition:
    """Return the step for a conversation."""
    if script.aux and not has_tools:
        return ScriptPosition("aux", 0, turns[-1].text if turns else "", script.aux)
    for at in range(len(turns) - 1, -1, -1):
        names = _SCENARIO.findall(turns[at].text) if turns[at].role == "user" else []
        if names:
            return _step_of(script.over, names[-1], script.scenario.get(names[-1], ()), turns[at:])
    return _step_of(script.over, "default", script.default, turns)


def _step_of(over: Step, scenario: str, steps: Sequence[Step], turns: Sequence[Turn]) -> ScriptPosition:
    number = count_replies(turns)
    opening = next((turn.text for turn in turns if turn.role == "user"), "")
    return ScriptPosition(scenario, number, opening, steps[number] if number < len(steps) else over)


def count_replies(turns: Sequence[Turn]) -> int:
    """Count the model's replies. Consecutive turns of the model are one: some formats have an item for every part."""
    return sum(turn.role == "model" and (at == 0 or turns[at - 1].role != "model") for at, turn in enumerate(turns))


def find_unanswered_calls(turns: Sequence[Turn]) -> tuple[str, ...]:
    """Return calls that have no result when the model is asked again. Every service rejects such a conversation."""
    open_calls: list[str] = []
    for turn in turns:
        if turn.role == "result":
            open_calls = [call for call in open_calls if call not in turn.results]
        elif turn.role == "user" and open_calls:
            break
        open_calls += turn.calls
    return tuple(open_calls)


def fault_at(step: Step, attempt: int) -> Fault | None:
    """Return the fault of a step at this attempt, counted from 0."""
    for fault in step.faults:
        if fault.times == 0 or attempt < fault.times:
            return fault
        attempt -= fault.times
    return None


def split_text(text: str, size: int) -> list[str]:
    """Split a text into pieces of so many characters."""
    return [text[at : at + size] for at in range(0, len(text), max(size, 1))]
