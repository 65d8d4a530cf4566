"""Model the deck: it starts and stops processes, delivers messages, shuts down, recovers and takes over sessions.

Processes also exit by themselves: with a code, by a signal, before they are ready, at any time.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from quarterdeck import events as ev
from quarterdeck.events import Body
from quarterdeck.kernel.phase import Phase
from tests.model.agent import BEGINNING, begun, prompted
from tests.model.truth import Bounds, Call, Move, Truth, World, asked, without_process

READY = ev.AgentReady(native_session_id="n1", capabilities=("steer",), resumable=True)


def moves(world: World, _bounds: Bounds) -> Iterator[Move]:
    """Return everything that the deck may do or observe now."""
    truth = world.truth
    if truth.lifecycle == "none":
        adopted = Truth(lifecycle="active", process="up", has_run=True)
        opened = ev.SessionOpened(agent="claude", owner="terminal")
        yield Move("a session of a terminal is seen", "deck", (opened, READY), adopted, "idle")
    elif truth.lifecycle == "active":
        yield from _starts(truth, world)
        yield from _delivers(truth, world)
        yield from _ends_processes(truth, world)
        yield from _shuts_down(truth, world)
    else:
        yield from _at_rest(truth)


# --- processes come


def _starts(truth: Truth, world: World) -> Iterator[Move]:
    if truth.process == "waiting":
        yield Move("the process starts", "deck", (ev.ProcessStarting(pid=1),), replace(truth, process="starting"))
    if truth.process == "none" and not truth.promise:
        again = replace(truth, process="starting")
        yield Move("somebody starts the agent again", "deck", (ev.ProcessStarting(),), again)
    if truth.process == "starting":
        promise = "text" if truth.promise == "anew" else truth.promise
        ready = replace(truth, process="up", has_run=True, left=False, promise=promise)
        yield Move("the process is ready", "deck", (READY,), ready)
        if not truth.left:
            yield Move("it leaves before it was ready", "agent", (ev.AgentEnded(),), replace(truth, left=True))
        if truth.promise == "first" and not world.view.state.base_phase.requested:
            yield Move("the request is seen before the session", "agent", (ev.RequestStart(),), truth)
    if truth.is_free and not any(asked(truth)) and not truth.subs and not truth.shell:
        yield Move("/clear in one word", "agent", (ev.AgentEnded(reason="clear"), READY), truth)
        yield Move("the agent leaves", "agent", (ev.AgentEnded(),), replace(truth, left=True))
    if truth.process == "up" and truth.left:
        yield Move("the agent is back", "agent", (READY,), replace(truth, left=False))


def _delivers(truth: Truth, world: World) -> Iterator[Move]:
    """Deliver queued messages when the agent is free. A promised turn may turn out to be impossible."""
    waiting = (*truth.prompts, *truth.steers)
    if waiting and (truth.is_free or (truth.is_live and truth.promise == "restore" and not truth.step)):
        rest = replace(truth, prompts=truth.prompts[1:], steers=truth.steers if truth.prompts else truth.steers[1:])
        yield Move("the next text is read", "deck", prompted(waiting[0]), begun(rest))
    if not truth.is_live or truth.step:
        return
    if truth.promise == "restore":
        yield from _restores(truth, world)
    elif truth.promise in ("text", "go_on"):
        failed = (ev.CommandFailed(message="no"), ev.TurnFailed(kind="internal"))
        yield Move("it cannot be delivered", "deck", failed, replace(truth, promise=""), "error")
    elif truth.promise == "first":
        refused = (ev.PromptRejected(reason="no", message_id=truth.prompts[0]), ev.AgentAbort(reason="prompt rejected"))
        after = replace(truth, promise="", prompts=truth.prompts[1:])
        yield Move("a plugin refuses the first prompt", "agent", refused, after, "stopped")


def _restores(truth: Truth, world: World) -> Iterator[Move]:
    """Load a suspended session: it waits to be resumed, or the agent repeats its questions."""
    still_idle = world.view.state.base_phase.value == "idle"
    for finished in (False, True):
        restored = (ev.TurnRestored(finished=finished),)
        label = f"the {'finished' if finished else 'unfinished'} turn is restored"
        yield Move(label, "deck", restored, replace(truth, promise=""), "idle" if still_idle else "paused")
    stale = [gate for gate in world.view.state.gates.stale if gate.kind == "approval" and not gate.path]
    if stale:
        call = stale[-1].call_id
        request = ev.GateRequest(gate_id=stale[-1].id, ref=call, tool="shell", call_id=call)
        asks_again = replace(begun(truth), step="tools", calls=(Call(call, "asks"),))
        bodies = (ev.AgentStart(), ev.ApprovalRequired(gate=request))
        yield Move("the agent asks again", "agent", bodies, asks_again)


# --- processes go


def _ends_processes(truth: Truth, world: World) -> Iterator[Move]:
    if truth.process not in ("starting", "up"):
        return
    gone = without_process(truth)
    base_phase, shown = world.view.state.base_phase.value, world.view.state.phase.value
    crashes: tuple[tuple[str, Body], ...] = (
        ("exits with 1", ev.ProcessExited(code=1)),
        ("crashes by a signal", ev.ProcessExited(signal="SIGSEGV")),
        ("reports an error", ev.ProcessError(message="no")),
    )
    for label, body in crashes:
        yield Move(f"the process {label}", "death", (body,), gone, "error")
    quiet = _after_quiet_exit(world.view.state.base_phase, shown)
    yield Move("the process exits with 0", "death", (ev.ProcessExited(code=0),), gone, quiet)
    stopped = ev.ProcessExited(signal="SIGTERM")
    yield Move("somebody ends the process", "death", (stopped,), gone, _after_cancel(shown))
    yield from _asked_exits(truth, gone, base_phase)


def _after_quiet_exit(base_phase: Phase, shown: str) -> str:
    """Return the phase after exit code zero: an open ask is withdrawn (stopped), paused and failed stay, else completed.

    A process that crashed asked nothing. If the process after it exits with zero, the phase is 0-075's completed.
    """
    if shown in ("waiting_approval", "waiting_input"):
        return "stopped"
    return base_phase.value if base_phase.value in ("paused", "error") and base_phase.ask else "completed"


def _after_cancel(shown: str) -> str:
    """Apply 000's rows of cancel_session."""
    return shown if shown in ("idle", "completed") else "stopped"


