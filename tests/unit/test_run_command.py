"""Test `qd run` with a real server and real agents: its output, typed input and exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quarterdeck.cli.exits import Exit
from tests.support.servers import PATIENCE_S, At, home_at, read_until
from tests.support.terminals import Terminal

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are watched by /proc")


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[At]:
    """Share one server between the tests. Each test has its own sessions."""
    with home_at(tmp_path_factory.mktemp("run")) as found:
        found.environment["QUARTERDECK_PORT"] = "0"
        yield found


@pytest.fixture
def terminal(at: At) -> Iterator[Any]:
    open_: list[Terminal] = []

    def begin(*args: str) -> Terminal:
        open_.append(Terminal(at, "run", "test", *args))
        return open_[-1]

    yield begin
    for one in open_:
        one.close()


def session_of(text: str) -> str:
    found = re.search(r"\(session ([0-9a-f]+)\)", text)
    assert found, text
    return found[1]


def view_of(at: At, text: str) -> dict[str, Any]:
    return at.api().get(f"/sessions/{session_of(text)}")


class TestPlain:
    def test_a_whole_session_without_a_terminal(self, at: At, tmp_path: Path):
        """The command starts the server. Replies go to standard output, everything else to standard error."""
        done = at.qd("run", "test", "think hm; say hello there; tool ls; fail it; say bye", "-C", str(tmp_path))
        assert (done.returncode, done.stdout) == (Exit.DONE, "hello there \nbye \n"), done.stderr
        lines = done.stderr.splitlines()
        assert lines[0].startswith(f"— test in {tmp_path} (session ")
        told = ["> think hm; say hello there; tool ls; fail it; say bye", "~ hm", "* ls ls", "  | done", "* it"]
        assert lines[1:-1] == [*told, "  failed: it broke"]
        assert re.fullmatch(r"— completed, \d+ s \(session [0-9a-f]+\)", lines[-1])

    def test_both_streams_in_one_file_stand_in_order(self, at: At):
        done = at.qd("run", "test", "say one; tool ls; say two", stderr=subprocess.STDOUT)
        assert "one \n* ls ls\n  | done\ntwo \n—" in done.stdout

    def test_the_prompt_from_standard_input(self, at: At):
        done = at.qd("run", "test", "-", stdin=_file_with("say piped\n"))
        assert (done.returncode, done.stdout) == (Exit.DONE, "piped \n")

    def test_detached_it_says_the_id_and_nothing_else(self, at: At):
        done = at.qd("run", "test", "hang", "-d", "-n", "in the back")
        assert done.returncode == Exit.DONE
        view = at.api().get(f"/sessions/{done.stdout.strip()}")
        assert (view["name"], done.stderr) == ("in the back", "")

    def test_events_as_json(self, at: At):
        # Wait before the text: the log drops deltas of a finished text, and the client must read them before that.
        done = at.qd("run", "test", "sleep 2; say hello", "--json")
        events = [json.loads(line) for line in done.stdout.splitlines()]
        assert [one["index"] for one in events] == list(range(1, len(events) + 1))
        assert {"session_opened", "message_delta", "agent_end"} <= {one["type"] for one in events}
        assert (done.returncode, done.stderr) == (Exit.DONE, "")

    def test_what_the_agent_gets(self, at: At, tmp_path: Path):
        """The agent gets the folder, the model, the caller's environment and its own flags."""
        image = tmp_path / "dot.png"
        image.write_bytes(b"\x89PNG\r\n\x1a\n")
        environment = {**at.environment, "FLOWER": "rose"}
        options = ["-C", str(tmp_path), "-m", "other", "--mode", "auto", "--record", "-i", str(image)]
        done = at.qd("run", "test", "echo-env FLOWER", *options, "--", "--resume", "given-1", env=environment)
        assert done.stdout == "rose \n", done.stderr
        view = view_of(at, done.stderr)
        assert (view["cwd"], view["model"], view["mode"]) == (str(tmp_path), "other", "auto")
        assert view["native_session_id"] == "given-1"
        assert (at.place.traces / f"{view['id']}.jsonl").exists()
        (taken,) = at.api().get(f"/sessions/{view['id']}/events", types="prompt_received")["events"]
        assert [one["media_type"] for one in taken["images"]] == ["image/png"]

    def test_failed_work_is_exit_1(self, at: At):
        done = at.qd("run", "test", "error no luck")
        assert done.returncode == Exit.FAILED
        assert "failed (api): no luck" in done.stderr
        assert "— error" in done.stderr

    def test_an_agent_that_does_not_start_is_exit_1(self, at: At):
        done = at.qd("run", "test", "say hi", env={**at.environment, "QD_TEST_BAD_START": "3"})
        assert done.returncode == Exit.FAILED
        assert "QD_TEST_BAD_START is set" in done.stderr
        assert "not read by the agent: say hi" in done.stderr

    @pytest.mark.parametrize(
        ("args", "code", "said"),
        [
            (["nobody"], Exit.NO_SUCH_THING, "there is no agent 'nobody'"),
            (["nobody", "say hi"], Exit.NO_SUCH_THING, "there is no agent 'nobody'"),
            (["@nobody", "say hi"], Exit.NO_SUCH_THING, "there is no profile 'nobody'"),
            (["test"], Exit.WRONG_USE, "the prompt is missing"),
            (["test", " "], Exit.WRONG_USE, "the prompt is empty"),
            (["test", "say hi", "-C", "/nowhere"], Exit.NO_SUCH_THING, "there is no folder /nowhere"),
            (["test", "say hi", "-i", "text.txt"], Exit.WRONG_USE, "isn't an image"),
            (["test", "say hi", "-i", "gone.png"], Exit.NO_SUCH_THING, "gone.png can't be read"),
            (["test", "say hi", "--mode", "plan"], Exit.NOT_ALLOWED_NOW, "can't work in mode plan"),
            (["test", "say hi", "--worktree"], Exit.WRONG_USE, "--worktree"),
        ],
    )
    def test_what_cannot_be_is_said_and_nothing_is_made(self, at: At, args: list[str], code: int, said: str):
        # This run starts the server.
        at.qd("run", "test", "say hi")
        before = at.api().get("/sessions", limit=200)["badge"]
        done = at.qd("run", *args)
        assert done.returncode == code, done.stderr
        assert said in done.stderr
        assert at.api().get("/sessions", limit=200)["badge"] == before

    def test_a_profile(self, at: At):
        profile = '[profile.short]\nagent = "test"\nmode = "auto"\nmodel = "small"\npreamble = "say first"\n'
        at.place.config.write_text(profile, encoding="utf-8")
        try:
            done = at.qd("run", "@short", "say second", "-m", "big")
        finally:
            at.place.config.unlink()
        assert done.stdout.split() == ["first", "second"]
        view = view_of(at, done.stderr)
        assert (view["mode"], view["model"]) == ("auto", "big")


