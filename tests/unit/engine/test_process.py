"""Test `python -m quarterdeck.engine` as a real process, with JSON lines."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quarterdeck.testing.script import Fault, Script, ScriptedCall, Step
from tests.support.scripted_model import KEY, serving, variables
from tests.support.servers import PATIENCE_S, eventually

SLEEP = "sleep 300.25"
MODEL = Script(
    scenario={
        "answer": (Step(text="Hello."),),
        "shell": (Step(calls=(ScriptedCall(name="shell", args={"command": SLEEP}),)), Step(text="Done.")),
        "fails": (Step(faults=(Fault(kind="http", status=401, times=0, message=f"bad key {KEY}"),)),),
    },
    aux=Step(text="In short: hello."),
)


class Engine:
    """One agent process. All its output is recorded."""

    def __init__(self, cwd: Path, environment: dict[str, str]) -> None:
        kept = {name: os.environ[name] for name in ("PATH",)}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "quarterdeck.engine"],
            cwd=cwd,
            env={**kept, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.cwd = cwd
        self.events: list[dict[str, Any]] = []
        self.raw = b""
        self._read = 0

    def say(self, op: str, **fields: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"op": op, **fields}).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self, kind: str, times: int = 1) -> dict[str, Any]:
        """Wait for an event of this type, confirming durability whenever the process asks for it."""
        until = time.monotonic() + PATIENCE_S
        assert self.process.stdout is not None
        while sum(one["type"] == kind for one in self.events) < times:
            ready = select.select([self.process.stdout], [], [], max(0.0, until - time.monotonic()))[0]
            data = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            assert data, f"no {kind}: {self.events[-5:]} {self.process.poll()}"
            self._take(data)
        return [one for one in self.events if one["type"] == kind][times - 1]

    def sleepers(self) -> list[str]:
        """Read pending output, confirming durability if asked, and return the pids of sleeping commands."""
        assert self.process.stdout is not None
        while not self.process.stdout.closed and select.select([self.process.stdout], [], [], 0)[0]:
            data = os.read(self.process.stdout.fileno(), 65536)
            self._take(data)
            if not data:
                break
        return [pid for pid in os.listdir("/proc") if pid.isdigit() and self._sleeps(pid)]

    def _sleeps(self, pid: str) -> bool:
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            return line == SLEEP and Path(f"/proc/{pid}/cwd").readlink() == self.cwd
        except OSError:
            return False

    def _take(self, data: bytes) -> None:
        self.raw += data
        *whole, _ = self.raw[self._read :].split(b"\n")
        for line in whole:
            self._read += len(line) + 1
            told = json.loads(line)
            if "keep" not in told:
                self.events += told.get("events", [told])
            elif self.process.stdin is not None:
                self.say("kept", n=told["keep"])

    def ends(self) -> tuple[int, str]:
        assert self.process.stdin is not None
        if not self.process.stdin.closed:
            self.process.stdin.close()
        self.process.stdin = None
        out, err = self.process.communicate(timeout=PATIENCE_S)
        self._take(out)
        return self.process.returncode, err.decode()


@pytest.fixture(scope="module")
def variables_of() -> Iterator[Any]:
    with serving(MODEL) as model:
        yield lambda folder: variables(model, str(folder))


@pytest.fixture
def engine(tmp_path: Path, variables_of: Any) -> Iterator[Engine]:
    one = Engine(tmp_path, variables_of(tmp_path))
    yield one
    if one.process.poll() is None:
        one.process.kill()
        one.process.communicate()


def opened(engine: Engine, **fields: Any) -> Engine:
    engine.say("open", model="anthropic:m", **fields)
    engine.hear("agent_ready")
    return engine


def test_from_open_to_the_end_of_its_input(engine: Engine) -> None:
    opened(engine).say("prompt", id="p1", text="script:answer")
    assert engine.hear("prompt_received")["message_id"] == "p1"
    assert engine.hear("agent_end").get("outcome", "completed") == "completed"
    assert engine.ends() == (0, "")
    kinds = {one["type"] for one in engine.events}
    assert not kinds & {"session_opened", "session_suspended", "prompt_queued", "turn_restored"}


def test_it_goes_on_only_when_what_it_said_is_kept(engine: Engine) -> None:
    """Without a confirmation that the prompt is durable, not even the first request is sent."""
    engine.say("open", model="anthropic:m")
    assert engine.process.stdout is not None
    lines = [json.loads(engine.process.stdout.readline()) for _ in range(2)]
    assert (lines[0]["type"], lines[1]) == ("agent_ready", {"keep": 1})
    engine.say("prompt", id="p1", text="script:answer")
    assert not select.select([engine.process.stdout], [], [], 0.3)[0]
    engine.say("kept", n=1)
    engine.hear("prompt_received")
    engine.hear("agent_end")


def test_no_key_is_in_any_line(engine: Engine) -> None:
    opened(engine).say("prompt", id="p1", text="script:fails")
    assert engine.hear("turn_failed")["kind"] == "auth"
    _, err = engine.ends()
    assert KEY not in engine.raw.decode() + err


def test_without_a_model_it_says_what_to_do(tmp_path: Path) -> None:
    engine = Engine(tmp_path, {"HOME": str(tmp_path), "QUARTERDECK_HOME": str(tmp_path)})
    engine.say("open")
    code, err = engine.ends()
    assert code == 1
    assert "ANTHROPIC_API_KEY" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("first", [b"{\n", b'{"op": "prompt"}\n', b""])
def test_a_first_line_that_opens_nothing(tmp_path: Path, variables_of: Any, first: bytes) -> None:
    engine = Engine(tmp_path, variables_of(tmp_path))
    assert engine.process.stdin is not None
    engine.process.stdin.write(first)
    code, err = engine.ends()
    assert (code, "Traceback" in err) == (1 if b"prompt" in first else 0, False)


def test_what_it_does_not_understand_is_said_and_it_goes_on(engine: Engine) -> None:
    opened(engine).say("dance")
    assert "dance" in engine.hear("notice")["text"]
    engine.say("prompt", id="p1", text="x", images=[{"no": "image"}])
    assert "invalid prompt command" in engine.hear("notice", 2)["text"]
    engine.say("mode", mode="wild")
    assert "unknown mode 'wild'" in engine.hear("notice", 3)["text"]
    engine.say("prompt", id="p2", text="script:answer")
    engine.hear("agent_end")


def test_model_and_compaction(engine: Engine) -> None:
    opened(engine).say("model", model="anthropic:other")
    assert engine.hear("model_switched")["to"] == "anthropic:other"
    for number in range(5):
        engine.say("prompt", id=f"p{number}", text="script:answer")
        engine.hear("agent_end", number + 1)
    engine.say("compact")
    assert engine.hear("compact_end")["summary"] == "In short: hello."


def test_a_command_of_the_users_own(engine: Engine) -> None:
    opened(engine).say("bash", id="b1", command="echo out; echo err >&2; exit 3")
    end = engine.hear("bash_end")
    assert (end["bash_id"], end["exit_code"], end["output"]) == ("b1", 3, "out\nerr\n")


@pytest.mark.parametrize("mode", ["bypass", ""])
def test_an_approval_and_an_interrupt(engine: Engine, mode: str) -> None:
    opened(engine, mode=mode).say("prompt", id="p1", text="script:shell")
    if not mode:
        ref = engine.hear("approval_required")["gate"]["ref"]
        engine.say("answer", ref=ref, status="approved")
    engine.hear("tool_execution_start")
    eventually(engine.sleepers)
    engine.say("interrupt", kill_tools="killable")
    engine.hear("tool_killed")
    engine.hear("agent_abort")
    eventually(lambda: not engine.sleepers())


@pytest.mark.parametrize("by", ["bye", "end of input", "SIGTERM"])
def test_its_end_leaves_nothing(engine: Engine, by: str) -> None:
    opened(engine, mode="bypass").say("prompt", id="p1", text="script:shell")
    engine.hear("tool_execution_start")
    eventually(engine.sleepers)
    if by == "bye":
        engine.say("bye")
    elif by == "SIGTERM":
        engine.process.terminate()
    assert engine.ends()[0] == 0
    assert not engine.sleepers()
    assert engine.hear("agent_abort")["reason"] == "stopped"


def test_a_session_goes_on_and_a_call_that_was_cut_off_is_told(tmp_path: Path) -> None:
    with serving(MODEL) as model:
        engine = Engine(tmp_path, variables(model, str(tmp_path)))
        call = {"kind": "tool_call", "call_id": "c1", "name": "shell", "args": {"command": "x"}}
        events = [
            {"type": "prompt_received", "text": "before", "message_id": "p0"},
            {"type": "response_complete", "message_id": "m0", "blocks": [call]},
            {"type": "tool_execution_start", "name": "shell", "call_id": "c1"},
            {"type": "of_a_newer_release"},
            {"type": "todo_change", "todos": [{"id": "1", "content": "go on"}]},
        ]
        engine.say("restore", session="n1", model="anthropic:m", events=events)
        assert engine.hear("agent_ready")["native_session_id"] == "n1"
        engine.say("prompt", id="p1", text="script:answer")
        engine.hear("agent_end")
        assert engine.ends()[0] == 0
        (asked,) = model.requests
        roles = [(one["role"], one["content"]) for one in asked.body["messages"]]
        assert [role for role, _ in roles] == ["user", "assistant", "user"]
        assert "interrupted" in json.dumps(roles[2][1])
        assert [one for one in engine.events if one["type"].startswith("tool_")] == []
