"""Test what the server logs, and what it never logs."""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from quarterdeck.server import log_setup
from tests.support.decks import eventually, until
from tests.support.observed_agents import lines_of, observed

SECRET = "hunter2-in-a-prompt"


async def test_a_request_is_one_line_with_its_template_and_its_visitor(tmp_path: Path) -> None:
    async with observed(tmp_path) as here:
        created = await here.post("/sessions", agent="test", cwd=str(tmp_path))
        async with here.client.get(f"{here.url}/sessions/{created['id']}?q={SECRET}") as response:
            request = response.headers["X-Request-Id"]
        await here.get(f"/nothing/{SECRET}")
        lines = [line for line in here.lines() if line["logger"] == "quarterdeck.access"]
    assert [(line["method"], line["route"], line["status"], line["visitor"]) for line in lines] == [
        ("POST", "/sessions", 201, "owner"),
        ("GET", "/sessions/{id}", 200, "owner"),
        ("GET", "other", 404, "owner"),
    ]
    assert lines[1]["session"] == created["id"]
    assert lines[1]["request"] == request
    assert len({line["request"] for line in lines}) == 3
    assert all(line["ms"] >= 0 and line["at"] > 0 and line["level"] == "info" for line in lines)


async def test_a_stream_is_told_when_it_ends_with_the_status_that_it_had(tmp_path: Path) -> None:
    async with observed(tmp_path) as here:
        created = await here.post("/sessions", agent="test", cwd=str(tmp_path))
        async with here.client.get(f"{here.url}/sessions/{created['id']}/events") as response:
            await response.content.readany()
            response.close()
        await eventually(lambda: any(line.get("route") == "/sessions/{id}/events" for line in here.lines()))
        line = next(line for line in here.lines() if line.get("route") == "/sessions/{id}/events")
    assert line["status"] == 200


async def test_what_begins_and_ends_is_told_with_its_session(tmp_path: Path) -> None:
    async with observed(tmp_path) as here:
        created = await here.post("/sessions", agent="test", prompt="say hi; ask ls", cwd=str(tmp_path))
        session = here.deck.session(created["id"])
        gate = (await until(session, lambda view: view.state.gates.open)).state.gates.open[0]
        await here.post(f"/sessions/{session.id}/approve", gate_id=gate.id)
        await until(session, lambda view: not view.state.turn.is_open)
        await here.post(f"/sessions/{session.id}/prompt", text="exit 3")
        await until(session, lambda view: view.state.exit is not None)
        told = [line for line in here.lines() if line["logger"] == "quarterdeck.events"]
    by_event = {line["event"]: line for line in told}
    assert {line["session"] for line in told} == {session.id}
    assert by_event["session_opened"]["agent"] == "test"
    assert by_event["approval_resolved"]["gate_id"] == gate.id
    assert by_event["approval_resolved"]["status"] == "approved"
    assert by_event["process_exited"]["code"] == 3
    assert by_event["process_starting"]["pid"] > 0


async def test_no_line_holds_a_token_an_environment_or_what_was_said(tmp_path: Path) -> None:
    async with observed(tmp_path, level="DEBUG") as here:
        env = {**os.environ, "SOME_KEY": f"{SECRET}-env"}
        created = await here.post(
            "/sessions", agent="test", prompt=f"say {SECRET}; echo-env SOME_KEY", cwd=str(tmp_path), env=env
        )
        session = here.deck.session(created["id"])
        await until(session, lambda view: view.state.phase.value == "completed")
        await here.post(f"/sessions/{session.id}/prompt", text=f"error {SECRET}")
        await until(session, lambda view: view.state.error is not None)
        await here.renamed(session.id, SECRET)
        async with here.stranger.get(f"{here.url}/login?token={here.token}", allow_redirects=False) as response:
            assert response.status == 303
        async with here.stranger.get(f"{here.url}/sessions", headers={"Authorization": f"Bearer {SECRET}"}) as refused:
            assert refused.status == 401
        home = here.deck.home
    text = (home / log_setup.FILE_NAME).read_text()
    assert "turn_failed" in text
    assert SECRET not in text
    assert here.token not in text