class TestTheDefault:
    """Without AGENT, `qd run` starts the first agent that is logged in, or else the demo with a notice."""

    def test_the_demo_with_a_notice(self, at: At):
        environment = {name: value for name, value in at.environment.items() if not name.endswith("_API_KEY")}
        done = at.qd("run", "-d", "two words", env=environment)
        view = at.api().get(f"/sessions/{done.stdout.strip()}")
        assert (view["agent"], "starting the demo" in done.stderr) == ("demo", True)

    def test_the_built_in_agent_where_the_caller_has_a_key(self, at: At):
        nowhere = {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}
        done = at.qd("run", "-d", "two words", env={**at.environment, **nowhere})
        view = at.api().get(f"/sessions/{done.stdout.strip()}")
        assert (view["agent"], done.stderr) == ("builtin", "")
        at.api().post(f"/sessions/{view['id']}/cancel")


class TestTheDemo:
    def test_it_begins_by_itself(self, at: At, tmp_path: Path):
        """Run `qd run demo` on a terminal, from its first prompt to its end."""
        screen = Terminal(at, "run", "demo", "-C", str(tmp_path))
        try:
            screen.see("> Show me what you can do.")
            screen.see("? Allow `mkdir -p quarterdeck-demo/kept")
            screen.see("[y]es, [n]o")
            screen.type("y")
            screen.see("your answer, or a number from 1 to 2: ")
            screen.type("2")
            screen.see("? Allow `rm -r quarterdeck-demo")
            shown = screen.text.index("Allow `rm -r")
            screen.see("[y]es, [n]o", times=screen.text[:shown].count("[y]es, [n]o") + 1)
            screen.type("y")
            assert screen.ends() == Exit.DONE, screen.text
        finally:
            screen.close()
        assert "That was the tour." in screen.text
        assert list(tmp_path.iterdir()) == []


