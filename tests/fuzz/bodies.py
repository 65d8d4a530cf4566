"""Generate event bodies with any content, from the event types themselves, so that a new event is included.

All words come from one small pool. So ids repeat, are missing, or are the same for a message and a call. Confused agents
send such events, and handwritten tests forget them.

The bodies are created once from a fixed seed, and a tape is a list of draws from them. Drawing every field of every body
would take a hundred draws per event. This way tapes can be long and still shrink to a few plain events.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec import inspect

from quarterdeck import events as ev
from quarterdeck.events import Body, Event, Origin

#: Longer than any preview; rare, so that an example that fails can be read.
HUGE = "Lorem ipsum \u2603 " * 300
WORDS = (*("a", "b", "g1", "c1", "m0", "", "two\nlines", "\u202e\x00\U0001f525") * 4, HUGE)
NUMBERS = (0, 0, 0, 1, -1, 10**12)
VALUES: tuple[Any, ...] = (None, True, 7, "a", [], [None, "b"], {}, {"path": "x", "n": [1]}, {"text": {"deep": [[]]}})
ORIGINS: tuple[Origin, ...] = ("engine", "hook", "stream", "otlp", "rpc", "process", "file", "user", "supervisor")
#: Most events belong to the main agent.
PATHS: tuple[tuple[str, ...], ...] = ((), (), (), (), (), (), ("a",), ("a", "b"), ("",))

#: Types that change the state most (turns, gates, calls, processes), so that a short tape reaches many states.
LIVELY: tuple[type[Body], ...] = (
    ev.SessionOpened,
    ev.SessionSuspended,
    ev.SessionResumed,
    ev.ProcessStarting,
    ev.ProcessExited,
    ev.AgentReady,
    ev.PromptReceived,
    ev.PromptQueued,
    ev.SteeringReceived,
    ev.SteeringApplied,
    ev.AgentStart,
    ev.AgentEnd,
    ev.AgentAbort,
    ev.TurnFailed,
    ev.RequestStart,
    ev.MessageStart,
    ev.MessageDelta,
    ev.ResponseComplete,
    ev.MessageAborted,
    ev.ToolCall,
    ev.ToolExecutionStart,
    ev.ToolExecutionOutput,
    ev.ToolExecutionEnd,
    ev.ApprovalRequired,
    ev.ApprovalResolved,
    ev.AskUser,
    ev.UserResponded,
    ev.DialogRequired,
    ev.DialogResolved,
    ev.BackgroundStarted,
    ev.BackgroundEnded,
)


def _structs(info: inspect.StructType, random: Random) -> Any:
    fields = {one.name: _value(one.type, random) for one in info.fields}
    if issubclass(info.cls, Body):
        fields["agent_path"] = random.choice(PATHS)
    return info.cls(**fields)


_BY_TYPE: dict[type[inspect.Type], Callable[[Any, Random], Any]] = {
    inspect.StrType: lambda _, random: random.choice(WORDS),
    inspect.IntType: lambda _, random: random.choice(NUMBERS),
    inspect.FloatType: lambda _, random: random.choice((0.0, 0.25, -1.5)),
    inspect.BoolType: lambda _, random: random.choice((False, True)),
    inspect.NoneType: lambda _, __: None,
    inspect.AnyType: lambda _, random: random.choice(VALUES),
    inspect.LiteralType: lambda kind, random: random.choice(kind.values),
    inspect.UnionType: lambda kind, random: _value(random.choice(kind.types), random),
    inspect.VarTupleType: lambda kind, random: tuple(
        _value(kind.item_type, random) for _ in range(random.choice((0, 1, 2)))
    ),
    inspect.StructType: _structs,
}


def _value(kind: inspect.Type, random: Random) -> Any:
    return _BY_TYPE[type(kind)](kind, random)


def bodies_of(kinds: tuple[type[Body], ...], each: int) -> list[Body]:
    """Create `count` bodies of each of these types. Plain ones come first, because hypothesis shrinks towards them."""
    random = Random(0)
    return [*map(plain, kinds), *(_value(inspect.type_info(kind), random) for _ in range(each) for kind in kinds)]


def one_of_each() -> list[Body]:
    """Create a plain body of every type."""
    return [*map(plain, ev.TYPES), ev.Unknown(name="from_the_future")]


def plain(kind: type[Body]) -> Body:
    """Create a body of this type with its required fields only."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return kind(**{one.name: _value(one.type, Random(0)) for one in info.fields if one.required})


_LIVELY = bodies_of(LIVELY, 24)
_ALL = [*bodies_of(ev.TYPES, 6), ev.Unknown(name="from_the_future"), ev.Unknown(name="", agent_path=("a",))]
#: A session is usually opened before its other events, but not always.
_BEGINNINGS: tuple[list[Body], ...] = (
    [],
    [ev.SessionOpened(agent="builtin")],
    [ev.SessionOpened(agent="builtin", prompt="a", message_id="m0"), ev.ProcessStarting()],
    [ev.SessionOpened(agent="builtin"), ev.AgentReady(capabilities=("steer",), resumable=True), ev.AgentStart()],
)


def any_body() -> SearchStrategy[Body]:
    """Generate any body. Two of three are of the types that change the state most."""
    return st.sampled_from(_LIVELY) | st.sampled_from(_LIVELY) | st.sampled_from(_ALL)


def many_bodies() -> SearchStrategy[list[Body]]:
    """Generate the content of a log: a start, then any events."""
    short, long = st.lists(any_body(), max_size=8), st.lists(any_body(), min_size=16, max_size=48)
    return st.builds(lambda first, rest: [*first, *rest], st.sampled_from(_BEGINNINGS), short | long)


def numbered(bodies: list[Body]) -> list[Event]:
    """Turn bodies into a log: indexes rise by one, times never decrease, origins vary."""
    return [
        Event("s1", index, 1_000 + index // 2 * 60_000, ORIGINS[index % len(ORIGINS)], body)
        for index, body in enumerate(bodies, 1)
    ]


def tapes() -> SearchStrategy[list[Event]]:
    """Generate logs."""
    return many_bodies().map(numbered)
