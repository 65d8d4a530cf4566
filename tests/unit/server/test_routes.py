"""Test every route of the contract over a real port."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from quarterdeck.policy.rule import parse
from tests.conformance.marks import case
from tests.support.decks import SETTINGS, eventually, until
from tests.support.live_server import Port, served


class Http:
    """Send a request, and return the status and the decoded body."""

    def __init__(self, port: Port, client: aiohttp.ClientSession) -> None:
        self._port = port
        self._client = client

    async def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        async with self._client.request(method, self._port.url + path, json=body, headers=headers) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if answer.content_type == "application/json" else text


class Asking:
    """A server and a client."""

    def __init__(self, folder: Path, **changes: object) -> None:
        self._served = served(folder, **changes)
        self._client: aiohttp.ClientSession

    async def __aenter__(self) -> tuple[Port, Http]:
        port = await self._served.__aenter__()
        self._client = aiohttp.ClientSession(headers=port.headers)
        return port, Http(port, self._client)

    async def __aexit__(self, *error: Any) -> None:
        await self._client.close()
        await self._served.__aexit__(*error)


async def finished(port: Port, session_id: str) -> None:
    await until(port.deck.session(session_id), lambda view: view.state.phase.value == "completed")


@case("U-044")
async def test_wrong_types_are_refused_and_unknown_fields_are_dropped(tmp_path: Path):
    async with Asking(tmp_path) as (port, ask):
        for field, value in (("prompt", 5), ("agent", None), ("name", ["a"]), ("record", "yes"), ("env", {"A": 1})):
            status, said = await ask("POST", "/sessions", {"agent": "test", "cwd": str(tmp_path), field: value})
            assert status == 400
            assert said["error"]["message"].startswith(field)
        assert port.deck.session_ids() == []
        status, view = await ask("POST", "/sessions", {"agent": "test", "cwd": str(tmp_path), "unheard_of": [1]})
        assert status == 201
        assert "unheard_of" not in view


@pytest.mark.parametrize("wanted", [True, "a-branch"])
async def test_a_worktree_is_refused_as_long_as_there_is_none(tmp_path: Path, wanted: bool | str):
    async with Asking(tmp_path) as (port, ask):
        status, said = await ask("POST", "/sessions", {"agent": "test", "cwd": str(tmp_path), "worktree": wanted})
        assert (status, said["error"]["code"]) == (400, "invalid_input")
        assert said["error"]["message"].startswith("worktree: ")
        assert "git worktree add" in said["error"]["hint"]
        assert port.deck.session_ids() == []
        status, _ = await ask("POST", "/sessions", {"agent": "test", "cwd": str(tmp_path), "worktree": False})
        assert status == 201


@case("U-069")
async def test_where_a_session_may_be_started(tmp_path: Path):
    inside, outside = tmp_path / "work", tmp_path / "work-of-others"
    (inside / "repo").mkdir(parents=True)
    outside.mkdir()
    (inside / "link").symlink_to(outside)
    (inside / "file").touch()
    async with Asking(tmp_path, workspace=(str(inside),)) as (port, ask):

        async def refused(body: Any) -> tuple[int, str]:
            status, said = await ask("POST", "/sessions", body)
            assert said["error"].keys() == {"code", "message", "hint"}
            return status, said["error"]["code"]

        for body in ({}, {"cwd": str(inside)}, [], "x", None):
            assert await refused(body) == (400, "bad_request")
        for folder in ("", ".", "repo"):
            assert await refused({"agent": "test", "cwd": folder}) == (400, "invalid_input")
        assert await refused({"agent": "test", "cwd": 5}) == (400, "bad_request")
        assert await refused({"agent": "test", "cwd": str(inside / "file")}) == (400, "invalid_input")
        assert await refused({"agent": "nobody", "cwd": str(inside)}) == (404, "unknown_agent")
        assert await refused({"agent": "test", "cwd": str(inside / "none")}) == (404, "no_such_folder")
        for folder in (outside, inside / "link", inside / ".." / "work-of-others", outside / "none", tmp_path, "/"):
            assert await refused({"agent": "test", "cwd": str(folder)}) == (403, "outside_workspace")
        assert await refused({"agent": "test"}) == (
            403,
            "outside_workspace",
        )  # The default folder is the home of the server's user.
        assert port.deck.session_ids() == []
        for folder in (inside, inside / "repo", f"{inside}/"):
            assert (await ask("POST", "/sessions", {"agent": "test", "cwd": str(folder)}))[0] == 201
        _, found = await ask("GET", f"/folders?q={tmp_path}/")
        assert found == {"folders": [str(inside)]}
        assert (await ask("GET", f"/folders?q={outside}/.."))[1] == {"folders": []}
        assert (await ask("GET", f"/folders?q={inside}/"))[1] == {"folders": [str(inside / "repo")]}


@case("U-069")
async def test_a_start_over_the_limit_waits_and_says_so(tmp_path: Path):
    assert SETTINGS.running_limit == 8
    async with Asking(tmp_path, running_limit=1) as (port, ask):
        body = {"agent": "test", "prompt": "sleep 30", "cwd": str(tmp_path)}
        first = (await ask("POST", "/sessions", body))[1]["id"]
        await until(port.deck.session(first), lambda view: view.state.turn.is_open)
        status, late = await ask("POST", "/sessions", body)
        assert status == 201
        late = port.deck.session(late["id"])
        await eventually(lambda: port.deck.waiting() == (late.id,))
        await until(late, lambda view: "Queued: all" in str(view.timeline))
        await ask("POST", f"/sessions/{first}/cancel")
        await until(late, lambda view: view.state.turn.is_open)


async def test_a_folder_that_is_left_out_is_the_home_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    async with Asking(tmp_path) as (_, ask):
        assert (await ask("POST", "/sessions", {"agent": "test"}))[1]["cwd"] == str(tmp_path)


async def test_a_whole_number_may_be_written_with_a_point(tmp_path: Path):
    async with Asking(tmp_path) as (port, ask):
        session = await port.deck.create("test", cwd=str(tmp_path))
        assert (await ask("PATCH", f"/sessions/{session.id}", {"snoozed_until": 7.0}))[1]["snoozed_until"] == 7
        for wrong in (7.5, "7", 1e300, True, 1 << 53):
            status, said = await ask("PATCH", f"/sessions/{session.id}", {"snoozed_until": wrong})
            assert status == 400
            assert said["error"]["message"].startswith("snoozed_until: ")


async def test_a_key_in_the_body_of_a_delete_is_a_key(tmp_path: Path):
    async with Asking(tmp_path) as (port, ask):
        session = await port.deck.create("test", "hang", cwd=str(tmp_path))
        await until(session, lambda view: view.state.turn.is_open)
        path = f"/sessions/{session.id}/queue"
        for _ in range(4):
            await session.prompt("later")
        waiting = session.queue[-1].id
        first = await ask("DELETE", f"{path}/{waiting}", {"client_id": "one"})
        assert first == (200, {"dropped": ["later"]})
        assert await ask("DELETE", f"{path}/{waiting}", {"client_id": "one"}) == first
        assert (await ask("DELETE", f"{path}/{waiting}", {"client_id": "two"}))[0] in (404, 409)
        assert (await ask("DELETE", path, {"client_id": 7}))[0] == 400


@case("U-070")
async def test_a_prompt_without_text_of_nobody_or_to_an_archived_session(tmp_path: Path):
    async with Asking(tmp_path) as (_, ask):
        _, view = await ask("POST", "/sessions", {"agent": "test", "cwd": str(tmp_path)})
        path = f"/sessions/{view['id']}"
        assert (await ask("POST", f"{path}/prompt", {}))[0] == 400
        assert (await ask("POST", "/sessions/nobody/prompt", {"text": "x"}))[0] == 404
        status, receipt = await ask("POST", f"{path}/prompt", {"text": "say hello"})
        assert status == 202
        assert receipt["accepted"]
        assert receipt["message_id"]
        await ask("POST", f"{path}/archive")
        status, refused = await ask("POST", f"{path}/prompt", {"text": "again"})
        assert status == 409
        assert "archived" in refused["error"]["message"]


@case("U-071")
async def test_the_list_is_newest_first_in_pages_and_can_be_filtered(tmp_path: Path):
    async with Asking(tmp_path) as (port, ask):
        other = tmp_path / "other"
        other.mkdir()
        made = [(await port.deck.create("test", cwd=str(tmp_path), name=f"n{n}")).id for n in range(22)]
        made.append((await port.deck.create("test", cwd=str(other))).id)
        await port.deck.session(made[0]).archive()
        _, first = await ask("GET", "/sessions")
        assert len(first["sessions"]) == 20
        assert first["badge"] == {"count": 22, "attention": 0}
        _, second = await ask("GET", f"/sessions?cursor={first['next_cursor']}")
        assert second["next_cursor"] is None
        found = [*first["sessions"], *second["sessions"]]
        order = [(one["created_at"], one["id"]) for one in found]
        assert order == sorted(order, reverse=True)
        assert {one["id"] for one in found} == set(made[1:])
        _, here = await ask("GET", f"/sessions?cwd={other}")
        assert [one["id"] for one in here["sessions"]] == [made[-1]]
        _, archived = await ask("GET", "/sessions?status=archived,error")
        assert [one["id"] for one in archived["sessions"]] == [made[0]]
        _, both = await ask("GET", "/sessions?status=archived,active&limit=200")
        assert len(both["sessions"]) == 23
        _, named = await ask("GET", "/sessions?q=n21")
        assert [one["name"] for one in named["sessions"]] == ["n21"]
        for wrong in (
            "limit=0",
            "limit=201",
            "limit=x",
            "archived=maybe",
            "status=done",
            "status=active,done",
            "cursor=x",
        ):
            status, said = await ask("GET", f"/sessions?{wrong}")
            assert status == 400
            assert said["error"]["message"].startswith(wrong.partition("=")[0])


@pytest.mark.parametrize("wrong", [{"mode": "plan"}, {"name": " "}, {"name": "a\0b"}, {"read_index": -1}])
async def test_of_several_changes_one_that_is_refused_refuses_all(wrong: dict[str, Any], tmp_path: Path):
    async with Asking(tmp_path) as (port, ask):
        session = await port.deck.create("test", cwd=str(tmp_path), name="Before")
        before = session.summary
        status, _ = await ask(
            "PATCH", f"/sessions/{session.id}", {"name": "After", "mode": "auto", "pinned": True, **wrong}
        )
        assert status in (400, 409)
        assert session.summary == before


@case("U-072")
async def test_a_name_is_neither_empty_nor_longer_than_a_hundred(tmp_path: Path):
    async with Asking(tmp_path) as (port, ask):
        session = await port.deck.create("test", cwd=str(tmp_path), name="Before")
        for name in ("", "x" * 101, 7, None):
            assert (await ask("PATCH", f"/sessions/{session.id}", {"name": name}))[0] == 400
        assert session.summary.name == "Before"
        status, view = await ask("PATCH", f"/sessions/{session.id}", {"name": "x" * 100, "pinned": True})
        assert status == 200
        assert (view["name"], view["pinned"]) == ("x" * 100, True)
        _, view = await ask("PATCH", f"/sessions/{session.id}", {"snoozed_until": 99999999999999, "read_index": 1})
        assert view["snoozed_until"] == 99999999999999
        _, view = await ask("PATCH", f"/sessions/{session.id}", {"snoozed_until": None, "client_id": "k" * 200})
        assert view["snoozed_until"] is None


@case("U-073")
async def test_messages_since_a_time_are_only_the_later_ones(tmp_path: Path):
    async with Asking(tmp_path) as (port, ask):
        session = await port.deck.create("test", "say first", cwd=str(tmp_path))
        await finished(port, session.id)
        _, whole = await ask("GET", f"/sessions/{session.id}/messages")
        last = whole["entries"][-1]["at"]
        await asyncio.sleep(0.005)
        await session.prompt("say second")
        await until(session, lambda _: "second" in session.summary.last_text)
        _, later = await ask("GET", f"/sessions/{session.id}/messages?since={last}")
        assert "first" not in json.dumps(later)
        assert "second" in json.dumps(later)
        assert [one["at"] for one in later["entries"]] == sorted(one["at"] for one in later["entries"])


async def test_a_session_can_be_taken_away(tmp_path: Path):
    async with Asking(tmp_path) as (port, ask):
        session = await port.deck.create("test", "say hello; tool ls", cwd=str(tmp_path), name="Mine", record=True)
        await finished(port, session.id)
        status, text = await ask("GET", f"/sessions/{session.id}/export")
        assert status == 200
        assert text.startswith("# Mine\n")
        assert "> say hello; tool ls" in text
        assert "hello" in text
        assert "**ls**" in text
        _, whole = await ask("GET", f"/sessions/{session.id}/export?format=json")
        assert whole["events"][0]["type"] == "session_opened"
        assert whole["view"]["id"] == session.id
        _, trace = await ask("GET", f"/sessions/{session.id}/export?format=trace")
        assert {json.loads(line)["src"] for line in trace.splitlines()} >= {"stdin", "stdout"}
        plain = await port.deck.create("test", cwd=str(tmp_path))
        status, said = await ask("GET", f"/sessions/{plain.id}/export?format=trace")
        assert (status, said["error"]["code"]) == (404, "no_such_trace")
        assert (await ask("GET", f"/sessions/{plain.id}/export?format=pdf"))[0] == 400
        assert (await ask("GET", "/sessions/nobody/export?format=json"))[0] == 404


async def test_folders_are_found_by_their_beginning_and_by_what_was_used(tmp_path: Path):
    async with Asking(tmp_path) as (port, ask):
        for name in ("apple", "apricot", ".hidden", "banana"):
            (tmp_path / name).mkdir()
        (tmp_path / "apfile").write_text("", encoding="utf-8")
        await port.deck.create("test", cwd=str(tmp_path / "banana"))
        _, found = await ask("GET", f"/folders?q={tmp_path}/ap")
        assert found == {"folders": [str(tmp_path / "apple"), str(tmp_path / "apricot")]}
        _, found = await ask("GET", f"/folders?q={tmp_path}/.h")
        assert found == {"folders": [str(tmp_path / ".hidden")]}
        _, found = await ask("GET", "/folders?q=BANANA")
        assert found == {"folders": [str(tmp_path / "banana")]}
        assert await ask("GET", "/folders?q=/no/such/place/") == (200, {"folders": []})
        assert (await ask("GET", "/folders"))[1]["folders"] == [str(tmp_path / "banana")]


async def test_rules_are_listed_and_removed(tmp_path: Path):
    async with Asking(tmp_path) as (port, ask):
        rule = port.deck.services.rules.add(parse("allow Read"))
        _, found = await ask("GET", "/rules")
        assert [one["id"] for one in found["rules"]] == [rule.id]
        assert (await ask("DELETE", f"/rules/{rule.id}"))[0] == 204
        assert (await ask("DELETE", f"/rules/{rule.id}"))[0] == 404
        assert (await ask("GET", "/rules"))[1] == {"rules": []}


async def test_agents_say_what_they_can(tmp_path: Path):
    async with Asking(tmp_path) as (_, ask):
        _, found = await ask("GET", "/agents")
        by_name = {one["name"]: one for one in found["agents"]}
        assert by_name["test"]["driven"]
        assert not by_name["claude"]["driven"]
        assert [by_name[name]["installed"] for name in ("builtin", "demo", "claude")] == [True, True, None]
        assert (by_name["demo"]["login"], by_name["test"]["login"]) == ("ok", "unknown")
        assert by_name["builtin"]["login"] in ("ok", "missing")
        assert by_name["demo"]["prompt"]
        assert by_name["builtin"]["modes"] == ["plan", "ask", "edits", "auto", "bypass"]


async def test_what_is_asked_and_decided_over_http(tmp_path: Path):
    async with Asking(tmp_path) as (port, ask):
        session = await port.deck.create("test", "ask rm", cwd=str(tmp_path))
        await until(session, lambda view: view.state.gates.open)
        path = f"/sessions/{session.id}"
        _, waiting = await ask("GET", "/attention")
        gate = waiting["sessions"][0]["attention"]["gate_id"]
        assert (await ask("POST", f"{path}/approve", {"gate_id": "g999"}))[0] == 404
        key = {"gate_id": gate, "client_id": "once"}
        first = await ask("POST", f"{path}/approve", key)
        assert first[0] == 200
        assert await ask("POST", f"{path}/approve", key) == first
        status, said = await ask("POST", f"{path}/reject", {"gate_id": gate})
        assert (status, said["error"]["code"]) == (409, "already_decided")
        await finished(port, session.id)
        assert (await ask("GET", f"{path}/queue"))[1] == {"queue": []}
        assert (await ask("GET", f"{path}/why"))[1]["index"] > 0
        assert (await ask("GET", f"{path}/stats"))[0] == 200
        assert (await ask("GET", f"{path}/timeline?at=1"))[1]["index"] == 1
        assert (await ask("POST", f"{path}/abort", {"clear_queue": True}))[0] in (200, 409)
        assert (await ask("DELETE", path))[0] == 409
        assert (await ask("POST", f"{path}/cancel"))[1] == {"sessionId": session.id, "status": "cancelled"}
        assert (await ask("DELETE", path))[0] == 204
        assert (await ask("GET", path))[0] == 404


@pytest.mark.parametrize("path", ["adopt", "release", "thinking", "tools"])
async def test_what_comes_later_is_not_there(path: str, tmp_path: Path):
    async with Asking(tmp_path) as (port, ask):
        session = await port.deck.create("test", cwd=str(tmp_path))
        status, said = await ask("POST", f"/sessions/{session.id}/{path}", {})
        assert (status, said["error"]["code"]) == (404, "no_such_route")
