"""Test hooks as HTTP requests: checks, answers, order, and the counts in the access log."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from quarterdeck.deck.session import Session
from quarterdeck.harness.base import Signal
from quarterdeck.server.auth import SECRET, secret_for
from tests.support.decks import eventually
from tests.support.http_api import RunningServer, serving


def _hook(event: str = "PostToolUse", **more: Any) -> dict[str, Any]:
    return {"session_id": "native", "hook_event_name": event, "cwd": "/", "tool_name": "Read", **more}


async def _at_hand(house: RunningServer) -> Session:
    """Open a session with a first hook."""
    await house.hook("claude", _hook("UserPromptSubmit", prompt="hi"))
    [session] = house.deck.loaded_sessions()
    return session


def _listening(session: Session) -> list[str]:
    """Return a list that gets the call id of each signal from now on."""
    call_ids: list[str] = []
    assert session.observed_agent is not None
    translator: Any = session.observed_agent.translator
    feed = translator.feed

    def listen(signal: Signal, now: float) -> Any:
        call_ids.append(signal.data.get("tool_use_id", signal.src))
        return feed(signal, now)

    translator.feed = listen
    return call_ids


class TestAnswer:
    async def test_the_connection_stays_open(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            heard = _listening(await _at_hand(house))
            reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
            for number in range(3):
                body = b'{"session_id":"native","hook_event_name":"PostToolUse","tool_name":"Read","tool_use_id":"c%d"}'
                data = body % number
                head = f"POST /ingest/claude HTTP/1.1\r\nHost: {house.host}\r\nContent-Length: {len(data)}\r\n"
                writer.write(f"{head}{SECRET}: {secret_for(house.token)}\r\n\r\n".encode() + data)
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
                assert await reader.readexactly(2) == b"{}"
            writer.close()
            assert heard == ["c0", "c1", "c2"]

    async def test_it_is_counted(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            await _at_hand(house)
            for _ in range(3):
                await house.hook("claude", _hook())
            assert house.server.access_log.requests["POST", "/ingest/claude", 200] == 4

    async def test_whoever_leaves_before_it_is_counted_too(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            session = await _at_hand(house)
            asked = asyncio.ensure_future(house.hook("claude", _hook("PermissionRequest", tool_use_id="c1")))
            await eventually(lambda: bool(session.state.gates.open))
            asked.cancel()
            await eventually(lambda: not session.state.gates.open)
            assert house.server.access_log.requests["POST", "/ingest/claude", 499] == 1


class TestDoors:
    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            ({"Origin": "https://example.com"}, 403),
            ({"Host": "example.com"}, 403),
            ({"Sec-Fetch-Site": "cross-site"}, 403),
            ({SECRET: "0" * 64}, 401),
        ],
    )
    async def test_a_hook_is_checked_like_every_request(
        self, headers: dict[str, str], status: int, tmp_path: Path
    ) -> None:
        async with serving(tmp_path) as house:
            heard = _listening(await _at_hand(house))
            said = {SECRET: secret_for(house.token), **headers}
            answer = await house.ask("POST", "/ingest/claude", None, said, json=_hook(tool_use_id="c1"))
            assert (answer.status, heard) == (status, [])

    @pytest.mark.parametrize("body", ["{", "[]", '{"session_id": 1}'])
    async def test_what_is_no_hook_is_told_so(self, body: str, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            await _at_hand(house)
            said = {SECRET: secret_for(house.token)}
            answer = await house.ask("POST", "/ingest/claude", None, said, data=body.encode())
            assert (answer.status, answer.code) == (400, "bad_request")


class TestHearing:
    async def test_signals_are_fed_in_order(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            heard = _listening(await _at_hand(house))
            said = {SECRET: secret_for(house.token)}
            for number in range(50):
                await house.ask("POST", "/ingest/claude", None, said, json=_hook(tool_use_id=f"c{number}"))
            await eventually(lambda: len(heard) == 50)
            assert heard == [f"c{number}" for number in range(50)]

    async def test_one_that_cannot_be_read_does_not_keep_the_others(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with serving(tmp_path) as house:
            session = await _at_hand(house)
            assert session.observed_agent is not None
            heard: list[str] = []

            def broken(signal: Signal, _: float) -> list[Any]:
                heard.append({"c2": "c2"}[signal.data["tool_use_id"]])
                return []

            translator: Any = session.observed_agent.translator
            translator.feed = broken
            for name in ("c1", "c2"):
                assert (await house.hook("claude", _hook(tool_use_id=name))).status == 200
            assert heard == ["c2"]
            assert "can't translate a hook" in caplog.text
