"""Test the tools ls, glob and grep on real folders; grep with our own search, and with ripgrep if it is installed."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from pathlib import Path

import pytest

from quarterdeck.engine.tools import search
from quarterdeck.engine.tools.search import glob, grep, ls
from tests.support.tool_context import TestHands, call, called

SECRET = "needle of somebody else"


@pytest.fixture
def hands(tmp_path: Path) -> TestHands:
    folder = tmp_path / "work"
    (folder / "src" / "deep").mkdir(parents=True)
    (folder / "src" / "a.py").write_text("one\nneedle\nthree\nfour\nfive\nNeedle again\n")
    (folder / "src" / "deep" / "b.js").write_text("a needle\n")
    (folder / "notes.txt").write_text("no thing\n")
    (folder / ".hidden").write_text("needle hidden\n")
    (folder / ".gitignore").write_text("ignored/\n*.log\n")
    (folder / "ignored").mkdir()
    (folder / "ignored" / "c.py").write_text("needle ignored\n")
    (folder / "src" / "d.log").write_text("needle logged\n")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("needle of git\n")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a.py").write_text(SECRET)
    return TestHands(folder)


class TestLs:
    def test_a_folder(self, hands: TestHands) -> None:
        (hands.cwd / "link").symlink_to("../outside")
        os.mkfifo(hands.cwd / "pipe")
        text = call(ls, hands).text
        assert text.splitlines() == [
            ".git/", ".gitignore  15", ".hidden  14", "ignored/", "link -> ../outside", "notes.txt  9", "pipe  0", "src/",
        ]  # fmt: skip
        assert call(ls, hands, path="src/").text == "a.py  40\nd.log  14\ndeep/"

    def test_limits_and_nothing(self, hands: TestHands) -> None:
        (hands.cwd / "empty").mkdir()
        assert call(ls, hands, path="empty").text == "[empty folder]"
        assert call(ls, hands, path="src", limit=1).text == "a.py  40\n[1 of 3 entries]"

    @pytest.mark.parametrize("path", ["..", "/", "../outside", "link", "link/", "notes.txt", "none", "a\0b"])
    def test_nothing_outside_and_no_file(self, hands: TestHands, path: str) -> None:
        (hands.cwd / "link").symlink_to("../outside")
        assert not call(ls, hands, path=path).ok

    def test_names_that_are_no_text(self, hands: TestHands) -> None:
        os.close(os.open(os.fsencode(hands.cwd / "src") + b"/\xff", os.O_CREAT | os.O_WRONLY))
        assert "�  0" in call(ls, hands, path="src").text
        assert "src/�" in call(glob, hands, pattern="?").text.splitlines()


class TestGlob:
    def test_by_name_and_by_path(self, hands: TestHands) -> None:
        assert call(glob, hands, pattern="*.py").text == "src/a.py"
        assert call(glob, hands, pattern="src/**/*.{py,js}").text == "src/a.py\nsrc/deep/b.js"
        assert call(glob, hands, pattern="*.js", path="src").text == "src/deep/b.js"
        assert call(glob, hands, pattern="*.nothing").text == "[no files match]"
        assert call(glob, hands, pattern="*.py", path=str(hands.cwd / "src")).text == f"{hands.cwd}/src/a.py"

    def test_hidden_yes_git_and_ignored_no(self, hands: TestHands) -> None:
        listed = call(glob, hands, pattern="**").text.splitlines()
        assert listed == [".gitignore", ".hidden", "notes.txt", "src/a.py", "src/deep/b.js"]
        both = call(glob, hands, pattern="**", include_ignored=True).text.splitlines()
        assert both == [
            ".gitignore", ".hidden", "ignored/c.py", "notes.txt", "src/a.py", "src/d.log", "src/deep/b.js",
        ]  # fmt: skip

    def test_rules_above_the_folder_hold_in_it(self, hands: TestHands) -> None:
        (hands.cwd / ".gitignore").write_text("/src/deep/*.js\n*.log\n")
        assert call(glob, hands, pattern="**", path="src/deep").text == "[no files match]"
        assert call(glob, hands, pattern="**", path="src").text == "src/a.py"

    def test_limit(self, hands: TestHands) -> None:
        text = call(glob, hands, pattern="**", limit=2).text
        assert text == ".gitignore\n.hidden\n[only the first 2; use a narrower pattern]"

    def test_links_are_not_followed(self, hands: TestHands) -> None:
        (hands.cwd / "src" / "link").symlink_to(hands.cwd.parent / "outside")
        (hands.cwd / "src" / "circle").symlink_to(".")
        assert call(glob, hands, pattern="a.py").text == "src/a.py"

    def test_a_very_deep_tree(self, hands: TestHands) -> None:
        here = hands.cwd
        for _ in range(150):
            here = here / "d"
        here.mkdir(parents=True)
        (here / "end.py").write_text("")
        (hands.cwd / "d" / "d" / "near.py").write_text("")
        assert call(glob, hands, pattern="near.py").text == "d/d/near.py"

    @pytest.mark.parametrize("path", ["..", "/", "none", "notes.txt"])
    def test_nothing_outside(self, hands: TestHands, path: str) -> None:
        assert not call(glob, hands, pattern="*", path=path).ok

    def test_too_many_braces(self, hands: TestHands) -> None:
        assert "argument pattern" in call(glob, hands, pattern="{a,b}" * 20).text


@pytest.fixture(params=["ripgrep", "own"])
def engine(request: pytest.FixtureRequest, hands: TestHands, monkeypatch: pytest.MonkeyPatch) -> TestHands:
    if request.param == "own":
        monkeypatch.setattr(search, "_find_ripgrep", lambda hands: None)
    elif shutil.which("rg", path=hands.environment["PATH"]) is None:
        pytest.skip("ripgrep is not installed on this machine")
    return hands


class TestGrep:
    def test_lines(self, engine: TestHands) -> None:
        text = call(grep, engine, pattern="needle").text
        assert text.splitlines() == [".hidden:1:needle hidden", "src/a.py:2:needle", "src/deep/b.js:1:a needle"]

    def test_options(self, engine: TestHands) -> None:
        lines = call(grep, engine, pattern="NEEDLE$|^needle a", ignore_case=True, glob="*.py").text
        assert lines == "src/a.py:2:needle\nsrc/a.py:6:Needle again"
        assert call(grep, engine, pattern="needle", output="files").text == ".hidden\nsrc/a.py\nsrc/deep/b.js"
        assert call(grep, engine, pattern="needle", path="src/deep").text == "src/deep/b.js:1:a needle"
        assert call(grep, engine, pattern="needle", path="src", glob="deep/**").text == "src/deep/b.js:1:a needle"
        assert call(grep, engine, pattern=r"\bthing\b").text == "notes.txt:1:no thing"
        assert call(grep, engine, pattern="-needle").text == "[no matches]"

    def test_one_file(self, engine: TestHands) -> None:
        assert call(grep, engine, pattern="needle", path="src/a.py").text == "src/a.py:2:needle"
        assert call(grep, engine, pattern="needle", path="./src/../notes.txt").text == "[no matches]"
        assert call(grep, engine, pattern="needle", path="src/d.log").text == "src/d.log:1:needle logged"

    def test_context(self, engine: TestHands) -> None:
        text = call(grep, engine, pattern="(?i)needle", path="src", glob="*.py", context=1).text
        assert text.splitlines() == [
            "src/a.py-1-one",
            "src/a.py:2:needle",
            "src/a.py-3-three",
            "--",
            "src/a.py-5-five",
            "src/a.py:6:Needle again",
        ]

    def test_ignored_only_when_asked(self, engine: TestHands) -> None:
        text = call(grep, engine, pattern="needle", include_ignored=True, output="files").text
        assert text.splitlines() == [".hidden", "ignored/c.py", "src/a.py", "src/d.log", "src/deep/b.js"]

    def test_limits(self, engine: TestHands) -> None:
        (engine.cwd / "many.txt").write_text("hit\n" * 50)
        for number in range(80):
            (engine.cwd / f"m{number:02}").write_text("hit\nhit\n")
        lines = call(grep, engine, pattern="hit", limit=99).text.splitlines()
        assert lines[-1] == "[there are more matches; narrow the search or raise the limit]"
        assert len(lines) == 100
        assert lines[0] == "m00:1:hit"
        assert len(call(grep, engine, pattern="hit", limit=1_000).text.splitlines()) == 210
        names = call(grep, engine, pattern="hit", limit=3, output="files").text.splitlines()
        assert names == ["m00", "m01", "m02", "[there are more matches; narrow the search or raise the limit]"]

    def test_a_pattern_that_is_none(self, engine: TestHands) -> None:
        outcome = call(grep, engine, pattern="(unclosed")
        assert not outcome.ok
        assert "unclosed" in outcome.text.lower() or "unterminated" in outcome.text
        assert "Correct the pattern" in outcome.text

    @pytest.mark.parametrize(
        "args",
        [
            {"pattern": ""},
            {"pattern": "a", "context": 99},
            {"pattern": "a", "limit": 0},
            {"pattern": "a", "output": "x"},
        ],
    )
    def test_wrong_arguments(self, engine: TestHands, args: dict[str, object]) -> None:
        outcome = call(grep, engine, **args)
        assert not outcome.ok
        assert f"argument {list(args)[-1]}" in outcome.text

    def test_long_lines_are_cut(self, engine: TestHands) -> None:
        (engine.cwd / "long").write_text("hit" + "x" * 100_000 + "\n")
        assert len(call(grep, engine, pattern="^hit").text) < 600

    def test_binary_and_other_encodings(self, engine: TestHands) -> None:
        (engine.cwd / "b.bin").write_bytes(b"hit\0\1\2" * 100)
        (engine.cwd / "l.txt").write_bytes("größe hit\n".encode("latin-1"))
        (engine.cwd / "u.txt").write_bytes("größe hit\n".encode("utf-16"))
        lines = call(grep, engine, pattern="hit$").text.splitlines()
        assert [line.split(":")[0] for line in lines] == ["l.txt", "u.txt"]
        assert lines[1] == "u.txt:1:größe hit"

    def test_no_pipe_makes_anybody_wait(self, engine: TestHands) -> None:
        os.mkfifo(engine.cwd / "pipe")
        assert call(grep, engine, pattern="hit").text == "[no matches]"
        assert not call(grep, engine, pattern="hit", path="pipe").ok

    @pytest.mark.parametrize("path", ["..", "../outside", "link", "link/a.py", "filelink", "/etc/passwd"])
    def test_nothing_outside(self, engine: TestHands, path: str) -> None:
        (engine.cwd / "link").symlink_to("../outside")
        (engine.cwd / "filelink").symlink_to("../outside/a.py")
        outcome = call(grep, engine, pattern="needle|root", path=path)
        assert not outcome.ok
        assert SECRET not in outcome.text
        assert SECRET not in call(grep, engine, pattern="needle").text

    def test_a_folder_that_is_swapped_for_a_link_meanwhile(self, engine: TestHands) -> None:
        (engine.cwd / "swap").mkdir()
        (engine.cwd / "swap" / "a.py").write_text("needle of mine")
        stop = threading.Event()

        def swap() -> None:
            while not stop.is_set():
                os.rename(engine.cwd / "swap", engine.cwd / "kept")
                os.symlink(engine.cwd.parent / "outside", engine.cwd / "swap")
                os.unlink(engine.cwd / "swap")
                os.rename(engine.cwd / "kept", engine.cwd / "swap")

        thread = threading.Thread(target=swap)
        thread.start()
        try:
            for _ in range(15):
                assert SECRET not in call(grep, engine, pattern="needle of").text
                assert SECRET not in call(grep, engine, pattern="needle of", path="swap").text
        finally:
            stop.set()
            thread.join()

    def test_no_descriptor_is_left_open(self, engine: TestHands) -> None:
        call(grep, engine, pattern="needle")
        before = len(os.listdir("/proc/self/fd"))
        for args in ({}, {"path": "src/a.py"}, {"path": "none"}, {"path": ".."}, {"output": "files"}):
            call(grep, engine, pattern="needle", **args)
        call(grep, engine, pattern="(bad")
        assert len(os.listdir("/proc/self/fd")) == before


async def test_an_unlucky_expression_can_be_cancelled(hands: TestHands, monkeypatch: pytest.MonkeyPatch) -> None:
    """The match would take years. Python can't interrupt it, but its process can be killed."""
    monkeypatch.setattr(search, "_find_ripgrep", lambda hands: None)
    (hands.cwd / "evil").write_text("a" * 60 + "\n")

    task = asyncio.ensure_future(called(grep, hands, pattern="(a+)+b", path="evil"))
    done, _ = await asyncio.wait([task], timeout=0.3)
    assert not done
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


def test_a_search_that_takes_too_long_is_ended(hands: TestHands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_find_ripgrep", lambda hands: None)
    monkeypatch.setattr(search, "_TIME_LIMIT_S", 0.2)
    (hands.cwd / "evil").write_text("a" * 60 + "\n")
    outcome = call(grep, hands, pattern="(a+)+b", path="evil")
    assert not outcome.ok
    assert "took too long" in outcome.text


def test_a_module_in_the_working_directory_is_not_run(hands: TestHands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_find_ripgrep", lambda hands: None)
    (hands.cwd / "json.py").write_text("open('run', 'w')\n")
    monkeypatch.chdir(hands.cwd)
    assert call(grep, hands, pattern="one").ok
    assert not (hands.cwd / "run").exists()
