"""Test gates: each is decided once, by a user or by a rule, from any client."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from quarterdeck import Deck, SessionHandle
from quarterdeck import events as ev
from quarterdeck.deck.agents.observed_sessions import ObservedSessions
from quarterdeck.deck.rules import NoSuchRule, RulesUnreadable
from quarterdeck.deck.session import Session
from quarterdeck.errors import AlreadyDecided, NoSuchGate, NotAllowed
from quarterdeck.events import Body
from quarterdeck.harness import registry
from quarterdeck.harness.base import Signal
from quarterdeck.harness.driver import Decision
from quarterdeck.log.session_writer import Durability
from quarterdeck.policy import InvalidRule
from tests.conformance.marks import case
from tests.support import scripted_agents
from tests.support.decks import all_events, at_home, eventually, gate_of, texts_of, until
from tests.support.state_table import legal


@pytest.fixture(autouse=True)
def _agents(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted_agents.known(monkeypatch)


async def _resolved(session: SessionHandle) -> list[Body]:
    return [event.body for event in await all_events(session) if event.type == "approval_resolved"]


async def _tools(session: SessionHandle) -> list[tuple[str, bool]]:
    ended = [event.body for event in await all_events(session) if event.type == "tool_execution_end"]
    return [(body.name, body.ok) for body in ended]


class TestOneDecision:
    @case("0-040")
    async def test_yes(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "ask rm; say done", cwd=str(tmp_path))
            gate = await gate_of(session)
            assert session.summary.phase == "waiting_approval"
            phases = [session.summary.phase]
            answer = await session.approve(gate.id)
            phases.append(session.summary.phase)
            assert answer.gate_id == gate.id
            await session.settled()
            assert phases == ["waiting_approval", "streaming"]
            assert await _tools(session) == [("rm", True)]
            assert [(body.status, body.by, body.rule) for body in await _resolved(session)] == [
                ("approved", "user", "")
            ]

    @case("0-041")
    async def test_no_and_go_on(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "ask rm; say done", cwd=str(tmp_path))
            gate = await gate_of(session)
            await session.reject(gate.id, reason="not here", auto_resume=True)
            assert session.summary.phase == "streaming"
            view = await session.settled()
            assert view.state.phase.value == "completed"
            assert await _tools(session) == [("rm", False)]
            assert await texts_of(session, "assistant") == ["done"]
            assert [(body.status, body.reason) for body in await _resolved(session)] == [("rejected", "not here")]

    async def test_no_and_stop(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "ask rm; sleep 30; say done", cwd=str(tmp_path))
            gate = await gate_of(session)
            await session.reject(gate.id)
            view = await session.settled()
            assert view.state.phase.value == "stopped"
            assert await texts_of(session, "assistant") == []

    async def test_the_answer_to_a_question(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "question which?", cwd=str(tmp_path))
            gate = await gate_of(session)
            assert deck.attention()[0].attention.gate_id == gate.id
            await session.respond(gate.id, "red")
            await session.settled()
            assert await texts_of(session, "assistant") == ["you said red"]

    async def test_the_second_is_told_who_decided_what(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "ask rm; question which?", cwd=str(tmp_path))
            gate = await gate_of(session)
            await session.approve(gate.id)
            question = await until(session, lambda view: any(g.kind == "question" for g in view.state.gates.open))
            before = session.view.index
            for second in (session.approve(gate.id), session.reject(gate.id)):
                with pytest.raises(AlreadyDecided) as told:
                    await second
                assert (told.value.status, told.value.by, told.value.code) == ("approved", "user", "already_decided")
                assert told.value.hint
            assert session.view.index == before
            await session.respond(question.state.gates.open[0].id, "red")
            with pytest.raises(AlreadyDecided, match="answered by user"):
                await session.respond(question.state.gates.open[0].id, "blue")

    async def test_two_at_once_are_one_decision(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "ask rm; say done", cwd=str(tmp_path))
            gate = await gate_of(session)
            answers = await asyncio.gather(
                session.approve(gate.id), session.reject(gate.id, auto_resume=True), return_exceptions=True
            )
            assert [type(answer).__name__ for answer in answers] == ["Decided", "AlreadyDecided"]
            await session.settled()
            assert len(await _resolved(session)) == 1
            assert await _tools(session) == [("rm", True)]

    async def test_what_is_not_asked_cannot_be_decided(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "ask rm", cwd=str(tmp_path))
            gate = await gate_of(session)
            with pytest.raises(NoSuchGate, match="g99") as missing:
                await session.approve("g99")
            assert gate.id in missing.value.hint
            with pytest.raises(NotAllowed, match=f"{gate.id} is a"):
                await session.respond(gate.id, "x")
            other = await deck.create("test", cwd=str(tmp_path))
            with pytest.raises(NotAllowed, match="nothing is waiting for a decision"):
                await other.approve(gate.id)
            assert [one.id for one in session.view.state.gates.open] == [gate.id]

    async def test_gate_names_are_global_and_never_come_back(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            names = []
            for _ in range(2):
                session = await deck.create("test", "ask rm", cwd=str(tmp_path))
                names.append((await gate_of(session)).id)
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "ask rm", cwd=str(tmp_path))
            names.append((await gate_of(session)).id)
        assert names == ["g1", "g2", "g3"]

    async def test_an_agent_that_is_gone_asks_nothing(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "ask rm", cwd=str(tmp_path))
            gate = await gate_of(session)
        async with at_home(tmp_path) as deck:
            session = deck.session(session.id)
            assert session.view.state.gates.open == ()
            assert session.summary.attention is None or session.summary.attention.kind != "approval"
            with pytest.raises(NotAllowed, match="suspended"):
                await session.approve(gate.id)


async def _activities(session: SessionHandle) -> list[str]:
    changes = [event.body for event in await all_events(session) if event.type == "state_change"]
    return [body.sub or body.state for body in changes]


async def test_always_needs_a_file_that_can_be_written(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", "ask git status", cwd=str(tmp_path))
        gate = await gate_of(session)
        (deck.home / "rules.toml.lock").mkdir()
        with pytest.raises(RulesUnreadable, match="can't be written: Is a directory"):
            await session.approve(gate.id, always="user")
        assert session.view.state.gates.open == (gate,)
        await session.approve(gate.id)


async def test_always_holds_for_an_agent_of_somebody_elses_that_comes_back(tmp_path: Path) -> None:
    """Evict the session between two turns, so that its rules must be read again from the log."""
    asked = {"hook_event_name": "PermissionRequest", "tool_name": "Bash", "tool_input": {"command": "git status"}}
    async with at_home(tmp_path) as deck:
        adoption = ObservedSessions(deck)

        async def told(**payload: object) -> Session:
            session = await adoption.session("claude", "n1", str(tmp_path))
            observation = session.observed_agent or session.observe(registry.translator("claude"))
            observation.feed(Signal("hook", {"session_id": "n1", "cwd": str(tmp_path), **payload}))
            await session.writer.flush()
            return session

        await told(hook_event_name="UserPromptSubmit", prompt="one")
        session = await told(**asked)
        await deck.session(session.id).approve(session.state.gates.open[0].id, always="session")
        await told(hook_event_name="Stop")
        await eventually(lambda: session.id not in deck.services.supervisor.sessions)
        loaded = await deck.load_session(session.id)
        assert not loaded.knows_rules
        await told(hook_event_name="UserPromptSubmit", prompt="two")
        assert loaded.knows_rules
        assert (await told(**asked)).state.gates.open == ()


class TestADecisionOnItsWay:
    """Once a decision is in the log, the session isn't shown as waiting, even before the agent gets the decision."""

    @pytest.mark.parametrize("way", ["approve", "reject", "stop", "respond", "say", "abort", "supersede"])
    async def test_nothing_waits_that_is_not_asked(self, tmp_path: Path, way: str) -> None:
        async with at_home(tmp_path) as deck:
            script = "question which?; sleep 30" if way in ("respond", "say") else "ask rm; sleep 30"
            session = await deck.create("test", script, cwd=str(tmp_path))
            gate = await gate_of(session)
            assert session.view.state.activity.value == "active/waiting_for_permission"
            live = await deck.load_session(session.id)
            # The decision never reaches the agent.
            live.connection.send = lambda lines: True
            ways = {
                "approve": lambda: session.approve(gate.id),
                "reject": lambda: session.reject(gate.id, auto_resume=True),
                "stop": lambda: session.reject(gate.id),
                "respond": lambda: session.respond(gate.id, "red"),
                "say": lambda: session.prompt("red"),
                "abort": session.abort,
                "supersede": lambda: session.prompt("say other", supersede=True),
            }
            await ways[way]()
            assert session.view.state.activity.value == "active/tool_use"
            assert legal(session.view)

    async def test_it_is_said_once(self, tmp_path: Path) -> None:
        """Record each activity once: thinking when the agent got the answer, tool_use when the call runs."""
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "ask rm; question which?; say done", cwd=str(tmp_path))
            await session.approve((await gate_of(session)).id)
            question = await until(session, lambda view: any(g.kind == "question" for g in view.state.gates.open))
            await session.respond(question.state.gates.open[0].id, "red")
            await session.settled()
            said = await _activities(session)
            assert said.count("waiting_for_permission") == 2
            assert all(one != other for one, other in pairwise(said)), said

    async def test_an_agent_that_says_the_same_is_not_written_down_twice(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "ask rm; say done", cwd=str(tmp_path))
            gate = await gate_of(session)
            live = await deck.load_session(session.id)
            live.connection.send = lambda lines: True
            await session.approve(gate.id)
            for sub in ("tool_use", "thinking", "tool_use"):
                live.record_signal(
                    live.connection, [ev.StateChange(state="active", sub=sub)], "stream", Durability.EAGER
                )
            await live.writer.flush()
            assert (await _activities(session))[-4:] == ["waiting_for_permission", "tool_use", "thinking", "tool_use"]

    async def test_asked_again_before_the_answer_arrived(self, tmp_path: Path) -> None:
        """Show that the agent waits, though its translator doesn't report it while the first gate is still open."""
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "ask rm; sleep 30", cwd=str(tmp_path))
            gate = await gate_of(session)
            live = await deck.load_session(session.id)
            live.connection.send = lambda lines: True
            await session.approve(gate.id)
            live.connection.feed(Signal("stdout", {"type": "question", "id": "other", "text": "which?"}))
            assert live.state.activity.value == "active/waiting_for_permission"
            assert legal(live.view)

    async def test_one_of_two_changes_nothing(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "ask rm; sleep 30", cwd=str(tmp_path))
            gate = await gate_of(session)
            live = await deck.load_session(session.id)
            live.connection.feed(
                Signal("stdout", {"type": "dialog", "id": "other", "method": "confirm", "title": "Sure?"})
            )
            await session.approve(gate.id)
            assert session.view.state.activity.value == "active/waiting_for_permission"
            await session.respond(session.view.state.gates.open[0].id, True)
            assert session.view.state.activity.value != "active/waiting_for_permission"
            assert legal(session.view)

    async def test_a_dialog_without_a_turn(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "say one", cwd=str(tmp_path))
            await session.settled()
            live = await deck.load_session(session.id)
            live.connection.feed(Signal("stdout", {"type": "dialog", "id": "d", "method": "confirm", "title": "Sure?"}))
            await session.respond(live.state.gates.open[0].id, True)
            assert session.view.state.activity.value == "idle"
            assert legal(session.view)

    async def test_a_rule_decides(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "ask rm; ask rm; say done", cwd=str(tmp_path))
            await session.approve((await gate_of(session)).id, always="session")
            await session.settled()
            bodies = [event.body for event in await all_events(session)]
            by_rule = next(at for at, body in enumerate(bodies) if getattr(body, "by", "") == "rule")
            assert bodies[by_rule + 1] == ev.StateChange(state="active", sub="tool_use")
            # The rule closed the second gate before the session was shown as waiting.
            assert (await _activities(session)).count("waiting_for_permission") == 1
            assert legal(session.view)

    @pytest.mark.parametrize("effect", ["allow", "deny"])
    async def test_where_a_rule_decides_nobody_ever_waited(self, tmp_path: Path, effect: str) -> None:
        _ruled(tmp_path, f"{effect} shell rm everywhere")
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "ask rm; say done", cwd=str(tmp_path))
            view = await session.settled()
            assert "waiting_for_permission" not in await _activities(session)
            assert (view.state.activity.value, view.state.gates.open) == ("idle", ())
            assert [body.by for body in await _resolved(session)] == ["rule"]

    async def test_one_that_a_rule_decides_beside_one_that_it_does_not(self, tmp_path: Path) -> None:
        _ruled(tmp_path, "allow shell ls everywhere")
        async with at_home(tmp_path) as deck:
            live = await _observed(deck)
            for call, command in (("c1", "rm x"), ("c2", "ls"), ("c3", "ls")):
                live.observed_agent.feed(_asking(call, command))
            await live.writer.flush()
            session = deck.session(live.id)
            (left,) = live.state.gates.open
            assert (live.state.activity.value, left.call_id) == ("active/waiting_for_permission", "c1")
            await session.approve(left.id)
            assert session.view.state.activity.value == "active/tool_use"
            live.observed_agent.feed(_asking("c4", "ls"))
            await live.writer.flush()
            assert (await _activities(session)).count("waiting_for_permission") == 1
            assert legal(session.view)

    async def test_many_that_are_decided_at_once_are_told_once(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            live, refs = await _observed(deck), [f"r{number}" for number in range(40)]
            asks = [ev.ApprovalRequired(gate=ev.GateRequest(ref=ref, tool="Bash")) for ref in refs]
            live.record_signal(live.observed_agent, asks, "hook", Durability.EAGER)
            live.record(*live.closing_events(live.state.gates.open, Decision(status="approved"), "user"))
            await live.writer.flush()
            told: list[Body] = [ev.ApprovalResolved(ref=ref, status="approved") for ref in refs]
            live.record_signal(live.observed_agent, told, "hook", Durability.EAGER)
            await live.writer.flush()
            assert len(await _resolved(deck.session(live.id))) == 40


def _ruled(folder: Path, *texts: str) -> None:
    home = folder / "home"
    home.mkdir()
    (home / "rules.toml").write_text("".join(f'[[rule]]\ntext = "{text}"\n' for text in texts), encoding="utf-8")
    (home / "rules.toml").chmod(0o600)


async def _observed(deck: Deck) -> Session:
    """Create a session of an agent that the user started in a terminal, with an open turn."""
    live = await ObservedSessions(deck).session("claude", "native", "/")
    seen = live.observe(registry.translator("claude"))
    seen.feed(Signal("hook", {"session_id": "native", "hook_event_name": "UserPromptSubmit", "prompt": "go"}))
    return live


def _asking(call: str, command: str) -> Signal:
    shared = {"session_id": "native", "tool_name": "Bash", "tool_input": {"command": command}, "tool_use_id": call}
    return Signal("hook", {"hook_event_name": "PermissionRequest", **shared})


def _repo(folder: Path, name: str) -> Path:
    path = folder / name
    (path / ".git").mkdir(parents=True)
    (path / ".git" / "HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
    return path


async def _asked_twice(deck: Deck, folder: Path, scope: str, again: str = "ask git status; say done") -> SessionHandle:
    """Create a session, approve a call with "always", and let the agent ask for the same call again."""
    session = await deck.create("test", "ask git status; say one", cwd=str(folder))
    gate = await gate_of(session)
    answer = await session.approve(gate.id, always=scope)
    assert answer.rule.startswith("allow shell git status")
    await session.settled()
    await session.prompt(again)
    await session.settled()
    return session


class TestARuleOfASession:
    async def test_is_taken_back(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "ask git status; ask git status", cwd=str(tmp_path))
            await session.approve((await gate_of(session)).id, always="session")
            await session.settled()
            (rule,) = await session.rules()
            with pytest.raises(NoSuchRule, match="r0"):
                await session.remove_rule("r0")
            await session.remove_rule(rule.id)
            assert await session.rules() == ()
            await session.prompt("ask git status")
            await gate_of(session)
        async with at_home(tmp_path) as deck:
            assert await deck.session(session.id).rules() == ()
            entries = await deck.session(session.id).timeline()
            assert f"Rule removed: {rule.text}" in [entry.text for entry in entries]


class TestADecisionThatDoesNotResume:
    @pytest.mark.parametrize("yes", [True, False])
    async def test_ends_the_turn_of_an_agent_that_would_go_on(self, tmp_path: Path, yes: bool) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "ask rm; sleep 30; say done", cwd=str(tmp_path))
            gate = await gate_of(session)
            decide = session.approve if yes else session.reject
            await decide(gate.id, auto_resume=False)
            view = await until(session, lambda view: not view.state.turn.is_open)
            assert view.state.phase.value == "stopped"
            assert await texts_of(session, "assistant") == []
            assert [body.status for body in await _resolved(session)] == ["approved" if yes else "rejected"]

    async def test_is_left_to_an_agent_that_can_hold(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("holding", "ask rm; sleep 30", cwd=str(tmp_path))
            gate = await gate_of(session)
            launch, said = (await deck.load_session(session.id)).connection, []
            launch.send = lambda lines: bool(said.extend(lines)) or True
            await session.approve(gate.id, auto_resume=False)
            assert said == [{"op": "answer", "id": gate.ref, "allow": True, "resumes": False}]


class TestAlways:
    @case("0-093")
    async def test_in_this_session(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await _asked_twice(deck, tmp_path, "session")
            assert await texts_of(session, "assistant") == ["one", "done"]
            assert await _tools(session) == [("git status", True)] * 2
            by = [(body.status, body.by, body.rule) for body in await _resolved(session)]
            assert by == [
                ("approved", "user", ""),
                ("approved", "rule", f"allow shell git status in session {session.id}"),
            ]
            assert not (tmp_path / "home" / "rules.toml").exists()
            other = await deck.create("test", "ask git status", cwd=str(tmp_path))
            await gate_of(other)

    async def test_a_rule_of_the_session_outlives_the_deck(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await _asked_twice(deck, tmp_path, "session")
        async with at_home(tmp_path) as deck:
            session = deck.session(session.id)
            await session.prompt("ask git status; say again")
            view = await session.settled()
            assert view.state.gates.open == ()
            assert (await texts_of(session, "assistant"))[-1] == "again"

    async def test_in_this_repository(self, tmp_path: Path) -> None:
        here, there = _repo(tmp_path, "here"), _repo(tmp_path, "there")
        async with at_home(tmp_path) as deck:
            session = await _asked_twice(deck, here, "repo")
            assert (await _resolved(session))[-1].rule == f"allow shell git status in repo {here}"
            beside = await deck.create("test", "ask git status; say yes", cwd=str(here))
            await beside.settled()
            assert await texts_of(beside, "assistant") == ["yes"]
            elsewhere = await deck.create("test", "ask git status", cwd=str(there))
            await gate_of(elsewhere)
            assert f"in repo {here}" in (tmp_path / "home" / "rules.toml").read_text(encoding="utf-8")

    async def test_everywhere_and_for_ever(self, tmp_path: Path) -> None:
        there = _repo(tmp_path, "there")
        async with at_home(tmp_path) as deck:
            session = await _asked_twice(deck, tmp_path, "user")
            assert (await _resolved(session))[-1].rule == "allow shell git status everywhere"
        async with at_home(tmp_path) as deck:
            other = await deck.create("test", "ask git status; say yes", cwd=str(there))
            await other.settled()
            assert await texts_of(other, "assistant") == ["yes"]

    async def test_what_is_asked_elsewhere_is_judged_again(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            sessions = [await deck.create("test", "ask git status; say yes", cwd=str(tmp_path)) for _ in range(3)]
            gates = [await gate_of(session) for session in sessions]
            await sessions[0].approve(gates[0].id, always="user")
            for session in sessions:
                await session.settled()
                assert await texts_of(session, "assistant") == ["yes"]
            assert [body.by for session in sessions for body in await _resolved(session)] == ["user", "rule", "rule"]

    async def test_a_denial_wins(self, tmp_path: Path) -> None:
        home = tmp_path / "home"
        home.mkdir()
        (home / "rules.toml").write_text(
            '[[rule]]\ntext = "allow shell git status everywhere"\n\n[[rule]]\ntext = "deny shell git everywhere"\n',
            encoding="utf-8",
        )
        (home / "rules.toml").chmod(0o600)
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "ask git status; say on", cwd=str(tmp_path))
            await session.settled()
            assert await _tools(session) == [("git status", False)]
            (decision,) = await _resolved(session)
            assert (decision.status, decision.by, decision.rule) == ("rejected", "rule", "deny shell git everywhere")
            assert await texts_of(session, "assistant") == ["on"]

    async def test_rules_that_cannot_be_read_decide_nothing(self, tmp_path: Path) -> None:
        home = tmp_path / "home"
        home.mkdir()
        (home / "rules.toml").write_text("this is no rule", encoding="utf-8")
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "ask git status", cwd=str(tmp_path))
            gate = await gate_of(session)
            before = session.view.index
            with pytest.raises(RulesUnreadable) as refused:
                await session.approve(gate.id, always="user")
            assert refused.value.hint
            assert session.view.index == before
            await session.approve(gate.id)
            await session.settled()
            assert await _tools(session) == [("git status", True)]

    async def test_a_question_is_never_decided_by_a_rule(self, tmp_path: Path) -> None:
        home = tmp_path / "home"
        home.mkdir()
        (home / "rules.toml").write_text('[[rule]]\ntext = "allow * everywhere"\n', encoding="utf-8")
        (home / "rules.toml").chmod(0o600)
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "question which?", cwd=str(tmp_path))
            assert (await gate_of(session)).kind == "question"

    async def test_a_yes_that_came_too_late_is_none_for_always(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "ask git status; say on", cwd=str(tmp_path))
            gate = await gate_of(session)
            late, first = await asyncio.gather(
                session.approve(gate.id, always="user"),
                session.reject(gate.id, auto_resume=True),
                return_exceptions=True,
            )
            assert type(first).__name__ == "Decided"
            assert isinstance(late, AlreadyDecided)
            assert deck.services.rules.rules() == ()

    async def test_without_a_repository_it_is_for_the_folder(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "ask git status; say on", cwd=str(tmp_path))
            gate = await gate_of(session)
            answer = await session.approve(gate.id, always="repo")
            assert answer.rule == f"allow shell git status in repo {tmp_path}"

    async def test_what_no_rule_can_say_is_refused_and_still_asked(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "ask", cwd=str(tmp_path))
            gate = await gate_of(session)
            before = session.view
            with pytest.raises(InvalidRule) as refused:
                await session.approve(gate.id, always="user")
            assert refused.value.hint
            assert session.view is before
            assert not (tmp_path / "home" / "rules.toml").exists()
