"""Test the tools read_file, write_file and edit_file on real files."""

from __future__ import annotations

import asyncio
import base64
import errno
import os
import stat
from pathlib import Path

import pytest

from quarterdeck.engine.tools import files
from quarterdeck.engine.tools.files import edit_file, read_file, write_file
from quarterdeck.engine.tools.text import LINE_CHARS, PAGE_CHARS
from tests.support.tool_context import TestHands, call, called

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture
def hands(tmp_path: Path) -> TestHands:
    folder = tmp_path / "work"
    folder.mkdir()
    return TestHands(folder)


def put(hands: TestHands, name: str, data: bytes | str) -> Path:
    path = hands.cwd / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


class TestReading:
    def test_lines_with_their_numbers(self, hands: TestHands) -> None:
        put(hands, "a.txt", "one\ntwo\n\nfour")
        assert call(read_file, hands, path="a.txt").text == "     1\tone\n     2\ttwo\n     3\t\n     4\tfour"

    def test_a_page_says_how_to_go_on(self, hands: TestHands) -> None:
        put(hands, "a.txt", "".join(f"line {n}\n" for n in range(1, 101)))
        first = call(read_file, hands, path="a.txt", limit=10).text
        assert first.endswith("    10\tline 10\n[lines 1-10 of 100; continue with offset=11]")
        last = call(read_file, hands, path="a.txt", offset=91, limit=50).text
        assert last.startswith("    91\tline 91\n")
        assert last.endswith("   100\tline 100\n[lines 91-100, the end of the file]")

    def test_all_pages_together_are_the_file(self, hands: TestHands) -> None:
        lines = [f"{n} " + "x" * (n % 300) for n in range(1, 1_501)]
        put(hands, "a.txt", "\n".join(lines))
        seen: list[str] = []
        while len(seen) < len(lines):
            page = call(read_file, hands, path="a.txt", offset=len(seen) + 1, limit=700).text
            assert len(page) < PAGE_CHARS + LINE_CHARS
            seen += [line.partition("\t")[2] for line in page.splitlines() if "\t" in line]
        assert seen == lines

    def test_beyond_the_end_and_empty(self, hands: TestHands) -> None:
        put(hands, "a.txt", "one\ntwo\n")
        put(hands, "empty", "")
        assert call(read_file, hands, path="a.txt", offset=9).text == "[no line 9: the file has 2 lines]"
        assert call(read_file, hands, path="empty").text == "[the file is empty]"

    def test_a_very_long_line_is_cut(self, hands: TestHands) -> None:
        put(hands, "a.txt", "x" * 3_000_000 + "\nend\n")
        text = call(read_file, hands, path="a.txt").text
        assert text.splitlines()[0] == "     1\t" + "x" * LINE_CHARS + " … [line of 3000001 characters]"
        assert text.splitlines()[1] == "     2\tend"

    def test_a_line_of_exactly_the_limit_is_whole(self, hands: TestHands) -> None:
        put(hands, "a.txt", "x" * LINE_CHARS + "\n" + "y" * (LINE_CHARS + 1))
        lines = call(read_file, hands, path="a.txt").text.splitlines()
        assert lines[0] == "     1\t" + "x" * LINE_CHARS
        assert lines[1] == "     2\t" + "y" * LINE_CHARS + f" … [line of {LINE_CHARS + 1} characters]"

    def test_a_huge_file_is_not_read_whole(self, hands: TestHands) -> None:
        path = put(hands, "huge.log", "some line\n" * 10_000)
        with path.open("r+b") as file:  # The file is sparse, so it needs little space.
            file.seek(400_000_000_000)
            file.write(b"\nlast\n")
        text = call(read_file, hands, path="huge.log", limit=1).text
        assert text == "     1\tsome line\n[lines 1-1 of many more; continue with offset=2]"
        assert "too long to read past" in call(read_file, hands, path="huge.log", offset=10_001).text
        assert "line 10001 is too long" in call(read_file, hands, path="huge.log", offset=10_002).text

    def test_binary_is_refused_with_its_size(self, hands: TestHands) -> None:
        put(hands, "a.bin", b"\x7fELF\0\0\1" * 10)
        outcome = call(read_file, hands, path="a.bin")
        assert not outcome.ok
        assert "a.bin isn't text (70 bytes)" in outcome.text

    def test_an_image_is_an_image(self, hands: TestHands) -> None:
        put(hands, "dot.data", PNG)
        outcome = call(read_file, hands, path="dot.data")
        assert outcome.text == f"dot.data: image/png, {len(PNG)} bytes"
        (image,) = outcome.images
        assert image.media_type == "image/png"
        assert base64.b64decode(image.data) == PNG

    @pytest.mark.parametrize(
        ("head", "kind"),
        [(b"\xff\xd8\xff\xe0", "image/jpeg"), (b"GIF89a", "image/gif"), (b"RIFF\1\0\0\0WEBP", "image/webp")],
    )
    def test_images_are_known_by_their_content(self, hands: TestHands, head: bytes, kind: str) -> None:
        put(hands, "a", head + b"\0" * 20)
        assert call(read_file, hands, path="a").images[0].media_type == kind

    def test_an_image_that_is_too_large(self, hands: TestHands) -> None:
        put(hands, "a.png", PNG + b"\0" * files.IMAGE_LIMIT)
        outcome = call(read_file, hands, path="a.png")
        assert not outcome.ok
        assert "too large" in outcome.text

    @pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "utf-8-sig", "latin-1"])
    def test_encodings(self, hands: TestHands, encoding: str) -> None:
        mark = b"\xfe\xff" if encoding == "utf-16-be" else b""
        put(hands, "a.txt", mark + "größer\nzwei\n".encode(encoding))
        text = call(read_file, hands, path="a.txt").text
        assert "     1\tgrößer\n     2\tzwei" in text
        assert ("[decoded as" in text) == (encoding != "utf-8-sig")

    def test_a_character_that_the_sample_cuts(self, hands: TestHands) -> None:
        put(hands, "a.txt", "x" + "é" * 40_000)
        assert "[decoded as" not in call(read_file, hands, path="a.txt").text

    def test_line_ends_of_other_systems(self, hands: TestHands) -> None:
        put(hands, "a.txt", b"one\r\ntwo\r\n")
        assert call(read_file, hands, path="a.txt").text == "     1\tone\n     2\ttwo"

    def test_what_was_stored_elsewhere_is_read_in_pages(self, hands: TestHands) -> None:
        name = "/large_tool_results/c7"
        hands.elsewhere[name] = b"one\ntwo\nthree\n"
        assert call(read_file, hands, path=name, offset=2, limit=1).text == (
            "     2\ttwo\n[lines 2-2 of 3; continue with offset=3]"
        )
        assert not call(read_file, hands, path="/large_tool_results/c8").ok

    @pytest.mark.parametrize("args", [{"offset": 0}, {"limit": 0}, {"limit": 10_001}, {"offset": "x"}])
    def test_wrong_numbers(self, hands: TestHands, args: dict[str, object]) -> None:
        put(hands, "a.txt", "one\n")
        outcome = call(read_file, hands, path="a.txt", **args)
        assert not outcome.ok
        assert f"argument {next(iter(args))}" in outcome.text


