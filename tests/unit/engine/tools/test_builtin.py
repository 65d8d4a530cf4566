"""Test the standard tools: their names, descriptions and flags, and the cost of importing the package."""

from __future__ import annotations

import subprocess
import sys

import msgspec

from quarterdeck.engine.tools import builtin_tools

NAMES = [
    "read_file", "write_file", "edit_file", "ls", "glob", "grep", "shell", "task", "write_todos", "ask_user",
    "compact_conversation",
]  # fmt: skip


def test_the_eleven() -> None:
    assert [tool.name for tool in builtin_tools()] == NAMES


def test_what_each_may_do() -> None:
    tools = {tool.name: tool for tool in builtin_tools()}
    assert {name for name, tool in tools.items() if tool.writes} == {"write_file", "edit_file", "shell"}
    assert {name for name, tool in tools.items() if tool.needs_approval} == {"shell"}
    assert {name for name, tool in tools.items() if tool.immune} == set()
    assert all(tool.killable for tool in tools.values())


def test_every_tool_and_every_argument_has_its_text() -> None:
    for tool in builtin_tools():
        assert tool.spec.description
        schema = tool.spec.parameters
        parts = [schema, *schema.get("$defs", {}).values()]
        for part in parts:
            for name, field in part["properties"].items():
                assert field.get("description"), f"{tool.name}.{name}"
        assert msgspec.json.decode(msgspec.json.encode(schema)) == schema


def test_the_package_of_the_tools_imports_none_of_them() -> None:
    code = (
        "import sys, quarterdeck.engine.tools; "
        "print(*[n for n in sys.modules if n.startswith('quarterdeck.engine.')], 'msgspec' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["quarterdeck.engine.tools", "False"]
