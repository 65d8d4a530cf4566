"""Show part X: one run in the layers of all five documents, and the rules across the layers."""

from __future__ import annotations

import pytest

from quarterdeck import events as ev
from quarterdeck.errors import AlreadyDecided, NotAllowed, QueueFull
from quarterdeck.events import Body
from quarterdeck.kernel import commands, lifecycle, phase, session_list
from quarterdeck.kernel.composer import composer
from quarterdeck.kernel.log_invariants import in_order
from quarterdeck.kernel.routing import route
from quarterdeck.kernel.summary import details
from quarterdeck.kernel.timeline import Entry
from quarterdeck.kernel.view import View, fold_all, why
from tests.conformance.marks import case, cases_from
from tests.support.sessions import READY, in_lifecycle, in_phase, starts, works
from tests.support.tape import Tape, approval

each_phase = pytest.mark.parametrize("name", phase.STATES)

THINKS = ev.StateChange(state="active", sub="thinking")
USES_A_TOOL = ev.StateChange(state="active", sub="tool_use")
ASKS_A_PERSON = ev.StateChange(state="active", sub="waiting_for_permission")
COMPACTS = ev.StateChange(state="active", sub="compacting")
RESTS = ev.StateChange(state="idle")
CALLED = ev.ToolCall(name="shell", call_id="c1", args={"command": "ls"})
RUNS = ev.ToolExecutionStart(name="shell", call_id="c1")
REPLY = ev.ResponseComplete(message_id="m1", blocks=(ev.Block(text="Done."),))


def requested() -> Tape:
    """Create a session whose request was sent and not answered yet."""
    return starts().add(READY, ev.AgentStart(), THINKS, ev.RequestStart())


def held() -> Tape:
    """Create a session of the built-in agent with a call that waits for approval."""
    return requested().add(CALLED, approval("g1", "c1"), ASKS_A_PERSON)


def layers(tape: Tape) -> tuple[str, str, str, str, str, bool]:
    """Return lifecycle, process, run, activity, phase, and whether the timeline streams."""
    state = tape.state
    values = (state.lifecycle, state.process, state.run, state.activity, state.phase)
    return *(cell.value for cell in values), tape.view.timeline.streaming  # pyright: ignore[reportReturnType]


def gates(tape: Tape) -> list[str]:
    return [gate.kind for gate in tape.state.gates.open]


def decisions(tape: Tape) -> list[tuple[str, str, str]]:
    return [(one.gate_id, one.status, one.by) for one in tape.state.gates.decided]


def said_by(tape: Tape, kind: str) -> list[str]:
    return [entry.text for entry in tape.entries if entry.kind == kind]


def last(tape: Tape) -> Entry:
    return tape.entries[-1]


# ------------------------------------------------------------------------------- X.1 One run seen through all layers


@case("X-001")
def test_without_a_session_there_is_nothing_but_the_form() -> None:
    assert session_list.page([], session_list.Filter()).sessions == ()
    assert session_list.manager_phase([], None)[0] == "idle"
    nothing = View()
    assert (nothing.state.lifecycle.value, nothing.state.phase.value) == ("none", "idle")
    assert [reason.cause for reason in why(nothing)] == [None] * 6
    assert len(nothing.timeline.entries) == 0


Layers = tuple[str, str, str, str, str, bool]
SEEN: dict[str, tuple[Tape, list[str], Layers]] = {
    "X-002": (starts(), [], ("active", "starting", "idle", "initialized", "creating", False)),
    "X-003": (requested(), [], ("active", "up", "running", "active/thinking", "streaming", True)),
    "X-004": (
        requested().add(ev.MessageStart(message_id="m1"), ev.MessageDelta(message_id="m1", delta="Do")),
        [],
        ("active", "up", "streaming", "active/thinking", "streaming", True),
    ),
    "X-005": (
        requested().add(CALLED, RUNS, USES_A_TOOL),
        [],
        ("active", "up", "executing_tools", "active/tool_use", "streaming", True),
    ),
    "X-006": (
        held(),
        ["approval"],
        ("active", "up", "idle", "active/waiting_for_permission", "waiting_approval", True),
    ),
    "X-007": (
        requested().add(ev.AskUser(question="Which branch?", gate_id="g1"), ASKS_A_PERSON),
        ["question"],
        ("active", "up", "executing_tools", "active/waiting_for_permission", "waiting_input", True),
    ),
    "X-008": (
        requested().add(ev.CompactStart(), COMPACTS),
        [],
        ("active", "up", "running", "active/compacting", "streaming", True),
    ),
    "X-009": (requested().add(REPLY, ev.AgentEnd(), RESTS), [], ("active", "up", "idle", "idle", "completed", False)),
    "X-010": (requested().add(ev.AgentAbort(), RESTS), [], ("active", "up", "idle", "idle", "stopped", False)),
    "X-011": (
        requested().add(ev.TurnFailed(message="Overloaded"), ev.AgentEnd(outcome="failed"), RESTS),
        [],
        ("active", "up", "idle", "idle", "error", False),
    ),
    "X-012": (
        requested().add(REPLY, ev.AgentEnd(), RESTS, ev.ProcessExited(code=0)),
        [],
        ("active", "none", "idle", "exited", "completed", False),
    ),
    "X-013": (
        requested().add(ev.ProcessExited(code=139)),
        [],
        ("active", "none", "idle", "exited", "error", False),
    ),
    "X-014": (
        requested().add(ev.AgentAbort(), RESTS, ev.ProcessExited(code=0, asked=True)),
        [],
        ("active", "none", "idle", "exited", "stopped", False),
    ),
}


