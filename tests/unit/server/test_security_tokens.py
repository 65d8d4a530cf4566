"""Test that every route needs a valid token, and that roles are enforced."""

from __future__ import annotations

import asyncio
import hashlib
import json
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aiohttp
import pytest

from quarterdeck.server.auth import FailureLimit
from quarterdeck.server.tokens import NoSuchToken, TokenExists, Tokens, TokensUnreadable
from tests.conformance.marks import case
from tests.support.http_api import RunningServer, serving

_OPEN = {"/", "/healthz", "/login"}


def _addresses(house: RunningServer, session: str = "x") -> list[tuple[str, str]]:
    """Return every route of the application except those for agents."""
    found: set[tuple[str, str]] = set()
    for route in house.server.app.router.routes():
        path = route.resource.canonical if route.resource is not None else ""
        if path not in _OPEN and not path.startswith("/ingest/"):
            found.add((route.method, path.replace("{id}", session).replace("{item}", "x")))
    return sorted(found)


class TestToken:
    @case("U-112")
    async def test_every_route_wants_one(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            addresses = _addresses(house)
            assert len(addresses) > 30
            for method, path in [*addresses, ("GET", "/nothing"), ("TRACE", "/sessions")]:
                answer = await house.ask(method, path, None)
                assert answer.status == 401, (method, path)
                assert answer.headers["WWW-Authenticate"] == "Bearer"

    @case("U-112")
    async def test_a_wrong_one_is_none(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            token = house.token
            wrong = ["x", token[:-1], token + "x", token.swapcase(), token[::-1], "Bearer", "é", "x" * 5000]
            for one in wrong:
                answer = await house.get("/sessions", token=one)
                assert (answer.status, answer.code) == (401, "no_token"), one
            for header in (token, f"Basic {token}", f"Token {token}", "Bearer", "Bearer "):
                answer = await house.get("/sessions", token=None, headers={"Authorization": header})
                assert answer.status == 401, header
            assert (await house.get(f"/sessions?token={token}", token=None)).status == 401

    @case("U-112")
    async def test_a_websocket_wants_one_too(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": "quarterdeck=wrong"}):
                with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                    await house.client.ws_connect(f"{house.address}/ws", headers=headers)
                assert refused.value.status == 401

    async def test_a_revoked_one_is_none(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            token = house.tokens.create("phone", "view", 0)
            assert (await house.get("/sessions", token=token)).status == 200
            house.tokens.revoke("phone")
            assert (await house.get("/sessions", token=token)).status == 401

    async def test_the_old_one_is_none_after_a_rotation(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            new = Tokens(house.deck.home).rotate()
            assert (await house.get("/sessions")).status == 401
            assert (await house.get("/sessions", token=new)).status == 200

    async def test_a_stream_ends_with_its_token(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            token = house.tokens.create("phone", "operate", 0)
            said = {"Authorization": f"Bearer {token}"}
            async with (
                house.client.ws_connect(f"{house.address}/ws", headers=said) as socket,
                house.client.get(f"{house.address}/events", headers=said) as stream,
                house.client.ws_connect(
                    f"{house.address}/ws", headers={"Authorization": f"Bearer {house.token}"}
                ) as mine,
            ):
                house.tokens.revoke("phone")
                house.tokens.create("phone", "operate", 1)
                assert (await socket.receive()).type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
                with pytest.raises(aiohttp.ClientError):
                    await stream.content.read()
                await mine.send_json({"op": "unsubscribe", "session": "x"})
                await mine.send_json({"op": "subscribe", "session": "x"})
                assert (await mine.receive_json())["error"]["code"] == "no_such_session"

    @pytest.mark.parametrize("how", ["rotated", "revoked"])
    async def test_another_process_ends_it_too(self, how: str, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            token = house.token if how == "rotated" else house.tokens.create("phone", "view", 0)
            said = {"Authorization": f"Bearer {token}"}
            change = "rotate()" if how == "rotated" else "revoke('phone')"
            tokens = "import pathlib, sys, quarterdeck.server.tokens as t; t.Tokens(pathlib.Path(sys.argv[1]))"
            async with house.client.ws_connect(f"{house.address}/ws", headers=said) as socket:
                other = await asyncio.create_subprocess_exec(
                    sys.executable, "-c", f"{tokens}.{change}", str(house.deck.home)
                )
                assert await other.wait() == 0
                assert (await socket.receive()).type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)

    async def test_a_change_by_hand_ends_it_with_the_next_request(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            token = house.tokens.create("phone", "view", 0)
            said = {"Authorization": f"Bearer {token}"}
            async with house.client.ws_connect(f"{house.address}/ws", headers=said) as socket:
                (house.deck.home / "tokens.json").unlink()
                assert (await house.get("/sessions")).status == 200
                assert (await socket.receive()).type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)

    async def test_the_change_pipe_is_the_users_alone_and_leaves_with_the_server(self, tmp_path: Path) -> None:
        pipe = Tokens(tmp_path / "home").change_pipe
        async with serving(tmp_path):
            assert stat.filemode(pipe.stat().st_mode) == "prw-------"
        assert not pipe.exists()
        pipe.write_text("of a server that was killed")
        async with serving(tmp_path):
            assert stat.S_ISFIFO(pipe.stat().st_mode)

    async def test_where_no_change_pipe_can_be_it_is_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def refused(*_: object) -> None:
            raise PermissionError(1, "no pipes here")

        monkeypatch.setattr("os.mkfifo", refused)
        async with serving(tmp_path) as house:
            assert (await house.get("/sessions")).status == 200
        assert "no pipes here" in caplog.text


class TestViewRole:
    async def test_it_may_only_look(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            session = (await house.post("/sessions", {"agent": "test"})).json["id"]
            before = (await house.get(f"/sessions/{session}")).json
            token = house.tokens.create("phone", "view", 0)
            changing = [one for one in _addresses(house, session) if one[0] not in ("GET", "HEAD")]
            assert len(changing) > 15
            for method, path in changing:
                answer = await house.ask(method, path, token, json={})
                assert (answer.status, answer.code) == (403, "view_only"), (method, path)
            assert (await house.get(f"/sessions/{session}")).json == before
            assert (await house.get(f"/sessions/{session}", token=token)).json == before

    async def test_it_may_command_nothing_over_the_websocket(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            session = (await house.post("/sessions", {"agent": "test"})).json["id"]
            before = (await house.get(f"/sessions/{session}")).json
            token = house.tokens.create("phone", "view", 0)
            said = {"Authorization": f"Bearer {token}"}
            names = [path.rpartition("/")[2] for _, path in _addresses(house, "x") if path.startswith("/sessions/x/")]
            async with house.client.ws_connect(f"{house.address}/ws", headers=said) as socket:
                for name in names:
                    await socket.send_json({"op": "command", "id": name, "session": session, "name": name, "args": {}})
                    answer = await socket.receive_json()
                    assert (answer["status"], answer["error"]["code"]) == ("refused", "view_only")
            assert (await house.get(f"/sessions/{session}")).json == before


class TestGuessing:
    async def test_wrong_tokens_are_told_to_wait_and_right_ones_are_not(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            tries = [await house.get("/sessions", token=f"guess{number}") for number in range(FailureLimit.LIMIT)]
            assert {one.status for one in tries} == {401}
            doors = [("GET", "/sessions"), ("GET", "/login?token=x"), ("POST", "/ingest/claude"), ("GET", "/nothing")]
            for method, path in doors:
                answer = await house.ask(method, path, "guess")
                assert (answer.status, answer.code) == (429, "too_many_failures"), path
                assert 0 < int(answer.headers["Retry-After"]) <= FailureLimit.WITHIN_S + 1
            assert (await house.get("/sessions")).status == 200
            assert (await house.hook("claude", {"session_id": "n", "hook_event_name": "Stop"})).status == 200
            assert (await house.get("/sessions", token=None)).status == 401

    def test_they_are_counted_by_address_and_forgotten_in_time(self) -> None:
        now = [0.0]
        failures = FailureLimit(lambda: now[0])
        assert {failures.record("a") for _ in range(FailureLimit.LIMIT)} == {0}
        assert failures.record("a") == FailureLimit.WITHIN_S + 1
        assert failures.record("b") == 0
        now[0] = FailureLimit.WITHIN_S - 0.5
        assert failures.record("a") == 1
        now[0] = FailureLimit.WITHIN_S + 0.5
        assert failures.record("a") == 0

    def test_a_flood_of_addresses_takes_no_room(self) -> None:
        failures = FailureLimit(lambda: 0.0)
        for number in range(5000):
            failures.record(str(number))
        assert len(failures._by_address) <= 1000


class TestFiles:
    def test_they_are_the_owners_alone_and_hold_no_token_but_his(self, tmp_path: Path) -> None:
        tokens = Tokens(tmp_path)
        owner, phone = tokens.owner(), tokens.create("phone", "view", 0)
        for name in ("token", "tokens.json"):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
        assert (tmp_path / "token").read_text(encoding="ascii").strip() == owner
        assert phone not in (tmp_path / "tokens.json").read_text(encoding="utf-8")
        assert len(owner) >= 43

    def test_an_empty_file_lets_nobody_in(self, tmp_path: Path) -> None:
        (tmp_path / "token").write_text("\n", encoding="ascii")
        of_nothing = hashlib.sha256(b"").hexdigest()
        entry = {"name": "x", "role": "operate", "hash": of_nothing, "created_at": 0}
        (tmp_path / "tokens.json").write_text(json.dumps([entry]), encoding="utf-8")
        tokens = Tokens(tmp_path)
        assert tokens.visitor("") is None
        assert tokens.owner()
        assert tokens.visitor(tokens.owner()) is not None

    def test_a_damaged_list_lets_in_the_owner_only(self, tmp_path: Path) -> None:
        tokens = Tokens(tmp_path)
        phone = tokens.create("phone", "operate", 0)
        (tmp_path / "tokens.json").write_bytes(b"[{")
        assert tokens.visitor(phone) is None
        assert tokens.visitor(tokens.owner()) is not None
        with pytest.raises(TokensUnreadable):
            tokens.create("tablet", "view", 0)

    async def test_an_owners_file_that_is_no_text_is_said(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            (house.deck.home / "token").write_bytes(b"\xff\xfe")
            answer = await house.get("/sessions")
            assert (answer.status, answer.code) == (503, "tokens_unreadable")

    def test_two_who_change_the_list_at_once_undo_nothing(self, tmp_path: Path) -> None:
        names = [f"device{number}" for number in range(40)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: Tokens(tmp_path).create(name, "view", 0), names))
            list(pool.map(Tokens(tmp_path).revoke, names[:20]))
        assert sorted(one.name for one in Tokens(tmp_path).stored()) == sorted(names[20:])

    def test_names_are_taken_once(self, tmp_path: Path) -> None:
        tokens = Tokens(tmp_path)
        tokens.create("phone", "view", 0)
        for name in ("phone", "owner"):
            with pytest.raises(TokenExists):
                tokens.create(name, "view", 0)
        with pytest.raises(NoSuchToken):
            tokens.revoke("tablet")

    def test_every_comparison_takes_the_same_time(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Compare every stored hash with hmac.compare_digest, no matter which token is right."""
        tokens = Tokens(tmp_path)
        for name in ("a", "b", "c"):
            tokens.create(name, "view", 0)
        seen: list[tuple[int, int]] = []

        def compare(left: str, right: str) -> bool:
            seen.append((len(left), len(right)))
            return left == right

        monkeypatch.setattr("quarterdeck.server.tokens.hmac.compare_digest", compare)
        for token in (tokens.owner(), "wrong", ""):
            seen.clear()
            tokens.visitor(token)
            assert seen == [(64, 64)] * 4


class TestManyAtOnce:
    async def test_right_tokens_pass_while_a_flood_of_wrong_ones_does_not(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            wrong = [house.get("/sessions", token="wrong") for _ in range(60)]
            right = [house.get("/sessions") for _ in range(20)]
            answers = await asyncio.gather(*wrong, *right)
            assert {one.status for one in answers[:60]} == {401, 429}
            assert {one.status for one in answers[60:]} == {200}
