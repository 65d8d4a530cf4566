"""Test `GET /sessions/ID/changes` over a real port, with the client, and for agents in a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quarterdeck import AsyncClient, Changes, NoRepository
from tests.support.decks import eventually, until
from tests.support.git_repositories import Repository
from tests.support.http_api import serving


async def test_what_a_session_changed(tmp_path: Path):
    repository = Repository(tmp_path / "repo", a="a\n")
    async with serving(tmp_path) as house:
        body = {"agent": "test", "prompt": "write a b", "cwd": str(repository.root)}
        name = (await house.post("/sessions", body)).json["id"]
        await until(house.deck.session(name), lambda view: view.state.profile.changes.files)
        assert (await house.get(f"/sessions/{name}")).json["changes"] == {"files": 1, "added": 1, "removed": 0}
        assert (await house.get("/sessions")).json["sessions"][0]["changes"]["files"] == 1
        for scope in ("turn", "session"):
            found = (await house.get(f"/sessions/{name}/changes?scope={scope}")).json
            assert found["scope"] == scope
            assert found["base"]
            assert found["files"] == [
                {"path": "a", "status": "modified", "added": 1, "removed": 0, "binary": False, "old_path": ""}
            ]
            assert found["patch"].endswith("@@ -1 +1,2 @@\n a\n+b\n")
            assert not found["truncated"]
        assert (await house.get(f"/sessions/{name}/changes")).json["scope"] == "session"
        assert (await house.get(f"/sessions/{name}/changes?scope=day")).status == 400
        assert (await house.get("/sessions/nobody/changes")).status == 404
        async with AsyncClient(house.address, house.token) as client:
            diff = await client.session(name).changes("turn")
            assert diff == await house.deck.session(name).changes("turn")
            plain = await client.create("test", cwd=str(tmp_path / "home"))
            with pytest.raises(NoRepository):
                await plain.changes()
        assert (await house.get(f"/sessions/{plain.id}/changes")).status == 409


async def test_what_an_agent_configures_in_its_repository_is_not_run(tmp_path: Path):
    repository = Repository(tmp_path / "repo", a="a\n", __gitattributes="* filter=evil diff=evil\n")
    ran, program = tmp_path / "ran", tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {ran}\ncat\n")
    program.chmod(0o755)
    for name in ("core.fsmonitor", "filter.evil.clean", "filter.evil.process", "diff.external", "diff.evil.command"):
        repository.git("config", name, str(program))
    async with serving(tmp_path) as house:
        body = {"agent": "test", "prompt": "write a b", "cwd": str(repository.root)}
        name = (await house.post("/sessions", body)).json["id"]
        await until(house.deck.session(name), lambda view: view.state.profile.changes.files)
        assert "+b" in (await house.get(f"/sessions/{name}/changes")).json["patch"]
    assert not ran.exists()


async def test_an_agent_in_somebodys_terminal(tmp_path: Path):
    repository = Repository(tmp_path / "repo", a="a\n")

    def hook(event: str, **more: Any) -> dict[str, Any]:
        return {"session_id": "native", "hook_event_name": event, "cwd": str(repository.root), **more}

    async with serving(tmp_path) as house:
        await house.hook("claude", hook("SessionStart", source="startup"))
        await house.hook("claude", hook("UserPromptSubmit", prompt="hi"))
        await eventually(lambda: any(one.has_start for one in house.deck.changes._sessions.values()))
        [name] = house.deck.session_ids()
        repository.write("a", "a\nb\n")
        await house.hook("claude", hook("Stop", stop_hook_active=False))
        session = house.deck.session(name)
        await until(session, lambda view: view.state.profile.changes == Changes(1, 1, 0))
        assert [one.path for one in (await session.changes("turn")).files] == ["a"]