async def test_a_fault_of_ours_is_told_by_its_place_and_not_by_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with observed(tmp_path) as here:

        def broken() -> None:
            raise RuntimeError(SECRET)

        monkeypatch.setattr(here.deck, "attention", broken)
        async with here.client.get(f"{here.url}/attention") as response:
            assert response.status == 500
            request = response.headers["X-Request-Id"]
        lines = here.lines()
    fault = next(line for line in lines if line["message"] == "a request failed")
    assert (fault["request"], fault["route"], fault["error"]) == (request, "/attention", ["RuntimeError"])
    assert fault["where"][-1].endswith(" broken")
    assert lines[-1]["level"] == "warning"
    assert SECRET not in json.dumps(lines)


class TestTheFile:
    def test_it_is_the_users_own_and_rotates_by_size(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(log_setup, "ROTATE_AT", 2_000)
        book = log_setup.configure(tmp_path, to_terminal=False)
        try:
            for number in range(200):
                logging.getLogger("quarterdeck.test").info("one of many", extra={"number": number})
        finally:
            book.close()
        files = sorted(tmp_path.iterdir())
        assert len(files) == 1 + log_setup.BACKUPS
        for file in files:
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            assert file.stat().st_size <= 2_000
            assert all(json.loads(line)["message"] == "one of many" for line in file.read_text().splitlines())
        assert lines_of(tmp_path)[-1]["number"] == 199

    def test_of_libraries_only_the_template_is_taken(self, tmp_path: Path) -> None:
        book = log_setup.configure(tmp_path, to_terminal=False)
        try:
            logging.getLogger("asyncio").error(f"Task exception was never retrieved\nfuture: {SECRET}")  # noqa: G004
            logging.getLogger("aiohttp.server").warning("Error handling %s", SECRET)
            logging.getLogger("aiohttp.server").info("not worth a line")
            logging.getLogger("quarterdeck.x").warning("odd", extra={"what": {SECRET: 1}, "at_url": f"token={SECRET}"})
        finally:
            book.close()
        assert SECRET not in (tmp_path / log_setup.FILE_NAME).read_text()
        assert [line["message"] for line in lines_of(tmp_path)] == [
            "Task exception was never retrieved",
            "Error handling %s",
            "odd",
        ]

    def test_a_cause_is_told_by_its_type(self, tmp_path: Path) -> None:
        book = log_setup.configure(tmp_path, to_terminal=False)
        try:
            try:
                try:
                    raise KeyError(SECRET)
                except KeyError as error:
                    raise ValueError(SECRET) from error
            except ValueError:
                logging.getLogger("quarterdeck.x").exception("it broke")
        finally:
            book.close()
        assert lines_of(tmp_path)[0]["error"] == ["ValueError", "KeyError"]

    def test_a_terminal_gets_lines_for_a_person(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        book = log_setup.configure(tmp_path, to_terminal=True)
        try:
            logging.getLogger("quarterdeck.x").warning("the log refuses", extra={"session": "s1"})
            logging.getLogger("quarterdeck.x").debug("not now")
        finally:
            book.close()
        shown = capsys.readouterr().err
        assert shown.endswith(" warning: the log refuses session=s1\n")
        assert lines_of(tmp_path)[0]["session"] == "s1"

    def test_again_replaces_what_was_there(self, tmp_path: Path) -> None:
        (tmp_path / "b").mkdir()
        log_setup.configure(tmp_path, to_terminal=False)
        book = log_setup.configure(tmp_path / "b", to_terminal=False)
        try:
            logging.getLogger("quarterdeck.x").info("once")
        finally:
            book.close()
        assert not (tmp_path / log_setup.FILE_NAME).exists()
        assert len(lines_of(tmp_path / "b")) == 1


FULL = """
import logging, os, resource, signal, sys
from pathlib import Path
from quarterdeck.server import log_setup
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
book = log_setup.configure(Path(sys.argv[1]), to_terminal=False)
log = logging.getLogger("quarterdeck.x")
log.info("before")
resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.RLIM_INFINITY))
for _ in range(20):
    log.info("while there is no room")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.info("after")
print(book.file.dropped)
"""


def test_a_disk_without_room_costs_lines_and_nothing_else(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert 15 < int(done.stdout) <= 20
    text = (tmp_path / log_setup.FILE_NAME).read_text()
    assert '"before"' in text
    assert '"after"' in text
