"""Test hooks that ask for a decision: held until it is made, answered when it is durable."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from quarterdeck.events import Event, Notice
from quarterdeck.harness import hooks
from quarterdeck.harness.driver import Decision
from quarterdeck.log.base import Append, StaleFence
from tests.conformance.marks import case
from tests.support.decks import eventually
from tests.support.http_api import Answer, RunningServer, serving

_ARGS = {"command": "rm -r build"}


def _hook(event: str, native: str = "native", **more: Any) -> dict[str, Any]:
    return {"session_id": native, "hook_event_name": event, "cwd": "/", **more}


def _prompt(native: str = "native") -> dict[str, Any]:
    return _hook("UserPromptSubmit", native, prompt="clean up", prompt_id="p1", turn_id="t1")


def _call(event: str, native: str = "native", call: str = "c1", **more: Any) -> dict[str, Any]:
    shared = {"tool_name": "Bash", "tool_input": _ARGS, "prompt_id": "p1", "turn_id": "t1"}
    return _hook(event, native, **shared, tool_use_id=call, **more)


def _asking(native: str = "native") -> dict[str, Any]:
    found = _call("PermissionRequest", native)
    del found["tool_use_id"]
    return found


class _Held:
    """A hook that waits for a decision."""

    def __init__(self, house: RunningServer, agent: str, native: str) -> None:
        self.house = house
        self.agent = agent
        self.native = native
        self.task: asyncio.Future[Answer]
        self.id = ""
        self.gate = ""

    async def begin(self, asking: dict[str, Any] | None = None) -> _Held:
        for payload in (_prompt(self.native), _call("PreToolUse", self.native)):
            assert (await self.house.hook(self.agent, payload)).json == {}
        self.task = asyncio.ensure_future(self.house.hook(self.agent, asking or _asking(self.native)))
        await eventually(lambda: self.task.done() or self._shown())
        return self

    def _shown(self) -> bool:
        for one in self.house.deck.attention():
            if one.attention is not None and one.attention.gate_id:
                self.id, self.gate = one.id, one.attention.gate_id
        return bool(self.gate)

    async def decide(self, how: str, **more: Any) -> Answer:
        return await self.house.post(f"/sessions/{self.id}/{how}", {"gate_id": self.gate, **more})

    async def answer(self) -> Any:
        return (await self.task).json

    async def shown(self) -> dict[str, Any]:
        live = self.house.deck.services.supervisor.sessions[self.id]
        await live.writer.flush()
        return (await self.house.get(f"/sessions/{self.id}")).json

    async def resolved(self) -> list[tuple[str, str, str]]:
        path = f"/sessions/{self.id}/events?types=approval_resolved"
        found = (await self.house.get(path, headers={"Accept": "application/json"})).json["events"]
        return [(one["status"], one.get("by", ""), one.get("rule", "")) for one in found]


async def _held(house: RunningServer, agent: str = "claude", native: str = "native") -> _Held:
    return await _Held(house, agent, native).begin()


def _decision(**told: Any) -> dict[str, Any]:
    return {"hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": told}}


def _held_up(house: RunningServer, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Block all commits until the event is set."""
    go, append = asyncio.Event(), house.deck.services.log.append

    async def wait_and_append(unit: Any) -> Any:
        await go.wait()
        return await append(unit)

    monkeypatch.setattr(house.deck.services.log, "append", wait_and_append)
    return go