@cases_from(SEEN, "tape, asked, expected")
def test_every_layer_shows_its_part_of_the_run(tape: Tape, asked: list[str], expected: Layers) -> None:
    assert layers(tape) == expected
    assert gates(tape) == asked


@case("X-004")
def test_chunks_make_a_growing_entry() -> None:
    tape = requested().add(ev.MessageStart(message_id="m1"))
    texts = [last(tape.add(ev.MessageDelta(message_id="m1", delta=piece))).text for piece in ("Do", "ne", ".")]
    assert (texts, last(tape).kind) == (["Do", "Done", "Done."], "assistant")


@pytest.mark.parametrize(
    ("tape", "step"),
    [
        pytest.param(requested().add(CALLED, RUNS), "running", marks=case("X-005")),
        pytest.param(held(), "calling", marks=case("X-006")),
    ],
)
def test_the_call_is_shown_as_far_as_it_got(tape: Tape, step: str) -> None:
    assert last(tape).tool_step is not None
    assert last(tape).tool_step.phase == step  # pyright: ignore[reportOptionalMemberAccess]


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        pytest.param(ev.TurnFailed(message="Overloaded"), "Overloaded", marks=case("X-011")),
        pytest.param(ev.ProcessExited(code=139), "The agent process ended with code 139", marks=case("X-013")),
    ],
)
def test_a_failure_is_an_entry_of_the_timeline(ends: Body, text: str) -> None:
    assert said_by(requested().add(ends), "error") == [text]


@case("X-013")
def test_the_next_prompt_starts_a_crashed_agent_again() -> None:
    tape = requested().add(ev.ProcessExited(code=139))
    commands.check(tape.state, commands.Prompt(text="Try again"))
    assert route(tape.state).meaning == "prompt"
    tape.add(ev.PromptReceived(text="Try again"), ev.ProcessStarting(), READY, ev.AgentStart(), THINKS)
    assert layers(tape) == ("active", "up", "running", "active/thinking", "streaming", True)


@case("X-014")
@pytest.mark.parametrize("name", ["idle", "completed", "paused", "error", "stopped"])
def test_the_reaper_changes_no_phase(name: str) -> None:
    tape = in_phase(name).add(ev.ProcessExited(signal="SIGTERM", asked=True))
    assert (tape.phase, tape.state.process.value, tape.state.lifecycle.value) == (name, "none", "active")


AFTER_A_SHUTDOWN = {
    "streaming": "paused",
    **dict.fromkeys(("creating", "waiting_approval", "waiting_input"), "stopped"),
}


@case("X-015")
@each_phase
def test_after_a_shutdown_a_session_waits_to_be_resumed(name: str) -> None:
    tape = in_phase(name)
    told = [entry.id for entry in tape.entries]
    tape.add(ev.SessionSuspended(reason="shutdown"))
    assert tape.phase == AFTER_A_SHUTDOWN.get(name, name)
    assert tape.row.flags.showResumeButton is (name not in ("idle", "error"))
    assert layers(tape)[:4] == ("suspended", "none", "idle", "exited")
    assert not tape.view.timeline.streaming
    assert [entry.id for entry in tape.entries] == told
    assert "suspended" not in lifecycle.MACHINE.flags["inputEnabled"]
    assert fold_all(tape.events) == tape.view


