"""Test typing at `qd run`: half lines, typos, Ctrl-D, Ctrl-C, Ctrl-Z, limited terminals, and readers that leave."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quarterdeck.cli.exits import Exit
from quarterdeck.cli.terminal.gate_prompt import GatePrompt, InvalidReply, Reply
from tests.support.servers import PATIENCE_S, QD, At, home_at, read_until
from tests.support.terminals import Terminal

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are watched by /proc")
INVITATION = "[y]es, [n]o, [a]lways in this session: "


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[At]:
    """Share one server between the tests. Each test has its own sessions."""
    with home_at(tmp_path_factory.mktemp("typing")) as found:
        found.environment["QUARTERDECK_PORT"] = "0"
        yield found


@pytest.fixture
def terminal(at: At) -> Iterator[Any]:
    open_: list[Terminal] = []

    def begin(*args: str, **more: Any) -> Terminal:
        open_.append(Terminal(at, *args, **more))
        return open_[-1]

    yield begin
    for one in open_:
        one.close()


def session_of(text: str) -> str:
    found = re.search(r"\(session ([0-9a-f]+)\)", text)
    assert found, text
    return found[1]


class TestNothingTypedIsLost:
    def test_half_a_line_when_the_session_ends(self, at: At, terminal: Any):
        screen = terminal("run", "test", "ask rm; say done")
        screen.see(INVITATION)
        screen.press(b"half a thought")
        screen.see("half a thought")
        session = at.api().get(f"/sessions/{session_of(screen.text)}")
        at.api().post(f"/sessions/{session['id']}/approve", {"gate_id": session["gates"][0]["id"]})
        assert screen.ends() == Exit.DONE
        assert "not sent: half a thought" in screen.text

    def test_a_prompt_that_no_session_took(self, at: At, terminal: Any):
        screen = terminal("run", "test", "--mode", "plan")
        screen.see("What should the agent do? ")
        screen.type("say precious")
        assert screen.ends() == Exit.NOT_ALLOWED_NOW
        assert "not sent: say precious" in screen.text

    def test_a_line_that_is_no_text(self, at: At, terminal: Any):
        screen = terminal("run", "test", "question which way")
        screen.see("your answer: ")
        screen.press(b"caf\xe9\n")
        screen.see("not sent: caf\\xe9")
        screen.see("your answer: ", times=2)
        screen.type("left")
        assert screen.ends() == Exit.DONE
        assert "you said left" in screen.text

    def test_a_line_with_a_separator_of_paragraphs_is_one_line(self, at: At, terminal: Any):
        screen = terminal("run", "test", "question which way")
        screen.see("your answer: ")
        screen.type("one\u2028two")
        assert screen.ends() == Exit.DONE
        assert "you said one\u2028two" in screen.text

    def test_after_the_end_of_input_it_is_said_how_to_answer(self, at: At, terminal: Any):
        screen = terminal("run", "test", "ask rm; say done")
        screen.see(INVITATION)
        screen.press(b"\x04")
        screen.see("only following")
        screen.see("waiting for an answer: POST /sessions/")
        session = at.api().get(f"/sessions/{session_of(screen.text)}")
        at.api().post(f"/sessions/{session['id']}/approve", {"gate_id": session["gates"][0]["id"]})
        assert screen.ends() == Exit.DONE


class TestWhatIsAsked:
    def test_an_approval_invites_once_though_something_is_told_beside_it(self, at: At, terminal: Any, tmp_path: Path):
        screen = terminal("run", "demo", "-C", str(tmp_path))
        screen.see(INVITATION)
        screen.type("y")
        screen.see("a number from 1 to 2: ")
        assert screen.text.count(INVITATION) == 1
        screen.type("7")
        screen.see("there is no option 7, only 1 to 2")
        screen.see("a number from 1 to 2: ", times=2)
        screen.interrupt()
        assert screen.ends() == Exit.INTERRUPTED


OPTIONS = [{"id": "a", "label": "Keep it"}, {"id": "b", "label": "Remove it"}]


class TestOptions:
    def asked(self, method: str = "input", kind: str = "question") -> GatePrompt:
        return GatePrompt("g1", kind, [{"text": "Which?", "options": OPTIONS}], method)

    @pytest.mark.parametrize(("line", "answer"), [("1", "a"), (" 2 ", "b"), ("Remove it", "b"), ("b", "b"), ("c", "c")])
    def test_answers(self, line: str, answer: str):
        assert self.asked().take(line) == Reply("respond", {"gate_id": "g1", "answer": answer})

    @pytest.mark.parametrize("line", ["0", "3", "77"])
    def test_a_number_that_is_no_options_is_doubted_once(self, line: str):
        asked = self.asked()
        said = asked.take(line)
        assert isinstance(said, InvalidReply)
        assert f"there is no option {line}, only 1 to 2" in said.reason
        assert asked.take(line) == Reply("respond", {"gate_id": "g1", "answer": line})

    def test_another_number_is_doubted_too(self):
        asked = self.asked()
        assert isinstance(asked.take("3"), InvalidReply)
        assert isinstance(asked.take("4"), InvalidReply)

    @pytest.mark.parametrize("line", ["3", "something else"])
    def test_where_only_an_option_will_do_nothing_else_is_sent(self, line: str):
        asked = self.asked("select", "dialog")
        for _ in range(2):
            assert isinstance(asked.take(line), InvalidReply)
        assert asked.take("2") == Reply("respond", {"gate_id": "g1", "answer": "b"})

    def test_a_number_is_a_text_where_nothing_is_offered(self):
        assert GatePrompt("g1", "question").take("7") == Reply("respond", {"gate_id": "g1", "answer": "7"})


@pytest.mark.skipif(not shutil.which("bash") or not shutil.which("setsid"), reason="needs a shell with jobs")
class TestJobs:
    """Run a shell with job control on its own controlling terminal."""

    def shell(self, terminal: Any) -> Terminal:
        program = ("setsid", "--wait", "--ctty", "bash", "--norc", "--noprofile", "-i")
        shell = terminal(program=program, PS1="ready> ", TERM="dumb")
        shell.see("ready> ")
        return shell

    def test_ctrl_z_and_fg(self, terminal: Any):
        shell = self.shell(terminal)
        shell.type(f"{QD} run test 'ask rm; say done'")
        shell.see(INVITATION)
        shell.press(b"\x1a")
        shell.see("Stopped")
        shell.type("fg")
        shell.see(INVITATION, times=2)
        shell.type("y")
        shell.see("— completed")
        shell.see("ready> ", times=3)
        shell.type("echo left with $?")
        shell.see("left with 0")

    def test_in_the_background_it_leaves_the_keyboard_to_the_shell(self, terminal: Any):
        shell = self.shell(terminal)
        shell.type(f"{QD} run test 'ask rm; say done' &")
        shell.see("waiting for an answer: POST")
        shell.type("echo the shell has $((6 * 7))")
        shell.see("the shell has 42")
        shell.type("jobs")
        shell.see("Running")
        shell.type("fg")
        shell.see(INVITATION)
        shell.type("y")
        shell.see("— completed")

    def test_ctrl_c_by_the_keyboard_stops_the_turn(self, terminal: Any):
        shell = self.shell(terminal)
        shell.type(f"{QD} run test 'say begun; hang'")
        shell.see("begun", times=3)
        shell.press(b"\x03")
        shell.see("— stopped")
        shell.see("ready> ", times=2)
        shell.type("echo left with $?")
        shell.see("left with 130")


class TestPoorTerminals:
    @pytest.mark.parametrize("more", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
    def test_no_colours_where_none_are_wanted(self, terminal: Any, more: dict[str, str]):
        screen = terminal("run", "test", "say hi", **more)
        assert screen.ends() == Exit.DONE
        assert "\x1b" not in screen.text

    def test_letters_that_the_terminal_lacks(self, at: At):
        """The agent gets the same environment, and must still receive every character."""
        done = at.qd("run", "test", "say hé", env={**at.environment, "PYTHONIOENCODING": "ascii"})
        assert (done.returncode, done.stdout) == (Exit.DONE, "h\\xe9 \n")

    def test_json_is_utf8_whatever_the_terminal_has(self, at: At):
        environment = {**at.environment, "PYTHONIOENCODING": "ascii"}
        done = subprocess.run([QD, "run", "test", "say hé", "--json"], env=environment, capture_output=True, timeout=60)
        events = [json.loads(line) for line in done.stdout.decode("utf-8").splitlines()]
        (said,) = [one["blocks"] for one in events if one["type"] == "response_complete"]
        assert said == [{"text": "hé "}]


class TestAReaderThatLeaves:
    def test_the_session_goes_on_and_it_is_said(self, at: At):
        process = at.begin("run", "test", "say begun; ask rm; say more; say done")
        assert read_until(process, process.stdout, "\n") == "begun \n"
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        seen = read_until(process, process.stderr, "waiting for an answer")
        path = f"/sessions/{session_of(seen)}"
        at.api().post(f"{path}/approve", {"gate_id": at.api().get(path)["gates"][0]["id"]})
        seen += process.stderr.read()
        process.wait(PATIENCE_S)
        process.stderr.close()
        assert "Traceback" not in seen
        assert f"(standard output is closed; session {session_of(seen)} keeps running)" in seen


def test_half_a_line_reaches_no_shell(at: At, terminal: Any):
    """The line was meant for the agent. A shell would run it."""
    if not shutil.which("bash") or not shutil.which("setsid"):
        pytest.skip("needs a shell with jobs")
    shell = TestJobs().shell(terminal)
    shell.type(f"{QD} run test 'ask rm; say done'")
    shell.see(INVITATION)
    shell.press(b"touch no")
    shell.see("touch no")
    (session,) = at.api().get("/sessions", limit=1)["sessions"]
    gate = at.api().get(f"/sessions/{session['id']}")["gates"][0]["id"]
    at.api().post(f"/sessions/{session['id']}/approve", {"gate_id": gate})
    shell.see("not sent: touch no")
    shell.see("ready> ", times=2)
    shell.type(f"echo {os.getpid()}")
    shell.see(f"\n{os.getpid()}\n")
