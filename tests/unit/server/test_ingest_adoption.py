"""Test that each conversation of an agent is one session, before and after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from quarterdeck.deck.agents.observed_sessions import ObservedSessions
from quarterdeck.deck.deck import DeckClosed
from quarterdeck.harness import registry
from quarterdeck.harness.registry import Harness
from quarterdeck.server.auth import SECRET, secret_for
from quarterdeck.testing.harness import TestDriver, TestTranslator
from tests.support.decks import Time, eventually, until
from tests.support.http_api import RunningServer, serving


def _hook(event: str = "UserPromptSubmit", native: str = "native", **more: Any) -> dict[str, Any]:
    return {"session_id": native, "hook_event_name": event, "cwd": "/", "prompt": "hi", **more}


async def _sessions(house: RunningServer) -> list[dict[str, Any]]:
    for session in list(house.deck.loaded_sessions()):
        await session.writer.flush()
    return (await house.get("/sessions?archived=true")).json["sessions"]


class TestUnknown:
    async def test_it_is_opened_and_belongs_to_the_terminal(self, tmp_path: Path) -> None:
        (tmp_path / "project" / ".git").mkdir(parents=True)
        async with serving(tmp_path) as house:
            folder = str(tmp_path / "project")
            await house.hook("claude", _hook(cwd=folder))
            [shown] = await _sessions(house)
            assert (shown["owner"], shown["agent"], shown["cwd"]) == ("terminal", "claude", folder)
            assert shown["repo"]["name"] == "project"
            assert (shown["lifecycle"], shown["phase"]) == ("active", "streaming")

    @pytest.mark.parametrize("turn", [(), ("Stop",)])
    @pytest.mark.parametrize(
        ("command", "body"),
        [
            ("prompt", {"text": "hi"}),
            ("steer", {"text": "hi"}),
            ("resume", {}),
            ("switch_model", {"model": "opus"}),
            ("compact", {}),
            ("bash", {"command": "ls"}),
            ("retry", {}),
        ],
    )
    async def test_what_cannot_reach_it_is_refused_and_changes_nothing(
        self, command: str, body: dict[str, str], turn: tuple[str, ...], tmp_path: Path
    ) -> None:
        async with serving(tmp_path) as house:
            for event in ("UserPromptSubmit", *turn):
                await house.hook("claude", _hook(event))
            [before] = await _sessions(house)
            answer = await house.post(f"/sessions/{before['id']}/{command}", body)
            assert answer.status == 409
            hint = answer.json["error"]["hint"]
            assert not hint.startswith("Allowed now") or not {"prompt", "steer", "bash", "compact"} & set(
                hint.removeprefix("Allowed now: ").rstrip(".").split(", ")
            )
            assert await _sessions(house) == [before]

    async def test_many_hooks_at_once_open_one(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            told = [house.hook("claude", _hook("MessageDisplay", message_id=f"m{one}", delta="x")) for one in range(30)]
            assert {one.status for one in await asyncio.gather(*told)} == {200}
            assert len(await _sessions(house)) == 1

    async def test_each_conversation_of_each_agent_is_its_own(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            for agent in ("claude", "codex"):
                for native in ("one", "two"):
                    for _ in range(2):
                        await house.hook(agent, _hook(native=native))
            assert sorted(one["agent"] for one in await _sessions(house)) == ["claude", "claude", "codex", "codex"]

    @pytest.mark.parametrize("folder", ["relative", "/a\0b", "/" + "a" * 5000, 7, None])
    async def test_a_folder_that_is_none_is_not_told(self, folder: Any, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            assert (await house.hook("claude", _hook(cwd=folder))).status == 200
            [shown] = await _sessions(house)
            assert shown["cwd"] == ""

    async def test_a_deck_that_is_closing_opens_none(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            adoption = ObservedSessions(house.deck)
            await house.deck.close()
            with pytest.raises(DeckClosed):
                await adoption.session("claude", "native", "/")


class TestKnown:
    async def test_after_a_restart_it_is_resumed_by_evidence(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            await house.hook("claude", _hook())
            [before] = await _sessions(house)
        async with serving(tmp_path) as house:
            assert [one["lifecycle"] for one in await _sessions(house)] == ["suspended"]
            told = [house.hook("claude", _hook("PreToolUse", tool_name="Read", tool_use_id="c1")) for _ in range(3)]
            await asyncio.gather(*told)
            [shown] = await _sessions(house)
            assert (shown["id"], shown["lifecycle"]) == (before["id"], "active")
            path = f"/sessions/{shown['id']}/events?types=session_resumed"
            events = (await house.get(path, headers={"Accept": "application/json"})).json["events"]
            assert [(one["by"], one["origin"]) for one in events] == [("evidence", "supervisor")]

    async def test_one_that_was_archived_is_not_touched(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            await house.hook("claude", _hook())
            [first] = await _sessions(house)
            assert (await house.post(f"/sessions/{first['id']}/archive")).status == 200
            before = (await house.get(f"/sessions/{first['id']}")).json
            await asyncio.gather(*(house.hook("claude", _hook("PreToolUse", tool_name="Read")) for _ in range(5)))
            found = {one["id"]: one["lifecycle"] for one in await _sessions(house)}
            assert sorted(found.values()) == ["active", "archived"]
            assert found[first["id"]] == "archived"
            assert (await house.get(f"/sessions/{first['id']}")).json == before
        async with serving(tmp_path) as house:
            await house.hook("claude", _hook("Stop"))
            found = {one["id"]: one["lifecycle"] for one in await _sessions(house)}
            assert (len(found), found[first["id"]]) == (2, "archived")

    async def test_at_rest_it_leaves_the_memory_and_comes_back(self, tmp_path: Path) -> None:
        time = Time()
        async with serving(tmp_path, clock=time.clock()) as house:
            await house.hook("claude", _hook(prompt_id="p1"))
            await _sessions(house)
            [name] = [session.id for session in house.deck.loaded_sessions()]
            house.deck.services.supervisor.schedule_eviction()
            await time.skip(2)
            assert name in house.deck.services.supervisor.sessions, "it is in the middle of a turn"
            await house.hook("claude", _hook("Stop", prompt_id="p1"))
            await _sessions(house)
            await time.skip(2)
            assert name not in house.deck.services.supervisor.sessions
            await house.hook("claude", _hook(prompt_id="p2", prompt="more"))
            [shown] = await _sessions(house)
            assert (shown["id"], shown["phase"]) == (name, "streaming")

    async def test_one_that_was_deleted_is_opened_anew(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            await house.hook("claude", _hook())
            [first] = await _sessions(house)
            await house.post(f"/sessions/{first['id']}/archive")
            assert (await house.ask("DELETE", f"/sessions/{first['id']}")).status == 204
            await house.hook("claude", _hook())
            [second] = await _sessions(house)
            assert second["id"] != first["id"]


class _Claude(TestTranslator):
    """The scripted agent under the name claude. Hooks can name its conversation."""


def _claude(agent: str) -> Harness:
    return Harness(agent, TestDriver, _Claude)


class TestOurOwn:
    """Sessions that the deck started, and whose agent also sends the user's installed hooks."""

    @pytest.fixture(autouse=True)
    def _driven(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(registry.HARNESSES, "claude", f"{__name__}:_claude")
        monkeypatch.setattr(
            registry, "_load", lambda target: _claude if target.endswith(":_claude") else _whole(target)
        )

    async def test_it_is_not_doubled(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            body = {"agent": "claude", "prompt": "sleep 30", "cwd": str(tmp_path)}
            session = house.deck.session((await house.post("/sessions", body)).json["id"])
            view = await until(session, lambda view: view.state.profile.native_session_id)
            native = view.state.profile.native_session_id
            assert (await house.hook("claude", _hook(native=native))).json == {}
            asking = _hook("PermissionRequest", native, tool_name="Bash", tool_input={})
            assert (await house.hook("claude", asking)).json == {}
            assert [one["id"] for one in await _sessions(house)] == [session.id]
            assert (await _sessions(house))[0]["owner"] == "deck"

    async def test_it_is_found_when_its_process_is_gone(self, tmp_path: Path) -> None:
        """Continue the conversation in a terminal: it stays the same session."""
        async with serving(tmp_path) as house:
            body = {"agent": "claude", "prompt": "say hi", "cwd": str(tmp_path)}
            session = house.deck.session((await house.post("/sessions", body)).json["id"])
            native = (await session.settled()).state.profile.native_session_id
            live = house.deck.services.supervisor.sessions[session.id]
            await live.launcher.stop()
            await eventually(lambda: not house.deck.services.conversations.owner_of(native))
            await house.hook("claude", _hook(native=native))
            assert [one["id"] for one in await _sessions(house)] == [session.id]

    async def test_hooks_with_its_own_secret(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            body = {"agent": "claude", "prompt": "say hi", "cwd": str(tmp_path)}
            session = house.deck.session((await house.post("/sessions", body)).json["id"])
            await session.settled()
            assert (await house.hook("claude", _hook(), session.id)).json == {}
            live = house.deck.services.supervisor.sessions[session.id]
            await live.launcher.stop()
            await eventually(lambda: live.connection is None)
            late = await house.hook("claude", _hook(), session.id)
            assert (late.status, late.code) == (409, "no_process")
            nobody = {SECRET: secret_for(house.token, "nobody")}
            answer = await house.ask("POST", "/ingest/claude/nobody", None, nobody, json=_hook())
            assert (answer.status, answer.code) == (404, "no_such_session")


_whole = registry._load
