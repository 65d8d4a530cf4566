"""Define the actual situation of one session, which is compared with the view after every batch.

The truth also determines which activity a correct translator reports (`activity_of`) and which states of the run are
possible (`runs_of`). Both follow the documents, not the kernel. Names of calls, gates and messages only serve to
create events: two worlds that differ in nothing else are the same (`shape`).
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
    """Limits for what could grow forever. `depth` ends the search after that many batches."""

    calls: int = 2
    subs: int = 1
    texts: int = 1
    dialogs: bool = True
    shells: bool = True
    depth: int | None = None


Status: TypeAlias = Literal["asks", "asks_late", "allowed", "refused", "runs"]


class Call(Struct, frozen=True, gc=False):
    """A call that hasn't ended.

    asks       waits for approval, and was never reported as running (the engine holds it)
    asks_late  reported as running, then waits for approval (Codex, pi: the start precedes the approval)
    allowed    approved; its start isn't seen yet
    refused    rejected; its failed end isn't seen yet. Until then 003 reports tool_use, as for an approval
    runs       it runs; with `sub`, a sub-agent works for it
    """

    id: str
    status: Status
    sub: str = ""


class Question(Struct, frozen=True, gc=False):
    """A question of the main agent. `call` is the tool that asks it, if the agent has one."""

    id: str
    call: str = ""


class Sub(Struct, frozen=True, gc=False):
    """A sub-agent. `call` is the call that waits for it; in the background there is none."""

    id: str
    doing: Literal["works", "approval", "question"] = "works"
    call: str = ""

    @property
    def in_background(self) -> bool:
        return not self.call


class Truth(Struct, frozen=True, gc=False):
    """Everything that is the case.

    process   none · waiting (queued for a free slot) · starting · up
    has_run   there was a process, so that without one the activity is exited and not initialized
    left      the agent reported the end of its session; the process may continue
    promise   what is about to start a turn: `first` (the prompt of the creation), `text`, `anew` (a message that
              starts a new task), `go_on` (resume, retry), `restore` (a suspended session is being loaded)
    step      what the open turn does; empty if none is open
    lingers   all calls are answered and the translator still reports tool_use (Codex)
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
        """Return whether there is an agent that can send events."""
        return self.lifecycle == "active" and self.process == "up" and not self.left

    @property
    def is_free(self) -> bool:
        """Return whether there is an agent that could start a turn now."""
        return self.is_live and not self.step and not self.promise


class World(NamedTuple):
    """The truth, and the view of it."""

    truth: Truth
    view: View


class Move(NamedTuple):
    """One step. `by` says who makes it; `base_phase` is the base phase that it must lead to, if any."""

    label: str
    by: Literal["agent", "deck", "person", "decision", "stop", "death"]
    bodies: tuple[Body, ...]
    truth: Truth
    base_phase: str = ""


class Asked(NamedTuple):
    """A gate that an agent waits for."""

    gate_id: str
    kind: Literal["approval", "question", "dialog"]
    path: Path = ()
    call: str = ""


def gate_of(name: str) -> str:
    """Return the deck's id of the gate of this call, question, dialog or sub-agent."""
    return f"g.{name}"


def asked(truth: Truth) -> Iterator[Asked]:
    """Return all gates that must be open."""
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
    """Return the activity that a correct translator reports (003): compacting, else gates, else calls, else the turn."""
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
    """Return the states of the run that may be shown (001, and held calls)."""
    if truth.step in ("", "asking", "writing", "compacting"):
        return ({"": "idle", "writing": "streaming"}.get(truth.step, "running"),)
    statuses = {call.status for call in truth.calls}
    if "runs" in statuses or truth.question is not None:
        return ("executing_tools",)
    if statuses & {"asks", "asks_late"}:
        return ("idle",)
    # The decision isn't seen yet, or all calls are answered and the next request isn't seen yet. In 001 the run leaves
    # executing_tools with the next request.
    return ("running", "executing_tools")


def told(before: Truth, after: Truth) -> tuple[Body, ...]:
    """Return the state_change that a translator must send, if any. Starts and ends of an agent imply the activity."""
    if after.lifecycle != "active" or after.process != "up" or after.left:
        return ()
    value = activity_of(after)
    known = activity_of(before) if before.is_live else "idle"
    if value == known:
        return ()
    state, _, sub = value.partition("/")
    return (ev.StateChange(state=state, sub=sub or None),)  # type: ignore[arg-type]


def without_turn(truth: Truth) -> Truth:
    """End the turn and what belongs to it. A dialog belongs to an extension and stays open."""
    return replace(
        truth,
        step="",
        lingers=False,
        calls=(),
        question=None,
        subs=tuple(sub for sub in truth.subs if sub.in_background),
    )


def without_process(truth: Truth) -> Truth:
    """End the process and everything in it."""
    bare = without_turn(truth)
    return replace(bare, process="none", has_run=True, left=False, promise="", dialog="", subs=(), shell="")


def shape(truth: Truth) -> tuple[object, ...]:
    """Return the truth without its names."""
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