@case("X-016")
@each_phase
def test_an_archived_session_is_only_read_or_deleted(name: str) -> None:
    tape = in_phase(name)
    told = [entry.id for entry in tape.entries]
    tape.add(ev.SessionArchived())
    assert [entry.id for entry in tape.entries] == told
    assert tape.row.phase in phase.STATES
    assert commands.allowed(tape.state) == ("delete",)
    with pytest.raises(NotAllowed, match="the session is archived"):
        commands.check(tape.state, commands.Prompt(text="Hello"))


# ------------------------------------------------------------------------------------------- X.2 Rules across layers


@case("X-017")
@each_phase
@pytest.mark.parametrize("status", lifecycle.STATES)
def test_the_composer_is_off_only_in_archived_and_fatal_sessions(status: str, name: str) -> None:
    tape = in_lifecycle(status, name)
    assert composer(tape.state).enabled is (status in ("active", "suspended"))
    assert tape.row.composer == composer(tape.state)
    assert tape.row.flags.inputEnabled is (tape.phase in ("waiting_input", "completed", "paused", "stopped"))


ASKED = ev.ApprovalRequired(gate=ev.GateRequest(gate_id="g1", ref="r1", call_id="c1", tool="shell"))
#: The same request decided on four surfaces: by the deck's gate id, by the agent's ref, and by the agent's next event.
YES = [
    ev.ApprovalResolved(gate_id="g1", status="approved", by="page"),
    ev.ApprovalResolved(ref="r1", status="approved", by="api"),
    ev.ApprovalResolved(ref="r1", status="answered_elsewhere", by="terminal"),
    ev.ToolExecutionStart(name="shell", call_id="c1"),
]
NO = [
    ev.ApprovalResolved(gate_id="g1", status="rejected", by="page"),
    ev.ApprovalResolved(ref="r1", status="rejected", by="api"),
    ev.ApprovalResolved(ref="r1", status="answered_elsewhere", by="terminal"),
    ev.ToolBlocked(name="shell", call_id="c1"),
]


def each_decision(bodies: list[Body], case_id: pytest.MarkDecorator) -> list[object]:
    return [pytest.param(body, marks=case_id) for body in bodies]


@pytest.mark.parametrize("decision", [*each_decision([*YES], case("X-019")), *each_decision([*NO], case("X-020"))])
def test_a_gate_is_decided_once_whoever_decides_it(decision: Body) -> None:
    tape = requested().add(CALLED, ASKED, decision)
    assert gates(tape) == []
    ((gate_id, status, by),) = decisions(tape)
    assert gate_id == "g1"
    card = next(entry.card for entry in tape.entries if entry.card)
    assert (card.gate_id, card.status, card.by) == ("g1", status, by)
    for again in (commands.Approve(gate_id="g1"), commands.Reject(gate_id="g1")):
        with pytest.raises(AlreadyDecided, match=status) as told:
            commands.check(tape.state, again)
        assert (told.value.status, told.value.by) == (status, by)
    assert decisions(tape.add(YES[0], NO[1])) == [(gate_id, status, by)]


@pytest.mark.parametrize("value", [pytest.param(True, marks=case("X-019")), pytest.param(False, marks=case("X-020"))])
def test_a_confirmation_of_an_extension_is_a_gate_like_any_other(value: bool) -> None:
    tape = requested().add(ev.DialogRequired(method="confirm", title="Push?", gate_id="g1", ref="r1"))
    assert tape.phase == "waiting_input"
    tape.add(ev.DialogResolved(ref="r1", value=value, by="page"))
    assert (tape.phase, decisions(tape)) == ("streaming", [("g1", "answered", "page")])
    with pytest.raises(AlreadyDecided):
        commands.check(tape.state, commands.Respond(gate_id="g1", answer=not value))


@case("X-021")
@pytest.mark.parametrize("opened", [approval("g1", "c1"), ev.AskUser(question="?", gate_id="g1")])
@pytest.mark.parametrize(
    ("ends", "status"),
    [
        (ev.AgentAbort(), "withdrawn"),
        (ev.SessionArchived(), "withdrawn"),
        (ev.SessionFailed(), "withdrawn"),
        (ev.SessionSuspended(), "stale"),
    ],
)
def test_an_open_gate_ends_with_its_session(opened: Body, ends: Body, status: str) -> None:
    tape = requested().add(CALLED, opened, ends)
    assert gates(tape) == []
    assert decisions(tape) == [("g1", status, "")]
    assert tape.phase not in phase.WAITING
    assert tape.row.attention is None
    card = next(entry.card for entry in tape.entries if entry.card)
    assert card.status == status


