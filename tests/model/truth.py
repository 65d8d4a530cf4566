"""What is really the case in one session, as opposed to what the view shows: the two are compared after every batch.

The truth also says which activity a good translator tells (`activity_of`) and which runs may show (`runs_of`); both are
written from the documents, not from the kernel. Names (of calls, gates, texts) are only there to make events; two worlds
that differ in nothing else are one world (`shape`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.events import Body
from quarterdeck.kernel.view import View

Path: TypeAlias = tuple[str, ...]


class Bounds(Struct, frozen=True, kw_only=True):
    """How much there may be of what could grow for ever. `depth` cuts the search off after so many batches."""

    calls: int = 2
    subs: int = 1
    texts: int = 1
    dialogs: bool = True
    shells: bool = True
    depth: int | None = None


Status: TypeAlias = Literal["asks", "asks_late", "allowed", "refused", "runs"]


class Call(Struct, frozen=True, gc=False):
    """A call that has no end yet.

    asks       a person is asked, and it was never told as running (the engine holds it)
    asks_late  told as running first, asked then (Codex, pi: the start comes before the approval)
    allowed    approved, its start is not seen yet
    refused    rejected, its failed end is not seen yet; until then 003 says tool_use, for a no as for a yes
    runs       it runs; with `sub` it is the call that a sub-agent works for
    """

    id: str
    status: Status
    sub: str = ""


class Question(Struct, frozen=True, gc=False):
    """A question of the main agent; `call` is the tool that asks, if the agent has one for it."""

    id: str
    call: str = ""


class Sub(Struct, frozen=True, gc=False):
    """A sub-agent. `call` is the call that waits for it; in the background none does."""

    id: str
    doing: Literal["works", "approval", "question"] = "works"
    call: str = ""

    @property
    def in_background(self) -> bool:
        return not self.call


class Truth(Struct, frozen=True, gc=False):
    """All that is the case.

    process   none · waiting (a start waits for a free place) · starting · up
    has_run   there was a process, so that without one the agent is gone, not yet to come
    left      the agent said that its session is over; the process may live on
    promise   what is on its way to the agent although no turn is open yet: `first` (the prompt of the creation), `text`,
              `anew` (a text that starts over), `go_on` (resume, retry), `restore` (a suspended session is being loaded)
    step      what the open turn does; empty when none is open
    lingers   all calls are answered and the translator still says tool_use (Codex)
    """

    lifecycle: str = "none"
    process: Literal["none", "waiting", "starting", "up"] = "none"
    has_run: bool = False
    left: bool = False
    promise: Literal["", "first", "text", "anew", "go_on", "restore"] = ""
    prompts: Path = ()
    steers: Path = ()
    step: Literal["", "asking", "writing", "tools", "compacting"] = ""
    lingers: bool = False
    calls: tuple[Call, ...] = ()
    question: Question | None = None
    dialog: str = ""
    subs: tuple[Sub, ...] = ()
    shell: str = ""

    @property
    def is_live(self) -> bool:
        """An agent that can say something."""
        return self.lifecycle == "active" and self.process == "up" and not self.left

    @property
    def is_free(self) -> bool:
        """An agent that could begin a turn now."""
        return self.is_live and not self.step and not self.promise


class World(NamedTuple):
    """The truth, and what is shown."""

    truth: Truth
    view: View


class Move(NamedTuple):
    """One step. `by` says who makes it; `beneath` is the phase that must lie beneath any gate afterwards, if one must."""

    label: str
    by: Literal["agent", "deck", "person", "decision", "stop", "death"]
    bodies: tuple[Body, ...]
    truth: Truth
    beneath: str = ""


class Asked(NamedTuple):
    """A gate that somebody really waits at."""

    gate_id: str
    kind: Literal["approval", "question", "dialog"]
    path: Path = ()
    call: str = ""


def gate_of(name: str) -> str:
    """The deck's name of the gate of this call, question, dialog or sub-agent."""
    return f"g.{name}"


def asked(truth: Truth) -> Iterator[Asked]:
    """Everything that a person is asked."""
    for call in truth.calls:
        if call.status in ("asks", "asks_late"):
            yield Asked(gate_of(call.id), "approval", (), call.id)
    if truth.question is not None:
        yield Asked(gate_of(truth.question.id), "question", (), truth.question.call)
    if truth.dialog:
        yield Asked(gate_of(truth.dialog), "dialog")
    for sub in truth.subs:
        if sub.doing != "works":
            yield Asked(gate_of(sub.id), sub.doing, (sub.id,))


def activity_of(truth: Truth) -> str:
    """What a good translator says (003): compacting, then what a person is asked, then calls, then the turn."""
    if truth.lifecycle == "none":
        return "initialized"
    if truth.lifecycle != "active" or truth.left:
        return "exited"
    if truth.process != "up":
        return "exited" if truth.has_run and truth.process != "starting" else "initialized"
    if truth.step == "compacting":
        return "active/compacting"
    if any(not one.path for one in asked(truth)):
        return "active/waiting_for_permission"
    if truth.lingers or any(call.status in ("runs", "refused") for call in truth.calls):
        return "active/tool_use"
    return "active/thinking" if truth.step else "idle"


def runs_of(truth: Truth) -> tuple[str, ...]:
    """What the run may show (001, and the held call of design section 5)."""
    if truth.step in ("", "asking", "writing", "compacting"):
        return ({"": "idle", "writing": "streaming"}.get(truth.step, "running"),)
    statuses = {call.status for call in truth.calls}
    if "runs" in statuses or truth.question is not None:
        return ("executing_tools",)
    if statuses & {"asks", "asks_late"}:
        return ("idle",)
    # decided and not seen, or all answered and no request seen: 001 leaves the tools with the next request
    return ("running", "executing_tools")


def told(before: Truth, after: Truth) -> tuple[Body, ...]:
    """The activity, if a translator has to say it; that an agent came or went says it by itself."""
    if after.lifecycle != "active" or after.process != "up" or after.left:
        return ()
    value = activity_of(after)
    known = activity_of(before) if before.is_live else "idle"
    if value == known:
        return ()
    state, _, sub = value.partition("/")
    return (ev.StateChange(state=state, sub=sub or None),)  # type: ignore[arg-type]


def without_turn(truth: Truth) -> Truth:
    """The turn is over: what belonged to it is gone. A dialog is an extension's, and goes on waiting."""
    return replace(
        truth,
        step="",
        lingers=False,
        calls=(),
        question=None,
        subs=tuple(sub for sub in truth.subs if sub.in_background),
    )


def without_process(truth: Truth) -> Truth:
    """The process is gone, and all that lived in it."""
    bare = without_turn(truth)
    return replace(bare, process="none", has_run=True, left=False, promise="", dialog="", subs=(), shell="")


def shape(truth: Truth) -> tuple[object, ...]:
    """The truth without its names."""
    subs = {sub.id: (sub.doing, sub.in_background) for sub in truth.subs}
    return (
        truth.lifecycle,
        truth.process,
        truth.has_run,
        truth.left,
        truth.promise,
        len(truth.prompts),
        len(truth.steers),
        truth.step,
        truth.lingers,
        tuple(sorted((call.status, subs.get(call.sub, ("", False))) for call in truth.calls)),
        truth.question and bool(truth.question.call),
        bool(truth.dialog),
        tuple(sorted(subs.values())),
        bool(truth.shell),
    )
