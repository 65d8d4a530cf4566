"""Run every example of docs/tools.md and compare its output with the comments."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest

from quarterdeck.config import McpServer, config_file
from quarterdeck.engine.model import CallBegun, CallPiece, Chunk, Finished, Request, Result, TextPiece
from quarterdeck.engine.tools import builtin_tools
from quarterdeck.engine.tools.base import Tool, ToolContext
from quarterdeck.engine.tools.function import tool

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tools.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
_SAYS = re.compile(r"^\s*print\(.*\)  # (.*)$|^\s*# (.+)$")
_CALL = re.compile(r"call (\w+) (\{.*\})")


class Echo:
    """The model that the page describes: it calls the tool that a prompt names, and repeats the result."""

    provider = "echo"
    name = "one"

    async def stream(self, request: Request) -> AsyncGenerator[Sequence[Chunk]]:
        last = request.messages[-1]
        wanted = _CALL.fullmatch(last.text)
        if wanted is not None:
            yield [CallBegun(0, "c1", wanted[1]), CallPiece(0, wanted[2]), Finished("tools")]
            return
        said = "".join(part.text for part in last.parts if isinstance(part, Result))
        yield [TextPiece(said), Finished("end")]


def expected(block: str) -> list[str]:
    """Return the output that comments promise, after a print or on a line of their own below one."""
    found = [_SAYS.match(line) for line in block.splitlines()]
    return [said.group(1) or said.group(2) for said in found if said is not None]


def test_the_examples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = tmp_path / "project"
    project.mkdir()
    names: dict[str, Any] = {
        "model": Echo(),
        "project": project,
        "python": sys.executable,
        "repository": str(ROOT),
    }
    asyncio.run(asyncio.wait_for(run_all(names, capsys), 120))


async def run_all(names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Run the examples in order, in one namespace."""
    for number, block in enumerate(EXAMPLES, 1):
        code = compile(block, f"docs/tools.md, example {number}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, names)
        if inspect.isawaitable(result):
            await result
        assert capsys.readouterr().out.splitlines() == expected(block), f"example {number}"


def test_every_example_promises_something() -> None:
    assert len(EXAMPLES) >= 7
    for block in EXAMPLES:
        assert expected(block)


def test_every_shipped_tool_option_and_hand_is_on_the_page() -> None:
    for one in builtin_tools():
        assert f"`{one.name}`" in PAGE
    for option in inspect.signature(tool).parameters:
        assert option == "function" or f"`{option}`" in PAGE
    for option in ("killable", "immune", "needs_approval", "writes", "parallel"):
        assert option in Tool.__struct_fields__
    context = {*inspect.get_annotations(ToolContext), *(name for name in vars(ToolContext) if not name.startswith("_"))}
    assert [name for name in context if f"`{name}`" not in PAGE] == []


def test_the_configuration_is_taken(tmp_path: Path) -> None:
    blocks = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "config.toml").write_text("\n".join(blocks))
    file = config_file({"QUARTERDECK_HOME": str(tmp_path)})
    assert file.tools().sandbox == "bwrap"
    assert len(file.tools().allowed_paths) == 2
    assert file.mcp_servers().keys() == {"files", "tickets"}
    assert file.mcp_servers()["tickets"].needs_approval
    for key in McpServer.__struct_fields__:
        assert re.search(rf"\b{key}\b", PAGE)
