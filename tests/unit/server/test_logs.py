"""What the server writes about itself."""

from __future__ import annotations

import json
import logging
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from quarterdeck.server.logs import AsJson, AsText, redacted

SECRET = "s3cr3t-0123456789_abc"


def record(message: str, *args: object, **more: object) -> logging.LogRecord:
    made = logging.LogRecord("quarterdeck.server", logging.WARNING, "", 0, message, args, None)
    vars(made).update(more)
    return made


class TestRedaction:
    @pytest.mark.parametrize(
        "text",
        [
            f"GET /login?token={SECRET}&next=/",
            f"GET /login?code={SECRET}",
            f"Authorization: Bearer {SECRET}",
            f"b'authorization: BEARER {SECRET}\\r\\n'",
            f"Cookie: quarterdeck={SECRET}; other=1",
        ],
    )
    def test_no_token_passes(self, text: str):
        assert SECRET not in redacted(text)
        assert "…" in redacted(text)

    def test_a_known_one_is_found_wherever_it_stands(self):
        assert redacted(f"x{SECRET}y", (SECRET, "")) == "x…y"

    @pytest.mark.parametrize("text", ["the exit code=5", "GET /sessions/abc", "a token is needed"])
    def test_the_rest_stays(self, text: str):
        assert redacted(text) == text


class TestLines:
    def test_one_json_object_with_what_was_added(self):
        line = AsJson(tuple).format(record("said %s\nand more", "so", session="s1", path=Path("/x")))
        assert "\n" not in line
        told = json.loads(line)
        assert isinstance(told.pop("at"), int)
        assert told == {
            "level": "warning",
            "logger": "quarterdeck.server",
            "message": "said so\nand more",
            "session": "s1",
            "path": "/x",
        }

    def test_an_error_with_its_trace_and_without_the_token(self):
        made = record("it failed")
        try:
            raise ValueError(f"token={SECRET}")
        except ValueError as error:
            made.exc_info = (ValueError, error, error.__traceback__)
        for form in (AsJson, AsText):
            line = form(tuple).format(made)
            assert "ValueError: token=…" in line
            assert SECRET not in line

    def test_for_a_terminal_it_is_short(self):
        assert AsText(tuple).format(record("it %s", "is", session="s1"))[8:] == " warning: it is session=s1"


def test_the_file_is_the_owners_alone(tmp_path: Path):
    code = (
        "import logging, warnings, sys; from pathlib import Path; from quarterdeck.server.logs import begin\n"
        "begin(Path(sys.argv[1]), lambda: ('hunter2',))\n"
        "logging.getLogger('any').info('the word is hunter2'); warnings.warn('old')\n"
    )
    file = tmp_path / "server.log"
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert [line["logger"] for line in lines] == ["any", "py.warnings"]
    assert lines[0]["message"] == "the word is …"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
