"""Test what clients see of a session: the names of the contract and their values."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quarterdeck import events as ev
from quarterdeck.events import Body, Option, Plan, Question, Repo, Todo, TokenUsage
from quarterdeck.kernel.lifecycle import DAY_MS
from quarterdeck.kernel.profile import Context, Failure
from quarterdeck.kernel.state import FOLD_VERSION
from quarterdeck.kernel.summary import Attention, Now, attention, details, gate_shown, is_unread, now, summary
from quarterdeck.kernel.turn import Task
from tests.support.sessions import READY
from tests.support.tape import START, STEP, Tape, approval, tape

#: The fields of a summary and of its nested objects (section 2 of the contract).
SUMMARY = """
    id name agent cwd repo model mode created_at last_active_at lifecycle end_reason process run activity phase flags
    composer now last_text attention unread pinned snoozed_until changes background signal usage owner resumable error
    index
"""
NESTED = {
    "repo": "root name branch",
    "flags": "showSpinner showCancelButton showResumeButton showAutoModeWarning inputEnabled isActive",
    "composer": "enabled action reason",
    "now": "verb target since",
    "attention": "kind gate_id since",
    "changes": "files added removed",
    "usage": "cost_usd billing tokens",
    "error": "kind message resets_at",
}
#: The additional fields of a view, and the fields of the items in its lists. Views may have more.
VIEW = "gates queue background usage capabilities todos plan deletes_at"
LISTED = {
    "gates": "id kind title payload options requested_at deadline path",
    "queue": "id text kind receipt",
    "background": "kind id title since",
}


def as_json(value: object) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def full() -> Tape:
    """Create a session in which every part of a view has a value."""
    opened = ev.SessionOpened(
        agent="claude", prompt="Go", message_id="m0", cwd="/src", repo=Repo(root="/src", name="src", branch="main")
    )
    return Tape().add(
        opened,
        READY,
        ev.AgentStart(),
        ev.TurnFailed(kind="usage_limit", message="Limit", resets_at=9),
        ev.ToolExecutionStart(name="shell", call_id="c1", args={"command": "ls"}),
        ev.AskUser(question="Which?", gate_id="g1"),
        ev.PromptQueued(text="Later", message_id="q1"),
        ev.BackgroundStarted(kind="shell", id="b1", title="make"),
        ev.Usage(tokens=TokenUsage(input=3, cost_usd=0.5), billing="metered"),
        ev.TodoChange(todos=(Todo(id="1", content="Look"),)),
        ev.PlanGenerated(plan=Plan(text="Look first")),
        ev.ChangesUpdated(files=1),
    )


class TestTheContract:
    @pytest.mark.parametrize("played", [Tape(), full()], ids=["empty", "full"])
    def test_a_summary_has_exactly_the_fields_of_the_contract(self, played: Tape) -> None:
        assert list(as_json(summary(played.view))) == SUMMARY.split()

    @pytest.mark.parametrize("part", NESTED)
    def test_what_stands_in_a_summary_has_the_fields_of_the_contract(self, part: str) -> None:
        found = as_json(summary(full().view))
        if part == "error":
            found = as_json(summary(tape(READY, ev.AgentStart(), ev.TurnFailed()).view))
        assert set(NESTED[part].split()) <= found[part].keys()
        assert found[part].keys() - set(NESTED[part].split()) <= {"partial"}

    def test_a_view_has_the_fields_of_the_contract_besides(self) -> None:
        assert set(VIEW.split()) <= as_json(details(full().view)).keys()

    @pytest.mark.parametrize("part", LISTED)
    def test_what_stands_in_a_view_has_the_fields_of_the_contract(self, part: str) -> None:
        (item,) = as_json(details(full().view))[part]
        assert set(LISTED[part].split()) <= item.keys()

    def test_the_two_together_are_the_view_and_what_both_name_is_the_whole_of_it(self) -> None:
        short, whole = as_json(summary(full().view)), as_json(details(full().view))
        assert short.keys() & whole.keys() == {"background", "usage"}
        assert short["background"] == len(whole["background"]) == 1
        assert short["usage"]["cost_usd"] == whole["usage"]["total"]["cost_usd"] == 0.5

    @pytest.mark.parametrize(
        "value",
        ["initialized", "idle", "active/thinking", "active/tool_use", "active/waiting_for_permission", "exited"],
    )
    def test_activity_is_written_with_its_sub_state(self, value: str) -> None:
        state, _, sub = value.partition("/")
        played = tape(ev.StateChange(state=state, sub=sub or None))  # type: ignore[arg-type]
        assert summary(played.view).activity == value


class TestSummary:
    def test_it_says_what_the_state_says(self) -> None:
        played = full()
        row, state = summary(played.view), played.state
        for owner in ("lifecycle", "process", "run", "activity", "phase", "signal"):
            assert getattr(row, owner) == getattr(state, owner).value
        assert (row.id, row.agent, row.name, row.cwd, row.model) == ("s1", "claude", "Go", "/src", "opus")
        assert (row.created_at, row.last_active_at, row.index) == (START, state.last_active_at, 12)
        assert (row.usage.cost_usd, row.usage.billing, row.usage.tokens, row.usage.partial) == (
            0.5,
            "metered",
            3,
            False,
        )
        assert row.resumable
        assert row.changes.files == 1

    def test_the_warning_of_a_mode_that_approves_by_itself_shows_while_it_works(self) -> None:
        played = tape(ev.SettingChanged(mode="bypass"), ev.AgentStart())
        assert summary(played.view).flags.showAutoModeWarning
        assert not summary(played.add(ev.AgentEnd()).view).flags.showAutoModeWarning

    def test_an_error_shows_only_where_the_session_shows_one(self) -> None:
        played = tape(ev.AgentStart(), ev.TurnFailed(kind="auth", message="Log in", resets_at=7))
        assert summary(played.view).error == Failure("auth", "Log in", 7)
        played.add(ev.AgentEnd(outcome="failed"), approval("g1"))
        assert summary(played.view).error is None
        assert summary(tape(ev.SessionFailed(message="Gone")).view).error == Failure("internal", "Gone")

    def test_the_last_words_are_those_of_the_last_reply(self) -> None:
        blocks = (ev.Block(text="One"), ev.Block(block=1, text="Two " * 100), ev.Block(block=2, text=" "))
        played = tape(ev.ResponseComplete(message_id="a1", blocks=blocks))
        assert summary(played.view).last_text == ("Two " * 100)[-200:]
        played.add(ev.ResponseComplete(message_id="a2", blocks=(ev.Block(kind="thinking", text="Hm"),)))
        assert summary(played.view).last_text == ("Two " * 100)[-200:]


class TestNow:
    def test_nothing_goes_on(self) -> None:
        assert now(tape().state) is None
        assert now(tape(ev.AgentStart(), ev.AgentEnd()).state) is None

    def test_a_session_that_is_being_created_says_so(self) -> None:
        assert now(Tape().opened("Go").state) == Now("Creating session...", "", START)

    @pytest.mark.parametrize(
        ("bodies", "verb"),
        [
            ([], "Thinking"),
            ([ev.MessageStart(message_id="a1")], "Writing"),
            ([ev.ToolCalls(count=1)], "Working"),
            ([ev.ToolCalls(count=1), approval("g1", "c1")], "Waiting"),
            ([ev.StateChange(state="active", sub="compacting")], "Compacting"),
        ],
    )
    def test_a_turn_says_what_it_does(self, bodies: list[Body], verb: str) -> None:
        shown = now(tape(ev.AgentStart(), *bodies).state)
        assert shown is not None
        assert (shown.verb, shown.target) == (verb, "")

    def test_the_call_that_began_last_is_named_with_what_it_works_on(self) -> None:
        played = tape(
            ev.AgentStart(),
            ev.ToolExecutionStart(name="read", call_id="c1", args={"path": "a.py"}),
            ev.ToolExecutionStart(name="shell", call_id="c2", args={"command": "ls"}),
        )
        assert now(played.state) == Now("shell", "ls", START + 3 * STEP)
        played.add(ev.ToolExecutionEnd(name="shell", call_id="c2"))
        assert now(played.state) == Now("read", "a.py", START + 2 * STEP)


class TestAttention:
    def test_gates_come_first_and_approvals_before_questions(self) -> None:
        played = tape(READY, ev.AgentStart(), ev.AskUser(question="?", gate_id="g1"), approval("g2"))
        assert attention(played.state) == Attention("approval", "g2", START + 4 * STEP)
        played.add(ev.ApprovalResolved(status="approved", gate_id="g2"))
        assert attention(played.state) == Attention("question", "g1", START + 3 * STEP)

    def test_finished_work_waits_until_somebody_looks(self) -> None:
        played = tape(READY, ev.AgentStart(), ev.AgentEnd())
        assert attention(played.state) == Attention("finished", None, START + 3 * STEP)
        assert is_unread(played.state)
        played.add(ev.SessionMarked(read_index=played.view.index))
        assert attention(played.state) is None
        assert not is_unread(played.state)

    def test_a_failure_waits_until_somebody_looks(self) -> None:
        played = tape(READY, ev.AgentStart(), ev.TurnFailed(), ev.AgentEnd(outcome="failed"))
        shown = attention(played.state)
        assert shown is not None
        assert shown.kind == "failed"

    @pytest.mark.parametrize(
        "bodies",
        [[], [ev.AgentStart()], [ev.AgentStart(), ev.AgentAbort()]],
        ids=["new", "at work", "stopped"],
    )
    def test_nobody_is_wanted(self, bodies: list[Body]) -> None:
        assert attention(tape(READY, *bodies).state) is None

    @pytest.mark.parametrize("body", [ev.SessionSuspended(), ev.SessionArchived(), ev.SessionFailed()])
    def test_a_session_at_rest_wants_nobody(self, body: Body) -> None:
        assert attention(tape(READY, ev.AgentStart(), ev.AgentEnd(), body).state) is None


class TestDetails:
    def test_the_lists_are_the_states(self) -> None:
        played = full()
        shown = details(played.view)
        assert shown.queue == played.state.queue
        assert shown.background == (Task("shell", "b1", "make", START + 7 * STEP),)
        assert shown.todos == (Todo(id="1", content="Look"),)
        assert shown.plan == Plan(text="Look first")
        assert shown.capabilities == ("steer",)
        assert (shown.native_session_id, shown.fold_version) == ("n1", FOLD_VERSION)

    def test_gates_are_shown_by_rank_and_those_of_before_a_restart_apart(self) -> None:
        played = tape(READY, ev.AgentStart(), ev.AskUser(question="?", gate_id="g1"), approval("g2"))
        assert [gate.id for gate in details(played.view).gates] == ["g2", "g1"]
        played.add(ev.SessionSuspended())
        assert [gate.id for gate in details(played.view).gates] == []
        assert {gate.id for gate in details(played.view).stale_gates} == {"g1", "g2"}

    def test_a_gate_shows_what_is_asked(self) -> None:
        questions = (Question(text="Which?", options=(Option(id="a"),)), Question(text="When?"))
        played = tape(
            ev.ApprovalRequired(
                gate=ev.GateRequest(gate_id="g1", tool="shell", args={"command": "ls"}, hint="lists", deadline=99)
            ),
            ev.AskUser(question="Two things", gate_id="g2", questions=questions, agent_path=("k",)),
            ev.DialogRequired(method="input", title="Name?", gate_id="g3", message="Yours", prefill="x"),
        )
        approve, ask, dialog = (gate_shown(gate) for gate in played.state.gates.open)
        assert approve.payload == {"tool": "shell", "args": {"command": "ls"}, "hint": "lists"}
        assert (approve.title, approve.deadline, approve.requested_at) == ("shell", 99, START + STEP)
        assert (ask.payload, ask.path) == ({"questions": questions}, ("k",))
        assert dialog.payload == {"method": "input", "message": "Yours", "prefill": "x"}

    def test_the_date_of_deletion_is_shown_beforehand(self) -> None:
        active = tape(READY)
        assert details(active.view).deletes_at is None
        active.add(ev.SessionSuspended())
        assert details(active.view).deletes_at == active.view.at + 30 * DAY_MS
        failed = tape(ev.SessionFailed())
        assert details(failed.view).deletes_at == failed.view.at + DAY_MS

    def test_context_and_thinking_are_shown(self) -> None:
        shown = details(tape(ev.ContextUsage(tokens=1), ev.SettingChanged(thinking="low")).view)
        assert (shown.context, shown.thinking) == (Context(1), "low")
