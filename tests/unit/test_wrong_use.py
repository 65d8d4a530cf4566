"""Test wrong arguments and invalid files in the home: a clear error and the right exit code, before anything starts."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from quarterdeck.cli.commands.run import MODES
from quarterdeck.cli.connect import read_token
from quarterdeck.cli.exits import Exit
from quarterdeck.harness.driver import Mode
from tests.support.servers import QD, At, home_at

#: Every command that reads the home.
COMMANDS = [
    ["status"],
    ["status", "--config"],
    ["up", "-d", "--port", "0"],
    ["run", "test", "say hi"],
    ["down"],
    ["restart", "--force"],
    ["db", "check"],
    ["db", "migrate"],
    ["db", "backup", "copy.db"],
]
LATIN = b"caf\xe9"


@pytest.fixture
def at(tmp_path: Path) -> Iterator[At]:
    with home_at(tmp_path) as found:
        found.environment["QUARTERDECK_PORT"] = "0"
        yield found


def typed_in_bytes(at: At, *args: bytes, given: bytes = b"") -> tuple[int, str]:
    done = subprocess.run(
        [os.fsencode(QD), *args], input=given, env=at.environment, capture_output=True, timeout=60, check=False
    )
    return done.returncode, done.stderr.decode()


class TestBytesThatAreNoText:
    def test_a_prompt_from_standard_input(self, at: At):
        code, said = typed_in_bytes(at, b"run", b"demo", b"-", given=LATIN)
        assert (code, said.splitlines()) == (
            Exit.WRONG_USE,
            [
                "error: the prompt, byte 4 (0xe9), isn't UTF-8",
                "Convert it first, for example with `iconv -f latin1 -t utf-8`.",
            ],
        )
        assert not at.place.server.exists(), "no server was started for it"

    @pytest.mark.parametrize(
        ("args", "what"),
        [
            ([b"test", LATIN], "the prompt isn't UTF-8"),
            ([LATIN, b"say hi"], "AGENT isn't UTF-8"),
            ([b"test", b"say hi", b"-n", LATIN], "--name isn't UTF-8"),
            ([b"test", b"say hi", b"-m", LATIN], "--model isn't UTF-8"),
            ([b"test", b"say hi", b"--", LATIN], "a flag isn't UTF-8"),
        ],
    )
    def test_an_argument(self, at: At, args: list[bytes], what: str):
        code, said = typed_in_bytes(at, b"run", *args)
        assert (code, said.splitlines()[0]) == (Exit.WRONG_USE, f"error: {what}")
        assert not at.place.server.exists()

    def test_utf8_is_read_whatever_the_locale_says(self, at: At):
        at.environment |= {"LC_ALL": "C", "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        code, said = typed_in_bytes(at, b"run", b"test", b"-", b"-d", given="say café".encode())
        assert (code, said) == (Exit.DONE, "")
        (session,) = at.api().get("/sessions")["sessions"]
        opened = at.api().get(f"/sessions/{session['id']}/events", types="session_opened")["events"][0]
        assert opened["prompt"] == "say café"


class TestBeforeAServerIsStarted:
    @pytest.mark.parametrize(
        ("args", "code", "said"),
        [
            (["-C", "/nowhere"], Exit.NO_SUCH_THING, "there is no folder /nowhere"),
            (["-C", ""], Exit.WRONG_USE, "the name of the folder is empty"),
            (["-i", "gone.png"], Exit.NO_SUCH_THING, "gone.png can't be read"),
            (["--mode", "foo"], Exit.WRONG_USE, "'foo' is not one of 'plan', 'ask', 'edits', 'auto', 'bypass'"),
        ],
    )
    def test_an_order_that_cannot_be(self, at: At, args: list[str], code: int, said: str):
        done = at.qd("run", "test", "say hi", *args)
        assert done.returncode == code, done.stderr
        assert said in done.stderr
        assert not at.place.folder.exists()

    def test_the_modes_are_those_of_the_deck(self):
        assert get_args(Mode) == MODES


class TestTheHome:
    @pytest.mark.parametrize("command", [*COMMANDS, ["db", "import", "old.db"]], ids=" ".join)
    @pytest.mark.parametrize("below", ["", "home"])
    def test_one_that_is_a_file(self, at: At, tmp_path: Path, command: list[str], below: str):
        sqlite3.connect(tmp_path / "old.db").execute("CREATE TABLE AgentSession (id, status)").connection.close()
        (tmp_path / "file").touch()
        at.environment["QUARTERDECK_HOME"] = str(tmp_path / "file" / below)
        done = at.qd(*command, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (Exit.FAILED, "")
        assert "can't be the home" in done.stderr
        assert "isn't a folder\nSet QUARTERDECK_HOME to a folder" in done.stderr

    @pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
    def test_a_folder_in_the_place_of_a_file(self, at: At, command: list[str]):
        at.place.server.mkdir(parents=True)
        done = at.qd(*command)
        assert done.returncode == Exit.FAILED
        assert done.stderr == (
            f"error: {at.place.server} is a folder, where Quarterdeck needs a file\nMove it away and try again.\n"
        )

    @pytest.mark.parametrize("name", ["server.json", "token", "config.toml", "quarterdeck.db", "start.lock", "lock"])
    def test_whichever_file_it_is(self, at: At, name: str):
        (at.place.folder / name).mkdir(parents=True)
        done = at.qd("up", "-d")
        assert f"{name} is a folder" in done.stderr
        assert "broke down" not in done.stderr


class TestTheToken:
    @pytest.mark.parametrize("around", ["{}\n\n", " {} \r\n", "\n{}", "\t{}\t"])
    def test_what_is_around_it_is_not_of_it(self, at: At, around: str):
        at.place.folder.mkdir(parents=True)
        at.place.token.write_text(around.format("abc-123"), encoding="ascii")
        at.up()
        assert read_token(at.place) == "abc-123"
        assert at.qd("status").returncode == Exit.DONE
        assert at.qd("down").stdout == "the server is down\n"

    @pytest.mark.parametrize("content", [b"abc\ndef\n", b"abc def", b"abc\x00", "ä".encode()])
    def test_what_is_no_token_starts_no_server(self, at: At, content: bytes):
        """A server without a usable token rejects every client, so it could only be killed."""
        at.place.folder.mkdir(parents=True)
        at.place.token.write_bytes(content)
        done = at.qd("up", "-d", "--port", "0")
        assert done.returncode == Exit.FAILED
        assert f"{at.place.token} can't be read" in done.stderr
        assert "remove it; then a new one is created" in done.stderr
        assert at.qd("status").returncode == Exit.UNREACHABLE
        at.place.token.unlink()
        at.up()

    @pytest.mark.parametrize("content", [None, b"", b"a\nb"])
    def test_the_cure_that_is_named_cures(self, at: At, content: bytes | None):
        """The token was deleted or became invalid while the server ran, and the hint must work."""
        at.up()
        at.place.token.unlink()
        if content is not None:
            at.place.token.write_bytes(content)
        done = at.qd("status", "--json")
        report = json.loads(done.stdout)
        assert done.returncode == Exit.UNREACHABLE
        assert (report["running"], report["healthy"]) == (True, False)
        assert "`qd restart --force`" in report["error"]["hint"]
        if "Remove the file" in report["error"]["hint"]:
            at.place.token.unlink()
        assert at.qd("restart", "--force").returncode == Exit.DONE
        at.light()
        assert at.qd("status").returncode == Exit.DONE


class TestTheStore:
    def test_a_backup_into_no_folder(self, at: At, tmp_path: Path):
        at.up()
        done = at.qd("db", "backup", str(tmp_path / "no" / "copy.db"))
        assert done.returncode == Exit.NO_SUCH_THING
        assert done.stderr.startswith(f"error: there is no folder {tmp_path / 'no'}\nCreate it")

    def test_a_backup_that_the_system_refuses(self, at: At, tmp_path: Path):
        at.up()
        done = at.qd("db", "backup", str(tmp_path / ("x" * 250)))
        assert done.returncode == Exit.FAILED
        assert "File name too long" in done.stderr
        assert "Name a file in a folder that you may write" in done.stderr

    @pytest.mark.parametrize("command", ["backup", "import"])
    def test_a_name_that_is_empty(self, at: At, command: str):
        done = at.qd("db", command, "")
        assert (done.returncode, "the name of the file is empty" in done.stderr) == (Exit.WRONG_USE, True)

    def test_an_import_of_what_is_no_database(self, at: At, tmp_path: Path):
        (tmp_path / "passwd").write_text("root:x:0:0::/:/bin/sh\n" * 100, encoding="ascii")
        done = at.qd("db", "import", str(tmp_path / "passwd"))
        assert done.returncode == Exit.WRONG_USE
        assert done.stderr == (
            f"error: {tmp_path / 'passwd'} isn't a SQLite file\nName the SQLite file that holds the sessions.\n"
        )

    def test_an_import_of_a_folder(self, at: At, tmp_path: Path):
        done = at.qd("db", "import", str(tmp_path))
        assert (done.returncode, done.stderr.splitlines()[0]) == (
            Exit.NO_SUCH_THING,
            f"error: {tmp_path} is a folder",
        )


class TestTheScriptedModel:
    @pytest.mark.parametrize("args", [["--script", "gone.toml"], ["--record", "gone/log"]])
    def test_a_file_that_cannot_be_used(self, at: At, tmp_path: Path, args: list[str]):
        done = at.qd("testing", "model", *args, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (Exit.WRONG_USE, "")
        assert args[1] in done.stderr

    def test_a_script_that_is_none(self, at: At, tmp_path: Path):
        (tmp_path / "script.toml").write_text("default = 7\n", encoding="utf-8")
        assert at.qd("testing", "model", "--script", str(tmp_path / "script.toml")).returncode == Exit.WRONG_USE