def _file_with(text: str) -> Any:
    reader, writer = os.pipe()
    os.write(writer, text.encode())
    os.close(writer)
    return reader


class TestGatesWithoutATerminal:
    def test_it_says_how_and_waits(self, at: At):
        process = at.begin("run", "test", "ask rm; question which one; say done")
        seen = read_until(process, process.stderr, "waiting for an answer")
        gate = view_of(at, seen)["gates"][0]["id"]
        assert f'POST /sessions/{session_of(seen)}/approve or /reject with {{"gate_id": "{gate}"}}' in seen
        wire = at.api()
        path = f"/sessions/{session_of(seen)}"
        wire.post(f"{path}/approve", {"gate_id": gate})
        read_until(process, process.stderr, "/respond")
        wire.post(f"{path}/respond", {"gate_id": wire.get(path)["gates"][0]["id"], "answer": "the left"})
        out, _ = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, out) == (Exit.DONE, "you said the left \ndone \n")


class TestATerminal:
    def test_approvals_are_answered_in_place(self, at: At, terminal: Any):
        screen = terminal("ask first; ask second; ask third; say done")
        screen.see("[y]es, [n]o, [a]lways in this session: ")
        screen.type("y")
        screen.see("[y]es, [n]o", times=2)
        screen.type("n not today")
        screen.see("[y]es, [n]o", times=3)
        screen.type("a")
        assert screen.ends() == Exit.DONE
        assert "approved" in screen.text
        assert "done" in screen.text
        events = at.api().get(f"/sessions/{session_of(screen.text)}/events", types="approval_resolved")["events"]
        assert [one["status"] for one in events] == ["approved", "rejected", "approved"]
        assert events[1]["reason"] == "not today"

    def test_questions_and_dialogs(self, at: At, terminal: Any):
        screen = terminal("question which way; dialog confirm Sure; dialog input Name")
        screen.see("your answer: ")
        screen.type("to the left")
        screen.see("you said to the left")
        screen.see("[y]es, [n]o: ")
        screen.type("y")
        screen.see("you chose True")
        screen.see("your answer: ", times=2)
        screen.type("Ann")
        assert screen.ends() == Exit.DONE
        assert "you chose Ann" in screen.text

    def test_a_line_that_is_no_answer_is_a_message_and_the_question_stays(self, at: At, terminal: Any):
        screen = terminal("ask rm; say done")
        screen.see("[y]es, [n]o")
        screen.type("say later")
        screen.see("(queued")
        screen.see("[y]es, [n]o", times=2)
        screen.type("yes")
        assert screen.ends() == Exit.DONE
        assert screen.text.index("done") < screen.text.rindex("later")

    def test_a_line_during_work_steers_it(self, at: At, terminal: Any):
        screen = terminal("ask rm; sleep 0.2; say done")
        screen.see("[y]es, [n]o")
        screen.type("y")
        screen.see("approved")
        screen.type("say and this")
        screen.see("(steered")
        assert screen.ends() == Exit.DONE
        assert "the agent has read your message" in screen.text

    def test_ctrl_c_stops_the_turn(self, at: At, terminal: Any):
        screen = terminal("say begun; hang")
        screen.see("begun", times=2)
        screen.interrupt()
        assert screen.ends() == Exit.INTERRUPTED
        assert "stopping the turn; press Ctrl-C again" in screen.text
        assert view_of(at, screen.text)["phase"] == "stopped"

    def test_ctrl_c_twice_leaves_and_the_session_goes_on(self, at: At, terminal: Any):
        """An agent that ignores its input can't be stopped at once, and the user doesn't have to wait for it."""
        screen = terminal("say begun; deaf")
        screen.see("begun", times=2)
        screen.interrupt()
        screen.see("stopping the turn")
        screen.interrupt()
        assert screen.ends() == Exit.INTERRUPTED
        assert "keeps running)" in screen.text

    def test_what_waits_is_given_back_by_a_stop(self, at: At, terminal: Any):
        screen = terminal("ask rm")
        screen.see("[y]es, [n]o")
        screen.type("say precious words")
        screen.see("(queued")
        screen.interrupt()
        assert screen.ends() == Exit.INTERRUPTED
        assert "not read by the agent: say precious words" in screen.text

    def test_a_yes_that_comes_too_late_is_no_message(self, at: At, terminal: Any):
        """Another client decided the approval while the user typed."""
        screen = terminal("ask rm; say begun; hang")
        screen.see("[y]es, [n]o")
        session = view_of(at, screen.text)
        at.api().post(f"/sessions/{session['id']}/approve", {"gate_id": session["gates"][0]["id"]})
        screen.see("approved")
        screen.type("y")
        screen.see("no approval is open; not sent: y")
        screen.interrupt()
        assert screen.ends() == Exit.INTERRUPTED, screen.text

    def test_the_terminal_is_closed_and_the_work_goes_on(self, at: At, terminal: Any):
        screen = terminal("ask rm; say done")
        screen.see("[y]es, [n]o")
        os.write(screen.master, b"\x04")
        screen.see("only following")
        session = view_of(at, screen.text)
        at.api().post(f"/sessions/{session['id']}/approve", {"gate_id": session["gates"][0]["id"]})
        assert screen.ends() == Exit.DONE

    def test_an_agent_cannot_rule_the_terminal(self, at: At, terminal: Any):
        screen = terminal("say \x1b]2,evil\x07 text \x1b[2J")
        assert screen.ends() == Exit.DONE
        reply = screen.text.split("\n", 2)[2]
        assert "\\x1b]2,evil\\x07 text \\x1b[2J" in reply
        assert "\x1b]" not in screen.text
        assert "\x1b[2J" not in screen.text

    def test_a_prompt_is_asked_for(self, at: At, terminal: Any):
        screen = terminal()
        screen.see("What should the agent do? ")
        screen.type("say typed")
        assert screen.ends() == Exit.DONE
        assert "typed" in screen.text


