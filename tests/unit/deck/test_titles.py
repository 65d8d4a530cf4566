"""Test the titles of approvals: a person must read the command, path or address."""

from __future__ import annotations

from typing import Any

import pytest

from quarterdeck.harness.tracker import EventTracker
from quarterdeck.policy.titles import TITLE_LIMIT, approval_title
from tests.support.claude_session import Session


@pytest.mark.parametrize(
    ("tool", "args", "title"),
    [
        ("Bash", {"command": "rm -rf build", "description": "Clean"}, "rm -rf build"),
        ("exec_command", {"command": ["git", "commit", "-m", "a b"]}, "git commit -m 'a b'"),
        ("execute_command", {"command": "echo a\necho b"}, "echo a echo b"),
        ("Edit", {"file_path": "src/app.py", "old_string": "a"}, "Edit src/app.py"),
        ("Write", {"file_path": "src/app.py", "content": "rm -rf /"}, "Write src/app.py"),
        ("WebFetch", {"url": "https://example.org/a", "prompt": "read it"}, "WebFetch https://example.org/a"),
        ("WebSearch", {"query": "weather"}, "WebSearch weather"),
        ("apply_patch", {"command": "*** Begin Patch\n*** Add File: a.txt\n+x\n*** End Patch"}, "apply_patch a.txt"),
        ("multi", {"paths": ["a", "b", "c", "d", "e"]}, "multi a, b, c and 2 more"),
        ("mcp__git__status", {}, "mcp__git__status"),
        ("Agent", None, "Agent"),
        ("", {"command": "ls"}, "ls"),
    ],
)
def test_a_title_names_what_is_asked(tool: str, args: Any, title: str) -> None:
    assert approval_title(tool, args) == title


def test_the_agents_own_title_is_used_where_the_arguments_say_nothing() -> None:
    assert approval_title("write_todos", {"todos": []}, "Set 2 todos") == "Set 2 todos"
    assert approval_title("Edit", {"file_path": "a"}, "Editing") == "Edit a"


def test_a_long_title_is_cut_off() -> None:
    title = approval_title("Bash", {"command": "x" * 1000})
    assert len(title) == TITLE_LIMIT
    assert title.endswith("…")


def test_claudes_approval_of_a_command_shows_the_command() -> None:
    agent = Session()
    agent.opens().prompts("go", "p1").hook(
        "PermissionRequest", tool_name="Bash", tool_input={"command": "rm -rf build"}
    )
    (gate,) = agent.state.gates.open
    assert gate.title == "rm -rf build"


def test_network_access_is_a_purpose_of_its_own() -> None:
    tracker = EventTracker()
    tracker.open_approval("g", "exec_command", {"command": "npm test"}, "c", "command", network_host="example.org")
    (required,) = [body for body in tracker.take_events() if type(body).__name__ == "ApprovalRequired"]
    assert (required.gate.purpose, required.gate.host) == ("network", "example.org")
    assert required.gate.title == "Network access to example.org"
