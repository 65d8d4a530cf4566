"""Start and stop real agent processes, and check that no process of a launch is left, no matter what the agent did."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from quarterdeck import events as ev
from quarterdeck.deck.agents.process import AgentProcess, CannotStart
from quarterdeck.deck.validation import NoSuchFolder
from quarterdeck.errors import QuarterdeckError
from quarterdeck.harness.base import Signal
from quarterdeck.harness.driver import NotInstalled, Spawn, Start
from quarterdeck.process.child import INPUT_LIMIT
from quarterdeck.process.identity import Identity, find_by_nonce, is_alive, start_time
from quarterdeck.testing.harness import TestDriver, TestTranslator


class Rig:
    """A scripted agent and all signals received from it."""

    def __init__(self) -> None:
        self.driver = TestDriver()
        self.signals: list[Signal] = []
        self._changed = asyncio.Event()
        self.process: AgentProcess

    def hear(self, signal: Signal) -> None:
        self.signals.append(signal)
        self._changed.set()

    def of(self, src: str, kind: str = "") -> list[Any]:
        found = [signal.data for signal in self.signals if signal.src == src]
        return [one for one in found if not kind or (isinstance(one, dict) and one.get("type") == kind)]

    async def until(self, src: str, kind: str = "", count: int = 1) -> Any:
        async with asyncio.timeout(60):
            while len(self.of(src, kind)) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.of(src, kind)[count - 1]

    def prompt(self, text: str) -> None:
        self.process.write(self.driver.prompt(text, "m1"))


@asynccontextmanager
async def running_agent(
    folder: Path, spawn: Spawn | None = None, environment: dict[str, str] | None = None
) -> AsyncGenerator[Rig]:
    """Start a scripted agent, and kill it at the end."""
    rig = Rig()
    nonce = f"{os.getpid()}-{time.monotonic_ns()}"
    rig.process = AgentProcess.start(
        spawn or rig.driver.spawn(Start(cwd=str(folder))),
        str(folder),
        {**os.environ, **(environment or {})},
        nonce,
        rig.hear,
    )
    try:
        yield rig
    finally:
        rig.process.kill()
        await asyncio.wait([rig.process.exited])


def program(text: str) -> Spawn:
    return Spawn(argv=(sys.executable, "-c", text))


@pytest.fixture(params=["pidfd", "thread"])
def watched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test with both ways to notice an exit: a pidfd and a waiting thread."""
    if request.param == "thread":
        monkeypatch.delattr(os, "pidfd_open")