class TestAServerThatGoes:
    def test_a_restart_is_waited_for_and_nothing_is_missed(self, tmp_path: Path):
        with home_at(tmp_path) as at:
            at.environment["QUARTERDECK_PORT"] = "0"
            process = at.begin("run", "test", "sleep 2; say begun; hang", "--json")
            seen = read_until(process, process.stdout, '"type": "response_complete"')
            events = [json.loads(line) for line in seen.splitlines()]
            light = at.light()
            assert at.qd("restart", "--force").returncode == 0
            out, err = process.communicate(timeout=PATIENCE_S)
            events += [json.loads(line) for line in out.splitlines()]
            assert at.light() != light
            assert [one["index"] for one in events] == list(range(1, len(events) + 1)), "none missed, none twice"
            assert "session_suspended" in {one["type"] for one in events}
            assert "lost the server" in err
            assert "reconnected" in err
            assert process.returncode == Exit.FAILED

    def test_a_server_that_was_killed_and_stays_away(self, tmp_path: Path):
        with home_at(tmp_path) as at:
            at.environment["QUARTERDECK_PORT"] = "0"
            process = at.begin("run", "test", "say begun; hang")
            assert read_until(process, process.stdout, "\n") == "begun \n"
            light = at.light()
            for one in filter(None, (light.keeper, light.server)):
                os.kill(one.pid, signal.SIGKILL)
            _, err = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == Exit.UNREACHABLE
            assert "The session's log is safe" in err
