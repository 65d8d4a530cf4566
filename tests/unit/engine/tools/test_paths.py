"""Check that tools read and write nothing outside the working directory: try every way out on real files."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from quarterdeck.engine.tools.base import Tool
from quarterdeck.engine.tools.files import edit_file, read_file, write_file
from quarterdeck.engine.tools.paths import OutsidePath, resolve
from tests.support.tool_context import TestHands, call

SECRET = "the secret of somebody else"


@pytest.fixture
def hands(tmp_path: Path) -> TestHands:
    (tmp_path / "work").mkdir()
    (tmp_path / "secret.txt").write_text(SECRET)
    (tmp_path / "work-secret").mkdir()
    (tmp_path / "work-secret" / "s.txt").write_text(SECRET)
    return TestHands(tmp_path / "work")


def refused(hands: TestHands, path: str) -> str:
    """Check that all three tools refuse the path and change no file. Return the text of read_file."""
    before = snapshot(hands.cwd.parent)
    told = call(read_file, hands, path=path)
    assert not told.ok
    assert SECRET not in told.text
    assert not call(write_file, hands, path=path, content="x").ok
    assert not call(edit_file, hands, path=path, edits=[{"old": SECRET, "new": "x"}]).ok
    assert snapshot(hands.cwd.parent) == before
    return told.text


def snapshot(folder: Path) -> dict[str, str]:
    return {
        str(path): path.read_text() if path.is_file() and not path.is_symlink() else ""
        for path in sorted(folder.rglob("*"))
    }


class TestWaysOut:
    @pytest.mark.parametrize(
        "path",
        [
            "../secret.txt",
            "./../secret.txt",
            "a/../../secret.txt",
            "../work/../secret.txt",
            "../work-secret/s.txt",
            "/etc/passwd",
            "//etc/passwd",
            "/proc/self/ro" + "ot/etc/passwd",
            "..",
            "../..",
            "/",
            "~/../../etc/passwd",
        ],
    )
    def test_by_its_name(self, hands: TestHands, path: str) -> None:
        assert "outside the working directory" in refused(hands, path)

    def test_by_its_absolute_name(self, hands: TestHands) -> None:
        assert "outside" in refused(hands, str(hands.cwd.parent / "secret.txt"))
        assert "outside" in refused(hands, f"{hands.cwd}/../secret.txt")
        # This name only starts like the folder's name.
        assert "outside" in refused(hands, f"{hands.cwd}-secret/s.txt")

    def test_by_another_case(self, hands: TestHands) -> None:
        assert "outside" in refused(hands, str(hands.cwd.parent / "WORK" / "a.txt"))
        (hands.cwd / "a.txt").write_text("small")
        assert "A.TXT doesn't exist" in call(read_file, hands, path="A.TXT").text

    def test_through_a_link_to_a_file(self, hands: TestHands) -> None:
        (hands.cwd / "link").symlink_to(hands.cwd.parent / "secret.txt")
        assert "outside" in refused(hands, "link")

    def test_through_a_link_to_a_folder(self, hands: TestHands) -> None:
        (hands.cwd / "up").symlink_to("..")
        assert "outside" in refused(hands, "up/secret.txt")
        assert "outside" in refused(hands, "up/work-secret/s.txt")
        assert "outside" in refused(hands, "up/new/file.txt")

    def test_through_links_to_links(self, hands: TestHands) -> None:
        (hands.cwd / "c").symlink_to("../secret.txt")
        (hands.cwd / "b").symlink_to("c")
        (hands.cwd / "a").symlink_to("b")
        assert "outside" in refused(hands, "a")

    def test_through_a_link_to_what_is_not_there_yet(self, hands: TestHands) -> None:
        (hands.cwd / "link").symlink_to("../new.txt")
        assert "outside" in refused(hands, "link")
        assert not (hands.cwd.parent / "new.txt").exists()

    def test_through_proc(self, hands: TestHands) -> None:
        with (hands.cwd.parent / "secret.txt").open() as file:
            assert "outside" in refused(hands, f"/proc/self/fd/{file.fileno()}")
        assert "outside" in refused(hands, "/proc/self/cwd/x")

    def test_a_link_in_a_circle(self, hands: TestHands) -> None:
        (hands.cwd / "a").symlink_to("b")
        (hands.cwd / "b").symlink_to("a")
        refused(hands, "a")
        refused(hands, "a/x")

    @pytest.mark.parametrize(
        ("path", "told"),
        [
            ("", "empty"),
            ("a\0b", "NUL"),
            ("a/\0", "NUL"),
            ("x" * 300, "too long"),
            ("y/" * 3_000 + "y", "too long"),
            ("\ud800", "isn't a valid path"),
        ],
    )
    def test_what_is_no_name(self, hands: TestHands, path: str, told: str) -> None:
        assert told in refused(hands, path)

    def test_a_slash_at_the_end_means_a_folder(self, hands: TestHands) -> None:
        (hands.cwd / "a.txt").write_text(SECRET)
        assert "not a file" in refused(hands, "a.txt/")
        assert "not a file" in refused(hands, "new/")
        assert "not a file" in refused(hands, ".")
        assert "isn't a folder" in refused(hands, "a.txt/b")


class TestWhatIsAllowed:
    def test_links_that_stay_inside(self, hands: TestHands) -> None:
        (hands.cwd / "real").mkdir()
        (hands.cwd / "real" / "a.txt").write_text("one")
        (hands.cwd / "alias").symlink_to("real")
        assert call(write_file, hands, path="alias/a.txt", content="two").ok
        assert (hands.cwd / "real" / "a.txt").read_text() == "two"
        assert (hands.cwd / "alias").is_symlink()

    def test_writing_through_a_link_to_a_file_keeps_the_link(self, hands: TestHands) -> None:
        (hands.cwd / "real.txt").write_text("one")
        (hands.cwd / "alias.txt").symlink_to("real.txt")
        assert call(edit_file, hands, path="alias.txt", edits=[{"old": "one", "new": "two"}]).ok
        assert (hands.cwd / "alias.txt").is_symlink()
        assert (hands.cwd / "real.txt").read_text() == "two"

    @pytest.mark.parametrize("path", ["a.txt", "./a.txt", "b/../a.txt", ".//a.txt", "../work/a.txt", "{cwd}/a.txt"])
    def test_many_names_of_one_file(self, hands: TestHands, path: str) -> None:
        (hands.cwd / "b").mkdir()
        (hands.cwd / "a.txt").write_text("one")
        assert call(read_file, hands, path=path.format(cwd=hands.cwd)).text == "     1\tone"

    def test_an_alias_of_the_working_directory_itself(self, hands: TestHands, tmp_path: Path) -> None:
        (tmp_path / "alias").symlink_to(hands.cwd)
        (hands.cwd / "a.txt").write_text("one")
        assert call(read_file, hands, path=str(tmp_path / "alias" / "a.txt")).ok

    def test_folders_that_were_allowed(self, hands: TestHands, tmp_path: Path) -> None:
        hands.allowed_paths = (tmp_path / "work-secret",)
        assert call(read_file, hands, path=str(tmp_path / "work-secret" / "s.txt")).ok
        assert call(write_file, hands, path="../work-secret/deep/new.txt", content="x").ok
        assert (tmp_path / "work-secret" / "deep" / "new.txt").read_text() == "x"
        refused(hands, "../secret.txt")
        refused(hands, "../work-secret/../secret.txt")

    def test_home(self, hands: TestHands) -> None:
        hands.environment = {"HOME": str(hands.cwd)}
        assert call(write_file, hands, path="~/a.txt", content="x").ok
        assert (hands.cwd / "a.txt").exists()

    def test_odd_names(self, hands: TestHands) -> None:
        for name in ("new\nline", " ", "-rf", "*", "ü😀", "~", "a:b", "..."):
            assert call(write_file, hands, path=name, content=name).ok
            assert (hands.cwd / name).read_text() == name


class TestSpecialFiles:
    """Opening a special file must not block the tool."""

    def test_a_pipe_without_a_writer(self, hands: TestHands) -> None:
        os.mkfifo(hands.cwd / "pipe")
        assert "is a pipe, not a file" in refused(hands, "pipe")

    def test_a_socket(self, hands: TestHands, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(hands.cwd)
        with socket.socket(socket.AF_UNIX) as one:
            one.bind("socket")
            assert "is a socket, not a file" in refused(hands, "socket")

    def test_a_device(self, hands: TestHands) -> None:
        hands.allowed_paths = (Path("/dev"),)
        for tool, args in ((read_file, {}), (write_file, {"content": "x"})):
            outcome = call(tool, hands, path="/dev/zero", **args)
            assert "is a device, not a file" in outcome.text

    def test_a_folder(self, hands: TestHands) -> None:
        (hands.cwd / "folder").mkdir()
        assert "is a folder, not a file" in refused(hands, "folder")


@contextlib.contextmanager
def swapping(path: Path, target: Path) -> Generator[None]:
    """Run a thread that switches `path` between a folder (or file) and a link to `target` as fast as it can."""
    kept, stop = path.with_name("kept"), threading.Event()

    def swap() -> None:
        while not stop.is_set():
            os.rename(path, kept)
            # The writing tool may just have created a folder with that name.
            with contextlib.suppress(FileExistsError):
                os.symlink(target, path)
                os.unlink(path)
            try:
                os.rename(kept, path)
            except OSError:
                shutil.rmtree(kept)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


class TestRaces:
    """Replace part of a path with a link between its check and its use. Nothing outside may be touched."""

    ROUNDS = 200

    def attack(self, hands: TestHands, tool: Tool, path: str, **args: object) -> None:
        for _ in range(self.ROUNDS):
            assert SECRET not in call(tool, hands, path=path, **args).text

    def test_a_folder_is_swapped_while_reading(self, hands: TestHands) -> None:
        (hands.cwd / "a").mkdir()
        (hands.cwd / "a" / "s.txt").write_text("mine")
        with swapping(hands.cwd / "a", hands.cwd.parent / "work-secret"):
            self.attack(hands, read_file, "a/s.txt")

    def test_the_file_itself_is_swapped_while_reading(self, hands: TestHands) -> None:
        (hands.cwd / "a").write_text("mine")
        with swapping(hands.cwd / "a", hands.cwd.parent / "secret.txt"):
            self.attack(hands, read_file, "a")

    def test_a_folder_is_swapped_while_writing(self, hands: TestHands) -> None:
        (hands.cwd / "a").mkdir()
        with swapping(hands.cwd / "a", hands.cwd.parent / "work-secret"):
            self.attack(hands, write_file, "a/new.txt", content="x")
        assert os.listdir(hands.cwd.parent / "work-secret") == ["s.txt"]

    def test_a_folder_is_swapped_while_folders_are_made(self, hands: TestHands) -> None:
        (hands.cwd / "a").mkdir()
        with swapping(hands.cwd / "a", hands.cwd.parent / "work-secret"):
            self.attack(hands, write_file, "a/b/c/new.txt", content="x")
        assert os.listdir(hands.cwd.parent / "work-secret") == ["s.txt"]

    def test_the_file_itself_is_swapped_while_writing_and_editing(self, hands: TestHands) -> None:
        (hands.cwd / "a").write_text(SECRET)
        secret = hands.cwd.parent / "secret.txt"
        (hands.cwd / "b").write_text("x")
        stop = threading.Event()

        def swap() -> None:
            while not stop.is_set():
                with contextlib.suppress(FileExistsError, FileNotFoundError):
                    os.unlink(hands.cwd / "a")
                    os.symlink(secret, hands.cwd / "a")

        thread = threading.Thread(target=swap)
        thread.start()
        try:
            for _ in range(self.ROUNDS):
                call(write_file, hands, path="a", content="mine")
                call(edit_file, hands, path="a", edits=[{"old": "e", "new": "E", "replace_all": True}])
        finally:
            stop.set()
            thread.join()
        assert secret.read_text() == SECRET

    def test_the_moment_itself(self, hands: TestHands) -> None:
        """Swap exactly between the check and the use, which the threads above may miss."""
        (hands.cwd / "a").mkdir()
        (hands.cwd / "a" / "s.txt").write_text("mine")
        place = resolve("a/s.txt", hands)
        (hands.cwd / "a").rename(hands.cwd / "kept")
        (hands.cwd / "a").symlink_to(hands.cwd.parent / "work-secret")
        from quarterdeck.engine.tools.paths import WrongKind, open_parent, open_path

        with pytest.raises(WrongKind):
            open_path(place)
        with pytest.raises(WrongKind), open_parent(place, create=True):
            pass
        with pytest.raises(OutsidePath):
            resolve("a/s.txt", hands)

    def test_no_descriptor_is_left_open(self, hands: TestHands) -> None:
        (hands.cwd / "a").write_text("x")
        before = len(os.listdir("/proc/self/fd"))
        for path in ("a", "none", "a/b", "../x", "b/c/d"):
            call(read_file, hands, path=path)
            call(write_file, hands, path=path, content="x")
            call(edit_file, hands, path=path, edits=[{"old": "q", "new": "r"}])
        assert len(os.listdir("/proc/self/fd")) == before
