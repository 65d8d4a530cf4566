"""Run every example of docs/library.md and compare its output with the comments."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import CodeType

import msgspec
import pytest

import quarterdeck
from quarterdeck import QuarterdeckError, SessionHandle, Settings
from quarterdeck.kernel import commands as cmd
from tests.support.decks import PATIENCE_S

PAGE = (Path(__file__).parents[2] / "docs" / "library.md").read_text(encoding="utf-8")
AGENT_PAGE = "".join(
    (Path(__file__).parents[2] / "docs" / name).read_text(encoding="utf-8")
    for name in ("agent.md", "tools.md", "plugins.md")
    if (Path(__file__).parents[2] / "docs" / name).exists()
)
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PROGRAM, EXAMPLES = BLOCKS[0], BLOCKS[1:]
_SAYS = re.compile(r"^\s*print\(.*\)  # (.*)$|^\s+# (.+)$")


def expected(block: str) -> list[str]:
    """Return the output that comments promise, after a print or on a line of their own below one."""
    found = [_SAYS.match(line) for line in block.splitlines()]
    return [said.group(1) or said.group(2) for said in found if said is not None]


def compiled(block: str, number: int) -> CodeType:
    return compile(block, f"docs/library.md, example {number}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_the_first_program(tmp_path: Path) -> None:
    program = PROGRAM.replace("~/.quarterdeck-demo", str(tmp_path / "home"))
    assert program != PROGRAM
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert done.stdout.splitlines() == expected(PROGRAM)


def test_the_examples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(asyncio.wait_for(run_all(tmp_path, capsys), 2 * PATIENCE_S))


async def run_all(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run the examples in order, in one namespace."""
    async with quarterdeck.open(folder / "home") as deck:
        names: dict[str, object] = {
            "quarterdeck": quarterdeck,
            "asyncio": asyncio,
            "deck": deck,
            "project": str(folder),
        }
        for number, block in enumerate(EXAMPLES, 2):
            result = eval(compiled(block, number), names)
            if inspect.isawaitable(result):
                await result
            said = capsys.readouterr().out.splitlines()
            assert said == expected(block), f"example {number}"


def test_every_example_promises_something() -> None:
    assert len(EXAMPLES) >= 8
    for block in BLOCKS:
        assert expected(block)


def test_every_command_of_a_session_is_on_the_page() -> None:
    public = {name for name, _ in inspect.getmembers(SessionHandle, inspect.isfunction) if not name.startswith("_")}
    missing = {name for name in public if not re.search(rf"\b{name}\(", PAGE)}
    assert missing <= {"bash", "compact", "switch_mode", "drop_queued", "whole_view"}


def test_every_setting_is_on_the_page_with_its_default() -> None:
    for field in msgspec.structs.fields(Settings):
        assert f"`{field.name}`" in PAGE


@pytest.mark.parametrize("name", [one for one in quarterdeck._EXPORTS if one[0].isupper()])
def test_every_error_is_on_the_page_with_its_code(name: str) -> None:
    kind = getattr(quarterdeck, name)
    assert inspect.getdoc(kind)
    if isinstance(kind, type) and issubclass(kind, QuarterdeckError) and kind is not QuarterdeckError:
        # The built-in agent's errors are on its own page.
        page = AGENT_PAGE if kind.__module__.startswith("quarterdeck.engine.") else PAGE
        assert f"`{name}`" in page
        assert kind.code in page


def test_every_public_method_is_typed_and_documented_or_says_it_by_its_name() -> None:
    plain = {"rename", "switch_model", "switch_mode", "edit_queued", "summary", "details"}
    for kind in (quarterdeck.Deck, SessionHandle):
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_"):
                assert "return" in inspect.get_annotations(method), f"{kind.__name__}.{name}"
                assert inspect.getdoc(method) or name in plain, f"{kind.__name__}.{name}"
    assert cmd.NAME_LIMIT == 100
