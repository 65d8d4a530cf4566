"""Run every example of docs/agent.md and compare its output with the comments."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import quarterdeck
from quarterdeck.engine.factory import create_agent
from quarterdeck.engine.options import AgentOptions
from tests.support.engine import PATIENCE_S
from tests.unit.test_plugins_page import Obedient, expected

PAGE = (Path(__file__).parents[2] / "docs" / "agent.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_examples(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asyncio.run(asyncio.wait_for(run_all(tmp_path, capsys), PATIENCE_S))


async def run_all(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run the examples in order, in one namespace."""
    names: dict[str, Any] = {"model": Obedient(), "project": str(folder), "__name__": "page"}
    for number, block in enumerate(EXAMPLES, 1):
        code = compile(block, f"docs/agent.md, example {number}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, names)
        if inspect.isawaitable(result):
            await result
        assert capsys.readouterr().out.splitlines() == expected(block), f"example {number}"


def test_every_example_promises_something() -> None:
    assert len(EXAMPLES) >= 7
    for block in EXAMPLES:
        assert expected(block)


def test_every_command_is_on_the_page_and_says_what_it_does() -> None:
    for name, method in inspect.getmembers(quarterdeck.Agent, inspect.isfunction):
        if not name.startswith("_"):
            assert inspect.getdoc(method), name
            assert "return" in inspect.get_annotations(method), name
            assert re.search(rf"\b{name}\b", PAGE), name


def test_every_option_is_on_the_page() -> None:
    names = {*inspect.signature(create_agent).parameters, *AgentOptions.__annotations__} - {"options", "resolve"}
    assert {name for name in names if f"`{name}`" not in PAGE} == set()
