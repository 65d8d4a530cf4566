"""Test `qd replay` in a terminal: its output, and its messages when a file has nothing to show."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from quarterdeck.cli.commands.replay import replay

HOOK = {"t": 0.1, "src": "hook", "data": {"hook_event_name": "SessionStart", "session_id": "s", "source": "startup"}}
PROMPT = {"t": 0.2, "src": "hook", "data": {"hook_event_name": "UserPromptSubmit", "session_id": "s", "prompt": "go"}}


def played(folder: Path, content: bytes, *options: str, agent: str = "claude") -> Result:
    file = folder / "tape.jsonl"
    file.write_bytes(content)
    return CliRunner().invoke(replay, ["--agent", agent, *options, str(file)])


def lines(*found: object) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in found)


def test_a_recording_is_shown_and_nothing_is_said_beside_it(tmp_path: Path) -> None:
    found = played(tmp_path, lines(HOOK, PROMPT))
    assert (found.exit_code, found.stderr) == (0, "")
    assert "ends streaming, active/thinking: 1 messages" in found.stdout


@pytest.mark.parametrize(
    ("content", "options", "agent", "said"),
    [
        (b"", (), "claude", "the file is empty"),
        (b"\n\n", (), "claude", "the file is empty"),
        (gzip.compress(lines(HOOK)), (), "claude", "uncompressed"),
        (lines(HOOK), ("--only", "stdout"), "claude", "the file has no signals from stdout. Its sources: hook"),
        (lines(HOOK), (), "gemini", "gemini recognises nothing in the file"),
        (lines(HOOK) + b"{cut\n", (), "claude", "1 invalid lines were skipped"),
    ],
)
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_where_there_is_nothing_to_show_it_says_why(
    tmp_path: Path, content: bytes, options: tuple[str, ...], agent: str, said: str, form: tuple[str, ...]
) -> None:
    found = played(tmp_path, content, *options, *form, agent=agent)
    assert found.exit_code == 0
    assert said in found.stderr
    if form:
        assert [json.loads(line) for line in found.stdout.splitlines()][-1]["end"] is True


@pytest.mark.parametrize("time", ["inf", "-inf", "nan", 1e300, None, {}, "soon"])
def test_a_line_without_a_time_is_broken_and_fails_nothing(tmp_path: Path, time: object) -> None:
    found = played(tmp_path, lines(HOOK, PROMPT | {"t": time}, PROMPT), "--json")
    assert found.exit_code == 0
    assert json.loads(found.stdout.splitlines()[-1])["unknown"] == 1
