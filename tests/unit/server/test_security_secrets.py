"""Use a server in many ways, then search everything that it wrote or sent for secrets."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from quarterdeck.server.auth import SECRET, secret_for
from quarterdeck.server.tokens import Tokens
from tests.support.http_api import Answer, RunningServer, serving

_ENV = "env-value-that-nobody-may-see"
_GUESS = "guess-of-a-token-that-may-be-right-elsewhere"


class _Memory(logging.Handler):
    """Collects all log lines, formatted with their tracebacks."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s %(args)s"))
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def logged() -> Any:
    root, memory = logging.getLogger(), _Memory()
    level = root.level
    root.addHandler(memory)
    root.setLevel(logging.DEBUG)
    yield memory.lines
    root.removeHandler(memory)
    root.setLevel(level)


async def _day(house: RunningServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Answer], list[str]]:
    """Create sessions with secrets in their environment, log in, send valid and forged hooks, and make a route fail."""
    view = house.tokens.create("phone", "view", 0)
    secrets = [_ENV, _GUESS, house.token, view, secret_for(house.token)]
    body = {
        "agent": "test",
        "prompt": "say hello; tool ls",
        "cwd": str(folder),
        "env": {"API_KEY": _ENV},
        "record": True,
    }
    said: list[Answer] = [await house.post("/sessions", body, headers={"Idempotency-Key": "k1"})]
    session = said[0].json["id"]
    await house.deck.session(session).settled()
    secrets.append(secret_for(house.token, session))
    said += [
        await house.post("/sessions", {**body, "env": {"A=B": _ENV}}),
        await house.post("/sessions", {**body, "env": {"A": _ENV + "\0"}}),
        await house.post("/sessions", {**body, "env": {"A": [_ENV]}}),
        await house.post("/sessions", {**body, "agent": "nobody"}),
        await house.post("/sessions", {**body, "cwd": "/no/such/folder"}),
        await house.post("/sessions", {**body, "prompt": "other"}, headers={"Idempotency-Key": "k1"}),
        await house.get(f"/login?token={_GUESS}", token=None),
        await house.get(f"/login?token={house.token}", token=None, allow_redirects=False),
        await house.get("/sessions", token=_GUESS),
        await house.post("/sessions", body, token=view),
        await house.get("/sessions", token=None, headers={"Cookie": f"quarterdeck={_GUESS}"}),
        await house.get("/sessions", headers={"Host": "evil.example"}),
        await house.ask("POST", "/ingest/claude", None, {SECRET: _GUESS}, json={}),
        await house.hook("claude", {"session_id": "n1", "hook_event_name": "UserPromptSubmit", "prompt": "hi"}),
        await house.hook("claude", {"session_id": "n1"}, session),
        await house.get(f"/nothing?token={house.token}"),
        await house.get(f"/sessions/{session}"),
        await house.get(f"/sessions/{session}/timeline"),
        await house.get(f"/sessions/{session}/why"),
        await house.get(f"/sessions/{session}/events", headers={"Accept": "application/json"}),
        await house.get("/events", headers={"Accept": "application/json"}),
    ]
    await house.raw(f"GET /login?token={_GUESS} HTTP/1.1\r\nAuthorization {house.token}\r\n\r\n".encode())
    with monkeypatch.context() as patch:
        patch.setattr(house.deck, "attention", lambda: 1 // 0)
        said.append(await house.get(f"/attention?token={house.token}"))
    secrets.append(Tokens(house.deck.home).rotate())
    return said, secrets


async def test_no_secret_is_in_any_log_file_answer_or_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: list[str]
) -> None:
    async with serving(tmp_path) as house:
        said, secrets = await asyncio.wait_for(_day(house, tmp_path, monkeypatch), 25)
    assert {one.status for one in said} >= {200, 201, 303, 400, 401, 403, 404, 409, 500}
    answers = "\n".join(f"{sorted(_told(one))} {one.body.decode()}" for one in said)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert any(path.suffix == ".db" for path in files)
    assert any(path.parent.name == "traces" for path in files)
    assert logged
    for secret in secrets:
        assert secret not in answers
        assert secret not in "\n".join(logged)
        where = [path.name for path, data in files.items() if secret.encode() in data and path.name != "token"]
        assert where == []


def _told(answer: Answer) -> list[tuple[str, str]]:
    """Return the headers except Set-Cookie, because only the cookie may hold the token."""
    return [(name, value) for name, value in answer.headers.items() if name != "Set-Cookie"]