class TestDecidedHere:
    @pytest.mark.parametrize("agent", ["claude", "codex"])
    async def test_yes(self, agent: str, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            held = await _held(house, agent)
            assert (await held.shown())["phase"] == "waiting_approval"
            assert not held.task.done()
            assert (await held.decide("approve")).status == 200
            assert await held.answer() == _decision(behavior="allow")
            shown = await held.shown()
            assert (shown["phase"], shown["gates"]) == ("streaming", [])
            assert await held.resolved() == [("approved", "user", "")]
            await house.hook(agent, _call("PostToolUse"))
            await house.hook(agent, _hook("Stop", turn_id="t1", prompt_id="p1"))
            assert (await held.shown())["phase"] == "completed"

    async def test_no_and_go_on(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            held = await _held(house)
            await held.decide("reject", reason="not here", auto_resume=True)
            assert await held.answer() == _decision(behavior="deny", message="not here")
            assert (await held.shown())["phase"] == "streaming"
            assert await held.resolved() == [("rejected", "user", "")]

    async def test_no_and_stop(self, tmp_path: Path) -> None:
        """Reject a call with the API, which ends the turn by default."""
        async with serving(tmp_path) as house:
            held = await _held(house)
            assert (await held.decide("reject")).status == 200
            assert await held.answer() == _decision(behavior="deny", message="The user said no.", interrupt=True)
            assert (await held.shown())["phase"] == "stopped"

    async def test_stop(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            held = await _held(house)
            assert (await house.post(f"/sessions/{held.id}/abort")).status == 200
            told = (await held.answer())["hookSpecificOutput"]["decision"]
            assert (told["behavior"], told["interrupt"]) == ("deny", True)
            shown = await held.shown()
            assert (shown["phase"], shown["gates"]) == ("stopped", [])
            assert await held.resolved() == [("withdrawn", "user", "")]

    async def test_a_question_is_answered(self, tmp_path: Path) -> None:
        options = [{"label": "red", "description": "Red"}, {"label": "blue", "description": "Blue"}]
        args = {
            "questions": [{"question": "Which colour?", "header": "Colour", "options": options, "multiSelect": False}]
        }
        shared = {"tool_name": "AskUserQuestion", "tool_input": args, "prompt_id": "p1"}
        async with serving(tmp_path) as house:
            await house.hook("claude", _prompt())
            await house.hook("claude", _hook("PreToolUse", tool_use_id="q1", **shared))
            held = _Held(house, "claude", "native")
            held.task = asyncio.ensure_future(house.hook("claude", _hook("PermissionRequest", **shared)))
            await eventually(held._shown)
            assert (await held.shown())["phase"] == "waiting_input"
            assert (await held.decide("respond", answer="blue")).status == 200
            wanted = _decision(behavior="allow", updatedInput={**args, "answers": {"Which colour?": "blue"}})
            assert await held.answer() == wanted

    async def test_it_is_answered_after_the_commit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        async with serving(tmp_path) as house:
            held = await _held(house)
            go = _held_up(house, monkeypatch)
            asked = asyncio.ensure_future(held.decide("approve"))
            await asyncio.wait([held.task, asked], timeout=0.1)
            assert not held.task.done()
            assert not asked.done()
            go.set()
            assert (await asked).status == 200
            assert await held.answer() == _decision(behavior="allow")

    async def test_an_observing_hook_is_answered_before_the_append(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with serving(tmp_path) as house:
            go = _held_up(house, monkeypatch)
            for payload in (_prompt(), _call("PreToolUse"), _call("PostToolUse"), _hook("Stop")):
                assert (await house.hook("claude", payload)).json == {}
            assert (await house.get("/sessions")).json["sessions"] == []
            go.set()
            await eventually(
                lambda: len(house.deck.session_ids()) == 1 and house.deck.view(house.deck.session_ids()[0])
            )
            live = house.deck.services.supervisor.sessions[house.deck.session_ids()[0]]
            await live.writer.flush()
            assert (await house.get("/sessions")).json["sessions"][0]["phase"] == "completed"

    async def test_it_is_decided_once(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            held = await _held(house)
            answers = await asyncio.gather(*(held.decide(how) for how in ("approve", "reject", "approve")))
            assert sorted(one.status for one in answers) == [200, 409, 409]
            assert {one.code for one in answers} == {"", "already_decided"}
            assert await held.answer() == _decision(behavior="allow")


class TestDecidedElsewhere:
    @pytest.mark.parametrize(
        ("event", "status"),
        [
            ("PostToolUse", "answered_elsewhere"),
            ("PostToolUseFailure", "answered_elsewhere"),
            ("Stop", "answered_elsewhere"),
            ("UserPromptSubmit", "withdrawn"),
        ],
    )
    async def test_in_the_terminal(self, event: str, status: str, tmp_path: Path) -> None:
        """Read the answer from the next hook: Claude Code leaves the request open when the user answers in the terminal."""

        async with serving(tmp_path) as house:
            held = await _held(house)
            payload = _call(event) if "Tool" in event else {**_hook(event), "prompt": "next", "prompt_id": "p2"}
            await house.hook("claude", payload)
            assert await held.answer() == {}
            assert (await held.shown())["gates"] == []
            assert await held.resolved() == [(status, "", "")]
            assert (await held.decide("approve")).status in (404, 409)

    async def test_the_agent_hangs_up(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            held = await _held(house)
            held.task.cancel()
            await eventually(lambda: not house.deck.view(held.id).state.gates.open)
            assert [one[0] for one in await held.resolved()] == ["withdrawn"]
            assert (await held.decide("approve")).status == 409

    async def test_the_deck_takes_the_conversation_over(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            held = await _held(house)
            live = house.deck.services.supervisor.sessions[held.id]
            live.stop_observing()
            assert await held.answer() == {}
            assert live.observed_agent is None

    async def test_two_are_held_beside_each_other(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            one = await _held(house, native="one")
            other = _Held(house, "claude", "other")
            for payload in (_prompt("other"), _call("PreToolUse", "other")):
                await house.hook("claude", payload)
            other.task = asyncio.ensure_future(house.hook("claude", _asking("other")))
            await eventually(lambda: len(house.deck.attention()) == 2)
            other.id = next(name for name in house.deck.session_ids() if name != one.id)
            other.gate = house.deck.view(other.id).state.gates.open[0].id
            await other.decide("reject", auto_resume=True)
            assert (await other.answer())["hookSpecificOutput"]["decision"]["behavior"] == "deny"
            assert not one.task.done()
            await one.decide("approve")
            assert await one.answer() == _decision(behavior="allow")


class TestDecidedByRules:
    def _ruled(self, folder: Path, text: str) -> None:
        (folder / "home").mkdir()
        (folder / "home" / "rules.toml").write_text(text, encoding="utf-8")

    async def test_a_rule_decides_without_a_person(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            first = await _held(house)
            assert (await first.decide("approve", always="user")).status == 200
            assert await first.answer() == _decision(behavior="allow")
            rule = (await house.get("/rules")).json["rules"][0]["text"]
            await house.hook("claude", _call("PostToolUse"))
            second = await _held(house, native="other")
            assert await second.answer() == _decision(behavior="allow")
            name = next(one for one in house.deck.session_ids() if one != first.id)
            second.id = name
            await second.shown()
            assert await second.resolved() == [("approved", "rule", rule)]
            assert house.deck.attention() == []

    async def test_a_session_that_became_somebody_elses_asks_on_its_terminal(self, tmp_path: Path) -> None:
        """Answer without a decision at once, because the decision can never become durable."""
        async with serving(tmp_path) as house:
            first = await _held(house)
            assert (await first.decide("approve", always="user")).status == 200
            assert await first.answer() == _decision(behavior="allow")
            await house.hook("claude", _call("PostToolUse"))
            record = house.deck.services.supervisor.sessions[first.id].writer
            await record.flush()
            theirs = Event(first.id, record.view.index + 1, record.view.at, "user", Notice(text="theirs"))
            await house.deck.services.log.append(Append(session_id=first.id, events=(theirs,), fence=record.fence))
            ruled = {**_asking(), "prompt_id": "p2"}
            assert (await asyncio.wait_for(house.hook("claude", ruled), 10)).json == {}
            assert isinstance(record.error, StaleFence)

    @case("U-099")
    async def test_rules_that_cannot_be_read_decide_nothing(self, tmp_path: Path) -> None:
        """Ask the user if the rules can't be read. The hook is recorded before rules are applied."""
        self._ruled(tmp_path, "this is [ no toml")
        async with serving(tmp_path) as house:
            held = await _held(house)
            events = (await house.get(f"/sessions/{held.id}/events", headers={"Accept": "application/json"})).json[
                "events"
            ]
            assert "approval_required" in [one["type"] for one in events]
            assert not held.task.done()
            assert (await held.shown())["phase"] == "waiting_approval"
            assert await held.resolved() == []
            await held.decide("approve")
            assert await held.answer() == _decision(behavior="allow")


class TestRestart:
    async def test_a_held_hook_is_let_go_and_its_session_comes_back(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            held = await _held(house)
            name, gate, task = held.id, held.gate, held.task
            leaving = asyncio.ensure_future(house.runner.cleanup())
            assert (await task).json == {}
            await leaving
        async with serving(tmp_path) as house:
            shown = (await house.get(f"/sessions/{name}")).json
            assert (shown["lifecycle"], shown["gates"]) == ("suspended", [])
            assert (await house.post(f"/sessions/{name}/approve", {"gate_id": gate})).status == 409
            assert (await house.hook("claude", _call("PostToolUse"))).json == {}
            assert (await house.hook("claude", _hook("Stop", prompt_id="p1"))).json == {}
            live = house.deck.services.supervisor.sessions[name]
            await live.writer.flush()
            shown = (await house.get(f"/sessions/{name}")).json
            assert (shown["lifecycle"], shown["phase"]) == ("active", "completed")
            assert len((await house.get("/sessions")).json["sessions"]) == 1


class TestWords:
    @pytest.mark.parametrize(
        ("given", "told"),
        [
            ("a", {"One?": "a"}),
            (["a", "b"], {"One?": "a", "Two?": "b"}),
            ([["a", "b"], "c"], {"One?": "a, b", "Two?": "c"}),
            ({"Two?": "b", "Three?": "x"}, {"Two?": "b"}),
            ([1, None], {"One?": "1", "Two?": ""}),
        ],
    )
    def test_answers_by_question(self, given: Any, told: dict[str, str]) -> None:
        payload = {"tool_input": {"questions": [{"question": "One?"}, {"question": "Two?"}]}}
        answer = hooks.encode_decision("claude", payload, Decision(status="answered", answer=given))
        assert answer["hookSpecificOutput"]["decision"]["updatedInput"]["answers"] == told

    def test_several_options_for_one_question(self) -> None:
        payload = {"tool_input": {"questions": [{"question": "One?"}]}}
        answer = hooks.encode_decision("claude", payload, Decision(status="answered", answer=["a", "b"]))
        assert answer["hookSpecificOutput"]["decision"]["updatedInput"]["answers"] == {"One?": "a, b"}

    def test_codex_is_not_told_to_stop(self) -> None:
        """Omit `interrupt`, because Codex's answer has no such field."""
        answer = hooks.encode_decision("codex", {}, Decision(status="rejected", stops=True))
        assert answer == _decision(behavior="deny", message="The user said no.")