class TestWriting:
    def test_a_new_file_with_its_folders(self, hands: TestHands) -> None:
        outcome = call(write_file, hands, path="a/b/c.txt", content="one\ntwo")
        assert (outcome.ok, outcome.text) == (True, "created a/b/c.txt: 2 lines, 7 bytes")
        assert (hands.cwd / "a/b/c.txt").read_text() == "one\ntwo"

    def test_over_an_old_one_keeping_its_mode(self, hands: TestHands) -> None:
        path = put(hands, "run.sh", "old")
        path.chmod(0o750)
        assert call(write_file, hands, path="run.sh", content="néu\n").text == "replaced run.sh: 1 line, 5 bytes"
        assert path.read_bytes() == "néu\n".encode()
        assert stat.S_IMODE(path.stat().st_mode) == 0o750

    def test_a_new_file_has_the_usual_mode(self, hands: TestHands) -> None:
        usual = hands.cwd / "usual"
        usual.touch()
        call(write_file, hands, path="a.txt", content="")
        assert (hands.cwd / "a.txt").stat().st_mode == usual.stat().st_mode

    def test_nothing_else_is_left_in_the_folder(self, hands: TestHands) -> None:
        put(hands, "a.txt", "old")
        call(write_file, hands, path="a.txt", content="new")
        (hands.cwd / "folder").mkdir()
        assert not call(write_file, hands, path="folder", content="new").ok
        assert sorted(os.listdir(hands.cwd)) == ["a.txt", "folder"]

    def test_readers_see_the_old_or_the_new(self, hands: TestHands) -> None:
        path = put(hands, "a.txt", "old")
        with path.open() as before:
            call(write_file, hands, path="a.txt", content="new")
            assert before.read() == "old"
        assert path.read_text() == "new"

    def test_what_cannot_be_put_in_place_leaves_nothing(
        self, hands: TestHands, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = put(hands, "a.txt", "old")

        def full(*args: object, **more: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "rename", full)
        assert "No space left on device" in call(write_file, hands, path="a.txt", content="new").text
        assert os.listdir(hands.cwd) == ["a.txt"]
        assert path.read_text() == "old"

    def test_half_a_character_is_told(self, hands: TestHands) -> None:
        outcome = call(write_file, hands, path="a.txt", content="\ud800")
        assert not outcome.ok
        assert "content" in outcome.text
        assert not (hands.cwd / "a.txt").exists()

    def test_a_read_only_file_stays(self, hands: TestHands, monkeypatch: pytest.MonkeyPatch) -> None:
        path = put(hands, "a.txt", "old")
        path.chmod(0o444)
        if os.geteuid() == 0:  # Nothing is read-only for root.
            monkeypatch.setattr(os, "access", lambda *args, **more: False)
        assert "read-only" in call(write_file, hands, path="a.txt", content="new").text
        assert path.read_text() == "old"

    async def test_whoever_is_cancelled_leaves_a_whole_file(self, hands: TestHands) -> None:
        task = asyncio.ensure_future(called(write_file, hands, path="a.txt", content="x" * 5_000_000))
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert os.listdir(hands.cwd) == ["a.txt"]
        assert (hands.cwd / "a.txt").stat().st_size == 5_000_000


def edit(old: str, new: str, **more: object) -> dict[str, object]:
    return {"old": old, "new": new, **more}


class TestEditing:
    def test_one_exact_piece(self, hands: TestHands) -> None:
        path = put(hands, "a.py", "a = 1\nb = 2\nc = 3\n")
        outcome = call(edit_file, hands, path="a.py", edits=[edit("b = 2", "b = 20\nbb = 21")])
        assert path.read_text() == "a = 1\nb = 20\nbb = 21\nc = 3\n"
        assert outcome.text.startswith("edited a.py: 1 replacement\n     1\ta = 1\n     2\tb = 20\n     3\tbb = 21\n")

    def test_it_must_be_there_once(self, hands: TestHands) -> None:
        path = put(hands, "a.py", "x\nx\n")
        outcome = call(edit_file, hands, path="a.py", edits=[edit("x", "y")])
        assert not outcome.ok
        assert "edit 1 of 1: the old text occurs 2 times" in outcome.text
        assert "replace_all" in outcome.text
        assert path.read_text() == "x\nx\n"

    def test_all_of_them_if_asked(self, hands: TestHands) -> None:
        path = put(hands, "a.py", "x\nx\nz\n" * 30)
        outcome = call(edit_file, hands, path="a.py", edits=[edit("x", "y", replace_all=True)])
        assert outcome.text.startswith("edited a.py: 60 replacements\n")
        assert path.read_text() == "y\ny\nz\n" * 30

    def test_several_in_order_and_all_or_none(self, hands: TestHands) -> None:
        path = put(hands, "a.py", "one\ntwo\n")
        call(edit_file, hands, path="a.py", edits=[edit("one", "1"), edit("1\ntwo", "1\n2")])
        assert path.read_text() == "1\n2\n"
        outcome = call(edit_file, hands, path="a.py", edits=[edit("1", "uno"), edit("three", "3")])
        assert not outcome.ok
        assert "edit 2 of 2: the old text isn't in the file" in outcome.text
        assert path.read_text() == "1\n2\n"

    @pytest.mark.parametrize(("old", "new"), [("", "x"), ("one", "one")])
    def test_edits_that_mean_nothing(self, hands: TestHands, old: str, new: str) -> None:
        put(hands, "a.py", "one\n")
        assert not call(edit_file, hands, path="a.py", edits=[edit(old, new)]).ok
        assert not call(edit_file, hands, path="a.py", edits=[]).ok

    def test_line_ends_are_kept(self, hands: TestHands) -> None:
        path = put(hands, "a.txt", b"one\r\ntwo\r\nthree\r\n")
        assert call(edit_file, hands, path="a.txt", edits=[edit("one\ntwo", "1\n2\n2b"), edit("three", "3\n4")]).ok
        assert path.read_bytes() == b"1\r\n2\r\n2b\r\n3\r\n4\r\n"

    @pytest.mark.parametrize(
        ("before", "old", "new", "after"),
        [
            (b"one\r\ntwo\r\n", "\ntwo", "\n2", b"one\r\n2\r\n"),
            (b"one\r\n\r\ntwo\r\n", "\n\ntwo", "\ntwo", b"one\r\ntwo\r\n"),
            (b"a\r\nb\r\nodd\nend\r\n", "\nend", "\n!", b"a\r\nb\r\nodd\r\n!\r\n"),
        ],
    )
    def test_a_text_that_begins_with_a_line_end_leaves_no_half_of_one(
        self, hands: TestHands, before: bytes, old: str, new: str, after: bytes
    ) -> None:
        path = put(hands, "a.txt", before)
        assert call(edit_file, hands, path="a.txt", edits=[edit(old, new)]).ok
        assert path.read_bytes() == after

    def test_line_ends_are_kept_the_other_way(self, hands: TestHands) -> None:
        path = put(hands, "a.txt", b"one\ntwo\nodd\r\n")
        assert call(edit_file, hands, path="a.txt", edits=[edit("one\r\ntwo", "1\r\n2")]).ok
        assert path.read_bytes() == b"1\n2\nodd\r\n"

    @pytest.mark.parametrize(
        ("mark", "encoding"),
        [
            (b"", "utf-8"),
            (b"\xef\xbb\xbf", "utf-8"),
            (b"", "latin-1"),
            (b"\xff\xfe", "utf-16-le"),
            (b"\xfe\xff", "utf-16-be"),
            (b"\0\0\xfe\xff", "utf-32-be"),
        ],
    )
    def test_encoding_and_mark_are_kept(self, hands: TestHands, mark: bytes, encoding: str) -> None:
        path = put(hands, "a.txt", mark + "größe = 1\n".encode(encoding))
        assert call(edit_file, hands, path="a.txt", edits=[edit("größe = 1", "größe = 2")]).ok
        assert path.read_bytes() == mark + "größe = 2\n".encode(encoding)

    def test_what_the_encoding_cannot_say(self, hands: TestHands) -> None:
        path = put(hands, "a.txt", "größe".encode("latin-1"))
        outcome = call(edit_file, hands, path="a.txt", edits=[edit("gr", "→")])
        assert "latin-1, which can't encode '→'" in outcome.text
        assert path.read_bytes() == "größe".encode("latin-1")

    def test_binary_is_left_alone(self, hands: TestHands) -> None:
        path = put(hands, "a.bin", b"one\0two")
        assert not call(edit_file, hands, path="a.bin", edits=[edit("one", "1")]).ok
        assert path.read_bytes() == b"one\0two"

    def test_the_mode_is_kept(self, hands: TestHands) -> None:
        path = put(hands, "run.sh", "one\n")
        path.chmod(0o700)
        call(edit_file, hands, path="run.sh", edits=[edit("one", "two")])
        assert stat.S_IMODE(path.stat().st_mode) == 0o700

    def test_a_file_that_somebody_changed_meanwhile(self, hands: TestHands, monkeypatch: pytest.MonkeyPatch) -> None:
        path = put(hands, "a.txt", "one\n")
        encoded = files._encode

        def somebody_saves(*args: object) -> bytes:
            path.write_text("one\nand more\n")
            return encoded(*args)  # pyright: ignore[reportArgumentType]

        monkeypatch.setattr(files, "_encode", somebody_saves)
        outcome = call(edit_file, hands, path="a.txt", edits=[edit("one", "two")])
        assert "changed by another program" in outcome.text
        assert path.read_text() == "one\nand more\n"

    def test_no_such_file(self, hands: TestHands) -> None:
        outcome = call(edit_file, hands, path="none.txt", edits=[edit("a", "b")])
        assert "none.txt doesn't exist" in outcome.text
