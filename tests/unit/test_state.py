"""Check that a stored state is decoded without loss and can be folded further."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarterdeck import events as ev
from quarterdeck.events import BY_NAME, NAMES, TYPES, Body, GateRequest, Image, Option, Question, Todo, TokenUsage
from quarterdeck.kernel.state import EMPTY, FOLD_VERSION, NOT_OPENED, OWNERS, Cell, State
from quarterdeck.kernel.view import View, fold_all
from tests.support.event_bodies import any_body, body_of
from tests.support.tape import START, STEP, Tape, tape

#: Events that set every field of the state.
RICH: tuple[Body, ...] = (
    ev.SessionOpened(agent="demo", prompt="Go", message_id="m0", repo=ev.Repo(root="/src", name="src")),
    ev.ProcessStarting(pid=7),
    ev.AgentReady(native_session_id="n1", model="opus", capabilities=("steer", "resume"), resumable=True),
    ev.AgentStart(turn_id="t1"),
    ev.ToolExecutionStart(name="shell", call_id="c1", args={"command": ["ls", "-l"]}),
    ev.ApprovalRequired(
        gate=GateRequest(gate_id="g1", tool="shell", args={"a": [1, None]}, options=(Option(id="y", label="Yes"),))
    ),
    ev.AskUser(
        question="Which?",
        gate_id="g2",
        questions=(Question(text="One?", options=(Option(id="a"),), multiple=True), Question(text="Two?")),
    ),
    ev.DialogRequired(method="select", gate_id="g3", options=(Option(id="x"),), agent_path=("k",)),
    ev.ApprovalResolved(status="approved", gate_id="g1", by="ann"),
    ev.PromptQueued(text="Later", message_id="q1", images=(Image(media_type="image/png", data="eA=="),)),
    ev.SteeringReceived(ref="r1", text="Sooner"),
    ev.BackgroundStarted(kind="subagent", id="k1", title="Search"),
    ev.Usage(message_id="a1", model="opus", tokens=TokenUsage(input=5, cost_usd=0.5), agent_path=("k",)),
    ev.TodoChange(todos=(Todo(id="1", content="Look", status="in_progress"),)),
    ev.PlanGenerated(plan=ev.Plan(steps=(ev.PlanStep(description="Look"),))),
    ev.ContextUsage(tokens=5, limit=10, percent=50.0),
    ev.ChangesUpdated(files=1, added=2, removed=3),
    ev.SessionMarked(pinned=True, snoozed_until=9, read_index=3),
    ev.StateChange(state="active", sub="tool_use"),
    ev.SignalChanged(signal="stale"),
    ev.TurnFailed(kind="usage_limit", message="Limit", resets_at=99),
    ev.ResponseComplete(message_id="a1", blocks=(ev.Block(text="So far"),)),
    ev.ProcessExited(code=3, signal="SIGX"),
    ev.SessionSuspended(),
)


def stored(state: State) -> State:
    return msgspec.json.decode(msgspec.json.encode(state), type=State)


class TestStoring:
    @pytest.mark.parametrize("count", range(len(RICH) + 1))
    def test_a_rich_state_comes_back_as_it_was(self, count: int) -> None:
        state = Tape().add(*RICH[:count]).state
        assert stored(state) == state

    def test_the_rich_state_is_rich(self) -> None:
        """Every field must have differed from its default at some point, so that every field's type is tested."""
        played, changed = Tape(), set[str]()
        for body in RICH:
            played.add(body)
            changed |= {name for name in State.__struct_fields__ if getattr(played.state, name) != getattr(EMPTY, name)}
        assert changed == set(State.__struct_fields__) - {"fold_version"}

    @pytest.mark.parametrize("kind", TYPES, ids=lambda kind: NAMES[kind])
    @settings(max_examples=8)
    @given(data=st.data())
    def test_whatever_an_event_brings_comes_back(self, kind: type[Body], data: st.DataObject) -> None:
        state = tape(ev.AgentStart(), data.draw(body_of(kind))).state
        assert stored(state) == state

    @settings(max_examples=50)
    @given(st.lists(any_body(), max_size=12))
    def test_a_stored_state_goes_on_like_the_live_one(self, bodies: list[Body]) -> None:
        played = Tape().add(*RICH[:12])
        snapshot = View(played.view.index, played.view.at, stored(played.state), played.view.timeline)
        played.add(*bodies)
        assert fold_all(played.events, snapshot) == played.view

    def test_a_state_of_a_newer_release_is_read_without_what_is_not_known(self) -> None:
        newer = msgspec.json.decode(msgspec.json.encode(Tape().add(*RICH).state)) | {"mood": "fine"}
        assert msgspec.json.decode(msgspec.json.encode(newer), type=State) == Tape().add(*RICH).state

    def test_an_empty_state_is_read_from_nothing(self) -> None:
        assert msgspec.json.decode(b"{}", type=State) == EMPTY


class TestCells:
    def test_a_session_that_does_not_exist_yet(self) -> None:
        assert {owner: getattr(EMPTY, owner).value for owner in OWNERS} == {
            "lifecycle": NOT_OPENED,
            "process": "none",
            "run": "idle",
            "activity": "initialized",
            "phase": "idle",
            "signal": "live",
        }
        assert EMPTY.fold_version == FOLD_VERSION

    def test_a_cell_knows_what_moved_it(self) -> None:
        played = tape(ev.SignalChanged(signal="stale"))
        assert played.state.signal == Cell("stale", START + STEP, 2, "signal_changed", "engine")
        assert played.add(ev.SignalChanged(signal="stale")).state.signal.index == 2

    def test_a_cell_that_was_not_moved_stays_the_same_one(self) -> None:
        played = tape()
        before = played.state
        played.add(ev.SignalChanged(signal="live"), ev.StateChange(state="initialized"))
        assert played.state is before

    def test_states_can_be_compared(self) -> None:
        assert Tape().add(*RICH).state == Tape().add(*RICH).state
        assert Tape().add(*RICH).state != Tape().add(*RICH[:-1]).state
        assert BY_NAME["session_suspended"] is type(RICH[-1])