def _asked_exits(truth: Truth, gone: Truth, base_phase: str) -> Iterator[Move]:
    """Exit on our request, which is never a failure."""
    asked_for = (ev.ProcessExited(code=143, asked=True),)
    if truth.step or truth.promise:
        stopped = "idle" if truth.promise == "restore" and base_phase == "idle" else "stopped"
        yield Move("the deck kills the process", "death", asked_for, gone, stopped)
    elif truth.process == "up" and is_reapable(truth):
        yield Move("the reaper ends the idle process", "death", asked_for, gone, base_phase)


def is_reapable(truth: Truth) -> bool:
    """Return whether the reaper may stop the process: not while busy, asking, queued or with background work (X-039)."""
    busy = truth.step or truth.prompts or truth.steers or truth.subs or truth.shell
    return not busy and not any(asked(truth))


# --- the whole deck comes and goes


def _shuts_down(truth: Truth, world: World) -> Iterator[Move]:
    shown = world.view.state.phase.value
    rested = replace(without_process(truth), lifecycle="suspended")
    paused = "paused" if shown == "streaming" else "stopped"
    after = paused if shown in ("creating", "streaming", "waiting_approval", "waiting_input") else shown
    yield Move("the server shuts down", "deck", (ev.SessionSuspended(reason="shutdown"),), rested, after)
    repair = (ev.OwnerChanged(epoch=2), ev.SessionSuspended(reason="found without its process"))
    yield Move("start-up repair suspends it", "deck", repair, rested, after)
    failed = replace(rested, lifecycle="error")
    yield Move("the session fails for good", "deck", (ev.SessionFailed(message="no"),), failed)


#: Events that an exiting agent may still send.
LATE: tuple[Body, ...] = (
    ev.ToolExecutionEnd(name="shell", call_id="late"),
    ev.ApprovalRequired(gate=ev.GateRequest(gate_id="late", tool="shell")),
    ev.AskUser(question="late?", agent_path=("late",)),
    ev.BackgroundStarted(kind="shell", id="late"),
    *BEGINNING,
    ev.StateChange(state="active", sub="thinking"),
    ev.AgentReady(),
    ev.ProcessStarting(),
    ev.AgentEnd(),
    ev.ProcessExited(code=1),
)


def _at_rest(truth: Truth) -> Iterator[Move]:
    """Send events to an inactive session. Only evidence of its own process, found by the deck, makes it active again."""
    yield Move("late words of a dying agent", "agent", LATE, truth)
    if truth.lifecycle == "suspended":
        found = replace(truth, lifecycle="active", process="up")
        back = (ev.SessionResumed(by="supervisor"), READY)
        yield Move("its process is found alive, at rest", "deck", (*back, ev.TurnRestored()), found)
        yield Move("its process is found alive, at work", "deck", (*back, *BEGINNING), begun(found), "streaming")