@case("X-021")
def test_a_stale_gate_is_asked_again_after_the_resume() -> None:
    tape = held().add(ev.SessionSuspended())
    assert [gate.id for gate in details(tape.view).stale_gates] == ["g1"]
    with pytest.raises(NotAllowed):
        commands.check(tape.state, commands.Approve(gate_id="g1"))
    tape.add(ev.SessionResumed(), ev.ProcessStarting(), READY, approval("g1", "c1"))
    assert details(tape.view).stale_gates == ()
    assert (gates(tape), tape.phase) == (["approval"], "waiting_approval")
    commands.check(tape.state, commands.Approve(gate_id="g1"))


def steered(tape: Tape, *refs: str) -> Tape:
    return tape.add(*(ev.SteeringReceived(ref=ref, text=f"text of {ref}") for ref in refs))


@case("X-022")
def test_a_message_while_streaming_is_steering_and_is_told_when_it_is_read() -> None:
    tape = works()
    assert route(tape.state).meaning == "steer"
    steered(tape, "r1", "r2")
    assert [(item.id, item.kind, item.receipt) for item in tape.state.queue] == [
        ("r1", "steer", "queued"),
        ("r2", "steer", "queued"),
    ]
    assert said_by(tape, "user") == ["Fix the bug"]
    tape.add(ev.SteeringApplied(refs=("r1", "r2"), count=2))
    assert tape.state.queue == ()
    assert said_by(tape, "user") == ["Fix the bug", "text of r1", "text of r2"]
    assert tape.phase == "streaming"


@case("X-022")
def test_three_texts_may_wait_and_the_fourth_is_queued_or_refused() -> None:
    tape = steered(works(), "r1", "r2", "r3")
    way = route(tape.state)
    assert (way.meaning, way.reason) == ("queue", "Steering queue is full; read when the turn is over")
    commands.check(tape.state, commands.Prompt(text="Fourth"))
    with pytest.raises(QueueFull):
        commands.check(tape.state, commands.Steer(text="Fourth"))


@case("X-022")
def test_a_refused_text_is_given_back_in_an_error_entry() -> None:
    tape = steered(works(), "r1").add(ev.SteeringReceived(ref="r1", text="text of r1", status="rejected_full"))
    assert tape.state.queue == ()
    assert (last(tape).kind, "text of r1" in last(tape).text) == ("error", True)
    assert said_by(tape, "user") == ["Fix the bug"]


@case("X-023")
def test_clearing_the_queue_drops_every_text_by_an_event_of_its_own() -> None:
    tape = steered(works(), "r1").add(ev.PromptQueued(text="Later", message_id="m7"))
    before = tape.state.phase
    dropped = [ev.PromptDropped(text=item.text, message_id=item.id) for item in tape.state.queue]
    assert [one.text for one in dropped] == ["text of r1", "Later"]
    tape.add(*dropped)
    assert tape.state.queue == ()
    assert tape.state.phase is before
    assert said_by(tape, "user") == ["Fix the bug"]


CLOSES: list[Body] = [ev.AgentEnd(), ev.AgentEnd(outcome="failed"), ev.AgentAbort()]
ENDS_WITHOUT_A_WORD: list[tuple[Body, type[Body]]] = [
    (ev.AgentStart(), ev.AgentAbort),
    (ev.ProcessExited(code=0), ev.AgentEnd),
    (ev.ProcessExited(code=1), ev.AgentEnd),
    (ev.ProcessExited(signal="SIGTERM"), ev.AgentAbort),
    (ev.ProcessExited(code=0, asked=True), ev.AgentAbort),
    (ev.ProcessError(), ev.AgentEnd),
    (ev.SessionSuspended(), ev.AgentAbort),
    (ev.SessionArchived(), ev.AgentAbort),
    (ev.SessionFailed(), ev.AgentAbort),
]


@case("X-024")
@pytest.mark.parametrize(("ends", "closing"), ENDS_WITHOUT_A_WORD)
def test_a_turn_that_ends_without_a_word_is_closed_once(ends: Body, closing: type[Body]) -> None:
    written = in_order(works().view, [ends])
    closed = [body for body in written if isinstance(body, ev.AgentEnd | ev.AgentAbort)]
    assert [type(body) for body in closed] == [closing]
    assert ends in written
    later = Tape()
    for event in works().events:
        later.add(event.body)
    for body in written:
        later.add(body)
    if not isinstance(ends, ev.AgentStart):
        # The agent's own end comes too late, and isn't written a second time.
        assert in_order(later.view, [ev.AgentEnd()]) == []


@case("X-025")
def test_an_abort_ends_the_streaming_of_the_timeline() -> None:
    tape = works()
    assert tape.view.timeline.streaming
    assert not tape.add(ev.AgentAbort()).view.timeline.streaming


