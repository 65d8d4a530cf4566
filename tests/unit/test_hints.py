"""Check that every `qd …` in hints, help texts and pages is an existing command with existing options."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from quarterdeck.cli.app import Placeholder, app

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "quarterdeck").rglob("*.py"))
#: CHANGELOG.md may name removed commands, and the conformance page is generated from the agreed documents.
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.stem != "conformance")]
QUOTED = re.compile(r"`qd( [^`]*)?`")
BARE = re.compile(r"(?<![\w/.`-])qd ([a-z][a-z-]+)")


def texts(module: Path) -> Iterator[str]:
    """Yield every string of a module. Replace each expression in an f-string with `X`."""
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(one.value) if isinstance(one, ast.Constant) else "X" for one in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def commands_in(text: str) -> Iterator[list[str]]:
    for found in QUOTED.finditer(text):
        yield shlex.split((found[1] or "").replace("…", ""), comments=True)
    for found in BARE.finditer(QUOTED.sub("", text)):
        yield [found[1]]


def wrong_with(words: list[str]) -> str:
    """Return why these words aren't a command, or an empty string."""
    command: click.Command = app
    for word in words:
        if word == "--":
            break
        if isinstance(command, click.Group) and not word.startswith("-"):
            if word == "COMMAND":
                break
            if word not in command.commands:
                return f"no command {word}"
            command = command.commands[word]
            command = command.load() if isinstance(command, Placeholder) else command
        elif word.startswith("-") and word not in ("-", "-h", "--help"):
            options = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
            for name in word.strip("[]").split("|"):
                if name.partition("=")[0] not in options:
                    return f"{command.name} has no option {name}"
    return ""


@pytest.mark.parametrize(
    ("typed", "wrong"),
    [
        ("", ""),
        ("up -d", ""),
        ("db check --repair", ""),
        ("run demo -", ""),
        ("run claude x -- --anything", ""),
        ("ls --all", "no command ls"),
        ("db mend", "no command mend"),
        ("up --fast", "up has no option --fast"),
    ],
)
def test_how_it_is_told_apart(typed: str, wrong: str):
    assert wrong_with(typed.split()) == wrong


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_hint_names_a_command_that_exists(module: Path):
    told = [words for text in texts(module) for words in commands_in(text)]
    assert {" ".join(words): wrong for words in told if (wrong := wrong_with(words))} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_page_names_commands_that_exist(page: Path):
    told = list(commands_in(page.read_text("utf-8")))
    assert {" ".join(words): wrong for words in told if (wrong := wrong_with(words))} == {}
