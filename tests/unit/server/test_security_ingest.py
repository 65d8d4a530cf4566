"""Test `/ingest`: it needs the secret, and the secret is valid for nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quarterdeck.server.auth import SECRET, secret_for
from quarterdeck.server.tokens import Tokens
from tests.support.decks import eventually
from tests.support.http_api import RunningServer, serving

_HOOK = {"session_id": "native", "hook_event_name": "UserPromptSubmit", "prompt": "hi"}
_DOORS = ("/ingest/claude", "/ingest/codex", "/ingest/otlp/v1/logs")


async def _count(house: RunningServer) -> int:
    return len((await house.get("/sessions?archived=true")).json["sessions"])


class TestForgery:
    async def test_without_the_secret_nothing_is_heard(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            view = house.tokens.create("phone", "operate", 0)
            install = secret_for(house.token)
            forged: list[dict[str, str]] = [
                {},
                {SECRET: ""},
                {SECRET: "x"},
                {SECRET: install[:-1]},
                {SECRET: install.upper()},
                {SECRET: house.token},
                {SECRET: secret_for("")},
                {SECRET: secret_for(view)},
                {SECRET: secret_for(house.token, "other")},
                {"Authorization": f"Bearer {house.token}"},
                {"Authorization": f"Bearer {view}"},
                {"Cookie": f"quarterdeck={house.token}"},
                {SECRET: "é"},
            ]
            for path in _DOORS:
                for headers in forged:
                    answer = await house.ask("POST", path, None, headers, json=_HOOK)
                    assert answer.status in (401, 429), (path, headers)
            assert await _count(house) == 0

    async def test_whoever_has_a_wrong_one_is_told_which_is_wanted(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            for path in _DOORS:
                answer = await house.ask("POST", path, None, {SECRET: "x"}, json=_HOOK)
                assert answer.json["error"] == {
                    "code": "no_token",
                    "message": "the request has no valid secret of this install or session",
                    "hint": "Install the hooks again. The secret changes with the owner's token.",
                }

    async def test_it_opens_no_other_door(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            for secret in (secret_for(house.token), secret_for(house.token, "x")):
                for headers in (
                    {SECRET: secret},
                    {"Authorization": f"Bearer {secret}"},
                    {"Cookie": f"quarterdeck={secret}"},
                ):
                    for path in ("/sessions", "/events", "/openapi.json", "/attention"):
                        assert (await house.ask("GET", path, None, headers)).status in (401, 429)
                    assert (await house.ask("POST", "/sessions", None, headers, json={"agent": "test"})).status in (
                        401,
                        429,
                    )
            assert (await house.get(f"/login?token={secret_for(house.token)}", token=None)).status in (401, 429)

    async def test_the_secret_of_a_session_is_for_that_one_only(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            bodies = [{"agent": "test", "prompt": "sleep 30", "cwd": str(tmp_path)} for _ in range(2)]
            one, other = [(await house.post("/sessions", body)).json["id"] for body in bodies]
            live = house.deck.services.supervisor.sessions
            await eventually(lambda: all(live[name].launcher.ready_connection for name in (one, other)))
            own = {SECRET: secret_for(house.token, one)}
            assert (await house.ask("POST", f"/ingest/claude/{one}", None, own, json=_HOOK)).status == 200
            for path in (f"/ingest/claude/{other}", f"/ingest/codex/{other}", "/ingest/claude", "/ingest/otlp/v1/logs"):
                assert (await house.ask("POST", path, None, own, json=_HOOK)).status == 401, path
            install = {SECRET: secret_for(house.token)}
            assert (await house.ask("POST", f"/ingest/claude/{one}", None, install, json=_HOOK)).status == 401

    async def test_it_changes_with_the_owners_token(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            assert (await house.hook("claude", _HOOK)).status == 200
            new = Tokens(house.deck.home).rotate()
            assert (await house.hook("claude", _HOOK)).status == 401
            house.token = new
            assert (await house.hook("claude", _HOOK)).status == 200

    async def test_a_page_cannot_post_a_hook(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            said = {SECRET: secret_for(house.token), "Origin": "http://evil.example"}
            assert (await house.ask("POST", "/ingest/claude", None, said, json=_HOOK)).status == 403


class TestReplay:
    """An idempotency key gets the same answer for the same command, and is refused for another."""

    async def _created(self, house: RunningServer, folder: Path, **more: Any) -> str:
        return (await house.post("/sessions", {"agent": "test", "cwd": str(folder), **more})).json["id"]

    async def test_the_same_key_and_body_are_done_once(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            body, key = {"agent": "test", "cwd": str(tmp_path)}, {"Idempotency-Key": "key"}
            first, second = [await house.post("/sessions", body, headers=key) for _ in range(2)]
            assert (first.status, first.json["id"]) == (second.status, second.json["id"])
            assert await _count(house) == 1
            path = f"/sessions/{first.json['id']}"
            prompts = [
                await house.post(f"{path}/prompt", {"text": "say hi"}, headers=key | {"Idempotency-Key": "p"})
                for _ in "ab"
            ]
            assert prompts[0].json == prompts[1].json
            await house.deck.session(first.json["id"]).settled()
            entries = (await house.get(f"{path}/timeline")).json["entries"]
            assert [one["text"] for one in entries if one["kind"] == "user"] == ["say hi"]

    async def test_the_same_key_with_another_body_is_refused(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            session, key = await self._created(house, tmp_path), {"Idempotency-Key": "key"}
            path = f"/sessions/{session}"
            assert (await house.post(f"{path}/prompt", {"text": "say hi"}, headers=key)).status == 202
            await house.deck.session(session).settled()
            before = (await house.get(path)).json
            for name, body in (
                ("prompt", {"text": "say ho"}),
                ("steer", {"text": "say hi"}),
                ("cancel", {}),
                ("archive", {}),
            ):
                answer = await house.post(f"{path}/{name}", body, headers=key)
                assert (answer.status, answer.code) == (409, "idempotency_mismatch"), name
            assert (await house.get(path)).json == before
            answer = await house.post("/sessions", {"agent": "test", "cwd": str(tmp_path), "client_id": "c"})
            other = await house.post("/sessions", {"agent": "test", "cwd": "/", "client_id": "c"})
            assert (answer.status, other.status, other.code) == (201, 409, "idempotency_mismatch")

    async def test_a_key_of_one_session_means_nothing_in_another(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            one, other = await self._created(house, tmp_path), await self._created(house, tmp_path)
            key = {"Idempotency-Key": "key"}
            first = await house.post(f"/sessions/{one}/prompt", {"text": "say hi"}, headers=key)
            second = await house.post(f"/sessions/{other}/prompt", {"text": "say ho"}, headers=key)
            assert (first.status, second.status) == (202, 202)
            assert first.json["message_id"] != second.json["message_id"]

    async def test_they_hold_after_a_restart(self, tmp_path: Path) -> None:
        key = {"Idempotency-Key": "key"}
        async with serving(tmp_path) as house:
            session = await self._created(house, tmp_path)
            first = await house.post(f"/sessions/{session}/prompt", {"text": "say hi"}, headers=key)
            await house.deck.session(session).settled()
        async with serving(tmp_path) as house:
            again = await house.post(f"/sessions/{session}/prompt", {"text": "say hi"}, headers=key)
            assert (again.status, again.json) == (202, first.json)
            answer = await house.post(f"/sessions/{session}/prompt", {"text": "say ho"}, headers=key)
            assert answer.code == "idempotency_mismatch"

    async def test_keys_that_are_none_are_refused(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            session = await self._created(house, tmp_path)
            for key in ("k" * 201, "a\0b"):
                answer = await house.post(f"/sessions/{session}/prompt", {"text": "hi", "client_id": key})
                assert answer.status == 400, key
                assert answer.code in ("invalid_input", "bad_request")
