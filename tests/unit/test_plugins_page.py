"""Run every example of docs/plugins.md and compare its output with the comments."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest

import quarterdeck.engine.plugins as plugins
from quarterdeck.engine.model import CallBegun, CallPiece, Chunk, Finished, Request, TextPiece
from quarterdeck.engine.plugins.shipped import SHIPPED
from tests.support.engine import PATIENCE_S, tool

PAGE = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
_SAYS = re.compile(r"^\s*print\(.*\)  # (.*)$|^\s+# (.+)$")
_CALL = re.compile(r"call (\w+) (\{.*\})")


class Obedient:
    """The model that the page describes: it calls the tool that a prompt names, and otherwise answers `ok`."""

    provider = "obedient"
    name = "one"

    async def stream(self, request: Request) -> AsyncGenerator[Sequence[Chunk]]:
        last = request.messages[-1]
        wanted = _CALL.fullmatch(last.text) if last.role == "user" else None
        if wanted is None:
            yield [TextPiece("ok"), Finished("end")]
        else:
            json.loads(wanted[2])
            yield [CallBegun(0, f"c{len(request.messages)}", wanted[1]), CallPiece(0, wanted[2]), Finished("tools")]


def expected(block: str) -> list[str]:
    """Return the output that comments promise, after a print or on a line of their own below one."""
    found = [_SAYS.match(line) for line in block.splitlines()]
    return [said.group(1) or said.group(2) for said in found if said is not None]


def test_the_examples(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asyncio.run(asyncio.wait_for(run_all(capsys), PATIENCE_S))


async def run_all(capsys: pytest.CaptureFixture[str]) -> None:
    """Run the examples in order, in one namespace."""
    tools = [tool("write_file", writes=True), tool("deploy", writes=True)]
    names: dict[str, Any] = {"model": Obedient(), "tools": tools}
    for number, block in enumerate(EXAMPLES, 1):
        code = compile(block, f"docs/plugins.md, example {number}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, names)
        if inspect.isawaitable(result):
            await result
        assert capsys.readouterr().out.splitlines() == expected(block), f"example {number}"


def test_every_example_promises_something() -> None:
    assert len(EXAMPLES) >= 6
    for block in EXAMPLES:
        assert expected(block)


def test_every_name_that_a_plugin_writer_may_import_is_there_and_on_the_page() -> None:
    typed = {"Answer", "Answers", "Context", "HOOKS", "InvalidPluginOption", "installed_tools"}
    for name in plugins.__all__:
        assert getattr(plugins, name) is not None
        assert name in typed or re.search(rf"\b{name}\b", PAGE), name
    with pytest.raises(AttributeError):
        _ = plugins.no_such_name  # type: ignore[attr-defined]
    assert set(dir(plugins)) == set(plugins.__all__)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_plugin_is_on_the_page(name: str) -> None:
    assert f"(`{name}`)" in PAGE
