"""Check that every test that SECURITY.md names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

_HERE = Path(__file__).parent
_PAGE = _HERE.parents[2] / "SECURITY.md"


def _rows() -> list[list[str]]:
    lines = [line for line in _PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def _tests() -> set[str]:
    found: set[str] = set()
    for path in _HERE.glob("test_*.py"):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        found |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    return found


def test_every_attack_has_tests_and_every_test_exists() -> None:
    rows, tests = _rows(), _tests()
    assert len(rows) > 20
    for row in rows:
        assert len(row) == 4, row
        assert all(row), row
        named = re.findall(r"`(test_\w+)`", row[3])
        assert named, row
        assert set(named) <= tests, row


def test_every_attack_that_the_issue_names_is_there() -> None:
    told = " ".join(" ".join(row[:3]) for row in _rows()).lower()
    for attack in (
        "page of another site",
        "dns rebinding",
        "no token, a wrong one",
        "revoked",
        "view role",
        "csrf",
        "hijack",
        "path",
        "huge",
        "byte at a time",
        "slow loris",
        "smuggling",
        "forgery",
        "replayed",
    ):
        assert attack in told, attack