# -------------------------------------------------------------------- X.3 Decisions the bounded model check forced


@case("X-030")
def test_a_session_without_a_prompt_waits_without_a_spinner() -> None:
    tape = Tape().opened().add(ev.ProcessStarting(), READY)
    assert layers(tape) == ("active", "up", "idle", "idle", "idle", False)
    assert not tape.row.flags.showSpinner
    assert tape.add(ev.PromptReceived(text="Hello", message_id="m1")).phase == "streaming"


@case("X-031")
def test_the_first_prompt_leaves_the_queue_when_the_process_is_ready() -> None:
    tape = starts().add(ev.PromptQueued(text="Fix the bug", message_id="m0"))
    tape.add(READY, ev.PromptReceived(text="Fix the bug", message_id="m0"))
    assert tape.state.queue == ()
    # Only one of the two signals has arrived.
    assert tape.phase == "creating"
    assert tape.add(ev.RequestStart()).phase == "streaming"
    assert said_by(tape, "user") == ["Fix the bug"]


@case("X-032")
def test_a_prompt_waits_for_as_long_as_the_turn_is_held() -> None:
    tape = held()
    way = route(tape.state)
    assert (way.meaning, way.reason) == ("queue", "Read when the approval is decided and the turn is over")
    tape.add(ev.PromptQueued(text="Then tests", message_id="m7"))
    tape.add(ev.SignalChanged(signal="stale"), ev.CheckpointSaved(), after=60 * 60 * 1000)
    assert [item.id for item in tape.state.queue] == ["m7"]
    assert tape.state.turn.is_open
    assert route(tape.state).meaning == "queue"


@case("X-033")
def test_a_reject_that_does_not_resume_closes_the_turn() -> None:
    assert commands.Reject(gate_id="g1").auto_resume is False
    tape = held().add(
        ev.ApprovalResolved(gate_id="g1", status="rejected", by="api"), ev.AgentAbort(reason="rejected"), RESTS
    )
    assert layers(tape) == ("active", "up", "idle", "idle", "stopped", False)


@pytest.mark.parametrize(
    ("status", "trigger"),
    [
        pytest.param("rejected", "tool_rejected", marks=case("X-034")),
        pytest.param("timeout", "tool_approval_timeout", marks=case("X-036")),
        pytest.param("approved", "tool_approved", marks=case("X-034")),
    ],
)
def test_a_decision_that_resumes_goes_on(status: ev.GateStatus, trigger: str) -> None:
    tape = held().add(ev.ApprovalResolved(gate_id="g1", status=status, by="page"))
    tape.add(ev.AgentResumed(trigger=trigger), THINKS)  # pyright: ignore[reportArgumentType]
    assert layers(tape) == ("active", "up", "running", "active/thinking", "streaming", True)
    assert decisions(tape) == [("g1", status, "page")]


@case("X-037")
def test_a_prompt_while_an_approval_is_open_is_queued() -> None:
    tape = held()
    commands.check(tape.state, commands.Prompt(text="Never mind"))
    assert route(tape.state).meaning == "queue"
    assert gates(tape.add(ev.PromptQueued(text="Never mind"))) == ["approval"]


@case("X-037")
def test_a_prompt_that_supersedes_closes_the_approval_before_its_turn() -> None:
    tape = held()
    commands.check(tape.state, commands.Prompt(text="Never mind", supersede=True))
    superseded = ev.ApprovalResolved(gate_id="g1", status="superseded", by="user")
    written = in_order(tape.view, [superseded, ev.PromptReceived(text="Never mind"), ev.AgentStart()])
    assert [type(body) for body in written] == [ev.ApprovalResolved, ev.PromptReceived, ev.AgentAbort, ev.AgentStart]
    tape.add(*written)
    assert decisions(tape) == [("g1", "superseded", "user")]
    assert (tape.phase, tape.state.run.value) == ("streaming", "running")


@case("X-038")
def test_a_message_while_a_question_is_open_answers_it() -> None:
    tape = requested().add(ev.AskUser(question="Which branch?", gate_id="g1"))
    assert tape.view.timeline.streaming
    way = route(tape.state)
    assert (way.meaning, way.gate_id) == ("answer", "g1")
    answer = ev.UserResponded(gate_id="g1", response="main", message_id="m7", by="page")
    tape.add(answer, answer)
    assert (tape.phase, gates(tape), tape.state.queue) == ("streaming", [], ())
    assert said_by(tape, "user") == ["Fix the bug", "main"]
