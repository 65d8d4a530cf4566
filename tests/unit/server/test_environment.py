"""Test that agents get the login shell's environment and not the server's, with a real `qd up` and a real shell."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tests.support.servers import PATIENCE_S, At, home_at


def shell(folder: Path, text: str) -> str:
    path = folder / "shell"
    path.write_text(f'#!/bin/sh\n{text}\nfor last; do :; done; eval "$last"\n')
    path.chmod(0o755)
    return str(path)


def said(at: At, session: str, text: str) -> list[str]:
    """Return the conversation once it contains this text."""
    wire, until = at.api(), time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        found = [one["text"].strip() for one in wire.get(f"/sessions/{session}/timeline")["entries"]]
        if text in found:
            return found
        time.sleep(0.02)
    raise AssertionError("it never came")


def started(folder: Path, at: At, text: str, wanted: str = "login") -> None:
    at.environment["QUARTERDECK_ENVIRONMENT"] = wanted
    at.environment |= {"SHELL": shell(folder, text), "WHO": "starter", "HOME": str(folder)}
    at.up()


def test_agents_get_what_the_login_shell_exports(tmp_path: Path) -> None:
    with home_at(tmp_path) as at:
        for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"):
            at.environment.pop(name, None)
        started(tmp_path, at, "export WHO=shell ANTHROPIC_API_KEY=of-the-shell")
        said(at, at.session("echo-env WHO; say done"), "shell")
        wire = at.api()
        assert wire.get("/healthz") == {"status": "ok", "environment": "login_shell"}
        [builtin] = [one for one in wire.get("/agents")["agents"] if one["name"] == "builtin"]
        assert builtin["login"] == "ok"  # Checked with the environment that it would get.
        told: dict[str, Any] = wire.get("/environment")
        assert (told["source"], told["problem"], told["shell"]) == ("login_shell", "", str(tmp_path / "shell"))
        assert told["variables"] > 3
        assert told.keys() == {"source", "shell", "asked_at", "variables", "problem"}
        shell(
            tmp_path, "export WHO=changed"
        )  # Shells don't read this file, so the server must be asked to run the shell again.
        assert wire.post("/environment")["asked_at"] > told["asked_at"]
        said(at, at.session("echo-env WHO; say done"), "changed")
        (tmp_path / ".profile").write_text("# touched")
        shell(tmp_path, "export WHO=again")
        said(at, at.session("echo-env WHO; say done"), "again")
        body = {"agent": "test", "prompt": "echo-env WHO; say done", "cwd": str(tmp_path), "env": {"WHO": "caller"}}
        said(at, wire.post("/sessions", body)["id"], "caller")


def test_a_shell_that_cannot_say_is_told_everywhere(tmp_path: Path) -> None:
    with home_at(tmp_path) as at:
        started(tmp_path, at, "exit 9")
        found = said(at, at.session("echo-env WHO; say done"), "starter")
        assert any("without printing" in text and "the server's own" in text for text in found)
        wire = at.api()
        assert wire.get("/healthz")["environment"] == "server"
        assert "exited with 9" in wire.get("/environment")["problem"]
        assert any(line.get("logger") == "quarterdeck.environment" for line in at.log())
        shown = at.qd("status")
        assert "agents get the server's own environment" in shown.stdout
        assert json.loads(at.qd("status", "--json").stdout)["environment"]["source"] == "server"
        assert "starter" not in at.place.log.read_text()


def test_the_environment_of_the_server_can_be_wanted(tmp_path: Path) -> None:
    with home_at(tmp_path) as at:
        started(tmp_path, at, "touch asked", "server")
        found = said(at, at.session("echo-env WHO; say done"), "starter")
        assert not any("login shell" in text for text in found)
        assert at.api().get("/environment")["source"] == "server"
        assert not (tmp_path / "asked").exists()
