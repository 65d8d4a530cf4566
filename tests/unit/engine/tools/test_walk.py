"""Test glob patterns and .gitignore rules, compared with git itself where possible."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarterdeck.engine.tools.walk import Glob, Pattern, TooManyBraces, expand_braces, walk


@pytest.mark.parametrize(
    ("pattern", "fits", "does_not"),
    [
        ("*.py", ["a.py", "x/y/a.py", ".py"], ["a.pyc", "a.py/b"]),
        ("src/*.py", ["src/a.py"], ["a.py", "src/x/a.py", "x/src/a.py"]),
        ("src/**/*.py", ["src/a.py", "src/x/y/a.py"], ["a.py", "x/src/a.py"]),
        ("**/x/**/y", ["x/y", "a/x/b/c/y", "x/x/y"], ["x", "y", "x/y/z"]),
        ("src/**", ["src/a", "src/a/b"], ["src", "b/src/a"]),
        ("**", ["a", "a/b"], []),
        ("./a", ["a"], ["b/a"]),
        ("a.{js,ts}", ["a.js", "x/a.ts"], ["a.py", "a.{js,ts}"]),
        ("{a,b}/{c,d}", ["a/c", "b/d"], ["a/b"]),
        ("[ab]?", ["a1", "b2"], ["c1", "a"]),
        ("[^a]", ["b"], ["a"]),
    ],
)
def test_globs(pattern: str, fits: list[str], does_not: list[str]) -> None:
    wanted = Glob(pattern)
    assert [path for path in fits if not wanted.matches(path.split("/"))] == []
    assert [path for path in does_not if wanted.matches(path.split("/"))] == []


def test_braces_have_an_end() -> None:
    assert sorted(expand_braces("{a,b{c,d}}")) == ["a", "bc", "bd"]
    assert expand_braces("{a}") == ["{a}"]
    with pytest.raises(TooManyBraces):
        expand_braces("{a,b}" * 20)


def test_an_unlucky_pattern_takes_no_time() -> None:
    """Trying all combinations would take exponential time."""
    parts = ["a"] * 3_000
    assert not Pattern("**/a/" * 300 + "b").matches(parts)
    assert not Pattern("*a" * 60 + "b").matches(["a" * 3_000])


@given(
    st.lists(st.sampled_from(["a", "b", "**", "*"]), min_size=1, max_size=6),
    st.lists(st.sampled_from("ab"), max_size=6),
)
def test_it_is_the_plain_definition(steps: list[str], parts: list[str]) -> None:
    def plain(steps: list[str], parts: list[str]) -> bool:
        if not steps:
            return not parts
        if steps[0] == "**":
            return any(plain(steps[1:], parts[at:]) for at in range(len(parts) + 1))
        return bool(parts) and steps[0] in ("*", parts[0]) and plain(steps[1:], parts[1:])

    ends = [*steps, "*"] if steps[-1] == "**" else steps
    assert Pattern("/".join(steps)).matches(parts) == plain(ends, parts)


FILES = [
    "a.log", "keep.log", "b/a.log", "b/keep.log", "build/x.txt", "b/build/x.txt", "only/here.txt", "b/only/here.txt",
    "docs/a/b/c.md", "docs/c.md", "c.md", "node_modules/m/i.js", "b/c/secret", "#odd", "trail ", "b/nested.tmp",
    "deep/a/b/x.bin", "deep/x.bin", "a/b", "foo/a/b", "!bang", "b/c/inner.log",
]  # fmt: skip
RULES = [
    "*.log\n!keep.log\n",
    "build/\n/only\n",
    "docs/**/c.md\n",
    "docs/**\n!docs/c.md\n",
    "node_modules\n# a comment\n\n",
    "\\#odd\n\\!bang\n",
    "**/b/c\n",
    "deep/**/x.bin\n",
    "a/b\n",
    "*\n!*/\n!*.md\n",
    "trail \n",
    "b/*\n!b/c/\n",
]


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("nested", ["", "!a.log\nnested.tmp\n", "*\n"])
def test_gitignore_is_what_git_says(tmp_path: Path, rules: str, nested: str) -> None:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / ".gitignore").write_text(rules)
    if nested:
        (tmp_path / "b" / ".gitignore").write_text(nested)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    listed = subprocess.run(
        ["git", "-C", tmp_path, "-c", "core.excludesFile=", "ls-files", "-z", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
        text=True,
    )
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        found = {one.path for one in walk(folder) if not one.is_folder}
    finally:
        os.close(folder)
    assert found == set(listed.stdout.split("\0")) - {""}