async def test_it_speaks_and_is_heard(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as rig:
        assert (await rig.until("stdout", "ready"))["session"]
        rig.prompt("say hello there")
        await rig.until("stdout", "turn_end")
        assert [line["delta"] for line in rig.of("stdout", "text")] == ["hello ", "there "]


# --- Exit and stop


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 3", 3), ("crash", -9)])
async def test_its_exit_is_the_last_thing_heard(tmp_path: Path, watched: None, script: str, code: int) -> None:
    async with running_agent(tmp_path) as rig:
        rig.prompt(f"say goodbye; {script}")
        assert await rig.process.exited == code
        assert rig.signals[-1] == Signal("proc", {"event": "exit", "code": code})
        assert rig.of("stdout", "text_end")


@pytest.mark.parametrize("script", ["", "hang", "child 300", "orphan 300", "child 300; orphan 300; hang"])
async def test_a_stop_leaves_nothing_behind(tmp_path: Path, watched: None, script: str) -> None:
    async with running_agent(tmp_path) as rig:
        await rig.until("stdout", "ready")
        if script:
            rig.prompt(script)
            await rig.until("stdout", "turn_start")
            for number in range(script.count("300")):
                await rig.until("stdout", "call_end", number + 1)
        assert await rig.process.stop(rig.driver.quit(), grace=5)
        assert not is_alive(rig.process.identity)
        assert find_by_nonce([rig.process.identity.nonce]) == []
        assert rig.signals[-1].data["event"] == "exit"


#: What the agent ignores, so that the next step of the stop ends it; its exit code; whether its input was closed.
STAGES = [
    ("hang", 0, False),
    ("ignore bye", 0, True),
    ("ignore bye; ignore eof", -15, True),
    ("ignore bye; ignore eof; hang", -15, True),
    ("ignore bye; ignore eof; ignore term; hang", -9, True),
    ("deaf", -9, True),
]


@pytest.mark.parametrize(("script", "code", "closed"), STAGES)
async def test_each_step_of_a_stop_is_taken_only_if_the_one_before_did_not_end_it(
    tmp_path: Path, script: str, code: int, closed: bool
) -> None:
    async with running_agent(tmp_path) as rig:
        await rig.until("stdout", "ready")
        rig.prompt(f"{script}; say done" if "hang" not in script else script.replace("hang", "say done; hang"))
        await rig.until("stdout", "deaf" if script == "deaf" else "text_end")
        assert await rig.process.stop(rig.driver.quit(), grace=5 if code == 0 else 1)
        assert rig.process.exited.result() == code
        assert ({"event": "stdin_closed"} in rig.of("proc")) is closed
        assert rig.of("stdin")[-1] == {"op": "bye"}
        assert not is_alive(rig.process.identity)


async def test_without_a_farewell_the_input_is_closed_at_once(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as rig:
        await rig.until("stdout", "ready")
        assert await rig.process.stop([], grace=5)
        assert rig.process.exited.result() == 0
        assert [one["event"] for one in rig.of("proc")] == ["start", "signal", "stdin_closed", "exit"]
        assert await rig.process.stop(rig.driver.quit(), grace=5)
        # A second stop of an exited process reports nothing.
        assert len(rig.of("proc")) == 4


BARE = (
    "import subprocess; p = subprocess.Popen(['sleep', '300'], env={}, start_new_session=%s); print(p.pid, flush=True)"
)


async def test_what_dropped_the_nonce_goes_with_the_group_when_the_agent_ends_by_itself(
    tmp_path: Path, watched: None
) -> None:
    async with running_agent(tmp_path, program(BARE % False)) as rig:
        child = int(await rig.until("stdout"))
        assert await rig.process.exited == 0
        assert start_time(child) is None


async def test_what_dropped_the_nonce_and_left_the_group_goes_when_the_agent_is_stopped(tmp_path: Path) -> None:
    async with running_agent(tmp_path, program(BARE % True + "; input()")) as rig:
        child = int(await rig.until("stdout"))
        assert await rig.process.stop([], grace=1)
        assert start_time(child) is None


def test_a_pid_that_comes_again_is_somebody_else() -> None:
    mine = start_time(os.getpid())
    assert mine is not None
    assert is_alive(Identity(os.getpid(), mine, ""))
    assert not is_alive(Identity(os.getpid(), mine + 1, ""))
    assert start_time(2**22 + 1) is None


async def test_long_lines_come_whole(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as rig:
        await rig.until("stdout", "ready")
        rig.prompt("flood 60000")
        whole = await rig.until("stdout", "text_end")
        assert len(whole["text"]) > 300_000


# --- Agents that don't read their input


async def test_what_an_agent_does_not_read_waits_up_to_a_limit_and_then_is_refused(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as rig:
        await rig.until("stdout", "ready")
        rig.prompt("deaf")
        await rig.until("stdout", "deaf")
        taken = 0
        while rig.process.write([{"op": "steer", "text": "x" * 1_000_000}]):
            taken += 1
            assert taken < 20
        assert taken >= 4
        assert INPUT_LIMIT < rig.process.unread < INPUT_LIMIT + 2_000_000
        # Refused input isn't recorded.
        assert len(rig.of("stdin")) == taken + 1
        assert await rig.process.stop(rig.driver.quit(), grace=0.5)


async def test_one_large_text_is_always_taken(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as rig:
        await rig.until("stdout", "ready")
        assert rig.process.write(rig.driver.prompt("x" * (INPUT_LIMIT * 3), "m1"))
        assert len((await rig.until("stdout", "text_end"))["text"]) == INPUT_LIMIT * 3 + 1
        assert rig.process.unread == 0


@pytest.mark.parametrize("debug", [False, True])
async def test_an_input_that_breaks_is_no_failure_of_ours(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, debug: bool
) -> None:
    agent = program("import os, time; os.close(0); print('shut', flush=True); time.sleep(300)")
    async with running_agent(tmp_path, agent) as rig:
        asyncio.get_running_loop().set_debug(debug)
        # A busy machine must not make asyncio's debug mode log slow callbacks.
        asyncio.get_running_loop().slow_callback_duration = 60
        await rig.until("stdout")
        tries = 0
        while rig.process.write([{"op": "prompt", "text": "x" * 100_000}]) and tries < 10_000:
            await asyncio.sleep(0)
            tries += 1
        assert is_alive(rig.process.identity)
        assert await rig.process.stop([{"op": "bye"}], grace=0.5)
        assert not rig.process.write([{"op": "prompt"}])
        assert rig.signals[-1].data == {"event": "exit", "code": -15}

    assert [record for record in caplog.records if record.levelno >= logging.WARNING or record.exc_info] == []


async def test_half_a_surrogate_pair_that_an_agent_sent_goes_back_as_it_came(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as rig:
        await rig.until("stdout", "ready")
        rig.prompt("say \ud800 \x00")
        assert (await rig.until("stdout", "text_end"))["text"] == "\ud800 \x00 "


# --- Agents that write too much


async def test_an_agent_waits_while_nobody_reads(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as rig:
        await rig.until("stdout", "ready")
        rig.prompt("flood 60000")
        await rig.until("stdout", "text")
        rig.process.pause()
        rig.process.pause()
        heard = len(rig.signals)
        await asyncio.sleep(0.3)
        assert len(rig.signals) == heard < 60_000
        rig.process.resume()
        await rig.until("stdout", "turn_end")
        assert [line["delta"] for line in rig.of("stdout", "text")] == [f"{number} " for number in range(60_000)]


async def test_one_that_ends_while_nobody_reads_is_heard_to_its_end(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as rig:
        await rig.until("stdout", "ready")
        rig.process.pause()
        rig.prompt("flood 500; stderr alas; exit 3")
        assert await rig.process.exited == 3
        assert len(rig.of("stdout", "text")) == 500
        assert rig.process.last_words == ("alas",)


async def test_a_line_without_an_end_is_left_out_and_said(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as rig:
        await rig.until("stdout", "ready")
        rig.prompt("say before; long 100000000; say after; long 30000000; say last")
        await rig.until("stdout", "turn_end")
        notes = [one for one in rig.of("proc") if one["event"] == "note"]
        assert notes == [{"event": "note", "warning": "dropped a line of more than 32 MiB on the agent's stdout"}]
        said = [len(one) if isinstance(one, str) else one["text"] for one in rig.of("stdout") if _is_said(one)]
        assert said == ["before ", "after ", 30_000_000, "last "]
        assert isinstance(_told(TestTranslator(), rig, "note")[-1], ev.Notice)


def _is_said(one: Any) -> bool:
    return isinstance(one, str) or one["type"] == "text_end"


def _told(translator: TestTranslator, rig: Rig, event: str) -> list[ev.Body]:
    found = [one for one in rig.signals if one.src == "proc" and one.data["event"] == event]
    return [body for one in found for body in translator.feed(one, 0.0)]


async def test_the_last_lines_of_standard_error_are_kept(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as rig:
        await rig.until("stdout", "ready")
        rig.prompt("; ".join(f"stderr line {number}" for number in range(30)) + f"; stderr {'w' * 9000}; exit 3")
        assert await rig.process.exited == 3
        assert rig.process.last_words == (*(f"line {number}" for number in range(11, 30)), "w" * 500)


# --- Launches that fail


def refusal(folder: Path, spawn: Spawn, cwd: str = "", environment: dict[str, str] | None = None) -> QuarterdeckError:
    heard: list[Signal] = []

    async def main() -> None:
        nonce = f"refused-{time.monotonic_ns()}"
        with pytest.raises(QuarterdeckError) as caught:
            AgentProcess.start(
                spawn, cwd or str(folder), os.environ if environment is None else environment, nonce, heard.append
            )
        found.append(caught.value)
        assert find_by_nonce([nonce]) == []

    found: list[QuarterdeckError] = []
    asyncio.run(main())
    assert heard == []
    assert found[0].message
    assert found[0].hint
    return found[0]


def test_what_is_not_there_or_cannot_run_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    (tmp_path / "broken").write_text("#!/not/there\n")
    (tmp_path / "empty").write_bytes(b"\x7fnothing")
    for name in ("broken", "empty"):
        (tmp_path / name).chmod(0o755)
    wrong: list[tuple[tuple[str, ...], str, type[QuarterdeckError], str]] = [
        (("no-such-agent-here",), "", NotInstalled, "agent_not_installed"),
        (("./not-there",), "", NotInstalled, "agent_not_installed"),
        ((str(tmp_path / "text"),), "", CannotStart, "cannot_start_agent"),
        ((str(tmp_path / "broken"),), "", CannotStart, "cannot_start_agent"),
        ((str(tmp_path / "empty"),), "", CannotStart, "cannot_start_agent"),
        ((sys.executable, "a\0b"), "", CannotStart, "cannot_start_agent"),
        ((sys.executable, "x" * 10_000_000), "", CannotStart, "cannot_start_agent"),
        ((sys.executable,), str(tmp_path / "gone"), NoSuchFolder, "no_such_folder"),
        ((sys.executable,), str(tmp_path / "text"), NoSuchFolder, "no_such_folder"),
    ]
    for argv, cwd, kind, code in wrong:
        found = refusal(tmp_path, Spawn(argv=argv), cwd)
        assert (type(found), found.code) == (kind, code), argv[0]


@pytest.mark.parametrize("environment", [{"A=B": "c"}, {"A": "b\0c"}, {"A": "\ud800"}])
def test_an_environment_that_cannot_be_passed_on_is_a_typed_error(tmp_path: Path, environment: dict[str, str]) -> None:
    assert refusal(tmp_path, program("pass"), environment=environment).code == "cannot_start_agent"


async def test_odd_bytes_of_an_environment_arrive(tmp_path: Path) -> None:
    async with running_agent(tmp_path, environment={"QD_ODD": os.fsdecode(b"a\xff\xfe\xc3\xa9")}) as rig:
        await rig.until("stdout", "ready")
        rig.prompt("echo-env QD_ODD")
        assert (await rig.until("stdout", "text_end"))["text"] == "a\\xff\\xfeé "


def test_without_a_free_descriptor_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pidfd_open", full)
        found = refusal(tmp_path, program("import time; time.sleep(300)"))
    assert (found.code, "Too many open files" in found.message) == ("cannot_start_agent", True)
