"""Test the shell tool with real commands and process trees, and check that it leaves none of them running."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from quarterdeck.engine.tools import shell as shell_module
from quarterdeck.engine.tools.base import Outcome
from quarterdeck.engine.tools.files import read_file
from quarterdeck.engine.tools.output import Limits
from quarterdeck.engine.tools.shell import shell, shell_tool
from tests.support.tool_context import TestHands, call, called

SMALL = shell_tool(Limits(head=100, tail=50, live=1_000, total=1_000_000))


@pytest.fixture
def hands(tmp_path: Path) -> TestHands:
    folder = tmp_path / "work"
    folder.mkdir()
    return TestHands(folder)


def alive(pid: int) -> bool:
    """Return whether the process runs. A zombie that waits for init to reap it doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def until(holds: Callable[[], object]) -> None:
    while not holds():  # noqa: ASYNC110  # It depends on another process.
        await asyncio.sleep(0.005)


async def shown(path: Path) -> list[int]:
    """Wait until a command has written its pids, one per line, and a last line `all`. Return the pids."""

    def lines() -> list[str]:
        return path.read_text().split() if path.exists() else []

    await until(lambda: "all" in lines())
    return [int(line) for line in lines() if line != "all"]


class TestWhatItGives:
    def test_output_and_exit_code(self, hands: TestHands) -> None:
        assert call(shell, hands, command="echo one; echo two") == Outcome("one\ntwo\n[exit code 0]")
        assert call(shell, hands, command="echo no; exit 3") == Outcome("no\n[exit code 3]", ok=False)
        assert call(shell, hands, command="true") == Outcome("[exit code 0]")
        assert call(shell, hands, command="kill -SEGV $$").text == "[killed by SIGSEGV]"

    def test_live_by_stream(self, hands: TestHands) -> None:
        outcome = call(shell, hands, command="echo out; echo err >&2")
        assert hands.said("stdout") == "out\n"
        assert hands.said("stderr") == "err\n"
        assert sorted(outcome.text.splitlines()) == ["[exit code 0]", "err", "out"]

    async def test_output_comes_while_it_runs(self, hands: TestHands) -> None:
        task = asyncio.ensure_future(called(shell, hands, command="echo ready; until [ -e go ]; do sleep 0.01; done"))
        await until(lambda: hands.said() == "ready\n")
        assert not task.done()
        (hands.cwd / "go").touch()
        assert (await task).ok

    def test_cwd_environment_and_no_input(self, hands: TestHands) -> None:
        hands.environment = {"PATH": os.environ["PATH"], "GREETING": "hello"}
        text = call(shell, hands, command="pwd; echo $GREETING $HOME.; cat; env | grep -v QUARTERDECK_CALL").text
        assert text.startswith(f"{hands.cwd}\nhello .\n")
        names = set(re.findall(r"^(\w+)=", text, re.MULTILINE))
        assert names == {"PATH", "GREETING", "PWD", "SHLVL", "_"}  # bash sets the last three itself.

    def test_no_descriptor_of_ours_is_inherited(self, hands: TestHands) -> None:
        with (hands.cwd / "held").open("w") as file:
            os.set_inheritable(file.fileno(), False)
            listed = call(shell, hands, command="ls -l /proc/$$/fd; true").text
        assert "held" not in listed
        assert len([line for line in listed.splitlines() if "->" in line]) == 3

    def test_what_the_system_refuses(self, hands: TestHands) -> None:
        assert "can't run the command" in call(shell, hands, command="echo a\0b").text
        assert "Argument list too long" in call(shell, hands, command=": " + "x" * 3_000_000).text
        assert not call(shell, hands, command="ls", timeout=0).ok
        assert "argument command is missing" in call(shell, hands).text

    def test_no_descriptors_are_left_to_watch_it_by(self, hands: TestHands, monkeypatch: pytest.MonkeyPatch) -> None:
        def none_left(pid: int) -> int:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        monkeypatch.setattr(os, "pidfd_open", none_left)
        outcome = call(shell, hands, command="sleep 1000")
        assert "can't run the command: Too many open files" in outcome.text
        assert carriers(hands) == []

    def test_a_folder_that_is_gone(self, hands: TestHands) -> None:
        hands.cwd.rmdir()
        assert "can't run the command: No such file or directory" in call(shell, hands, command="ls").text


class TestMuchOutput:
    def test_head_and_tail_and_the_whole_in_a_file(self, hands: TestHands) -> None:
        outcome = call(SMALL, hands, command="seq 1 1000")
        whole = "".join(f"{n}\n" for n in range(1, 1_001))
        head, tail = whole[:100], whole[-50:]
        left_out = len(whole) - 150
        assert outcome.ok
        assert outcome.text == (
            f"{head}\n[{left_out} characters omitted; read {outcome.path} with read_file to see all of it]\n"
            f"{tail.rstrip()}\n[exit code 0]"
        )
        assert (hands.store / outcome.path).read_text() == whole
        assert (hands.store / outcome.path).stat().st_mode & 0o077 == 0
        assert call(read_file, hands, path=outcome.path, offset=500, limit=1).text.startswith("   500\t500\n")

    @pytest.mark.parametrize("length", [99, 100, 101, 149, 150])
    def test_what_fits_is_shown_whole_and_leaves_no_file(self, hands: TestHands, length: int) -> None:
        outcome = call(SMALL, hands, command=f"head -c {length} /dev/zero | tr '\\0' x")
        assert outcome == Outcome("x" * length + "\n[exit code 0]")
        assert not list(hands.store.rglob("*.txt"))

    def test_bytes_that_are_more_than_characters_leave_no_file(self, hands: TestHands) -> None:
        outcome = call(SMALL, hands, command="for i in $(seq 60); do printf 'é€'; done")
        assert outcome.text == "é€" * 60 + "\n[exit code 0]"
        assert not list(hands.store.rglob("*.txt"))

    def test_watching_has_an_end(self, hands: TestHands) -> None:
        call(SMALL, hands, command="seq 1 10000")
        said = hands.said()
        assert said.endswith("[live output stops here; the result will have more]\n")
        assert len(said) < 1_100

    def test_output_that_never_ends_is_ended(self, hands: TestHands) -> None:
        outcome = call(SMALL, hands, command="yes")
        assert not outcome.ok
        assert outcome.text.endswith("[killed after 1000000 bytes of output]")
        assert 1_000_000 < (hands.store / outcome.path).stat().st_size < 1_200_000

    def test_many_small_writes_are_few_events(self, hands: TestHands) -> None:
        call(shell, hands, command="for i in $(seq 2000); do echo $i; done")
        assert hands.said().splitlines() == [str(n) for n in range(1, 2_001)]
        assert len(hands.outputs) < 500

    def test_binary_output(self, hands: TestHands) -> None:
        outcome = call(SMALL, hands, command=r"printf '\377\000A\n'; head -c 500 /dev/zero")
        assert outcome.text.startswith("��A\n")
        assert "\0" not in outcome.text + hands.said()
        assert (hands.store / outcome.path).read_bytes() == b"\xff\0A\n" + b"\0" * 500

    def test_a_character_cut_in_two_writes(self, hands: TestHands) -> None:
        outcome = call(shell, hands, command=r"printf '\342\202'; sleep 0.1; printf '\254'; printf '\342' >&2")
        assert hands.said() == "€"
        assert hands.said("stderr") == "�"
        assert outcome.ok

    def test_a_call_id_that_would_lead_elsewhere(self, hands: TestHands) -> None:
        hands.call_id = "../../x/\n" + "y" * 400
        outcome = call(SMALL, hands, command="seq 1 1000")
        assert (hands.store / outcome.path).resolve().parent == hands.store / "large_tool_results"


class TestTheEnd:
    def test_its_time_is_over(self, hands: TestHands) -> None:
        outcome = call(shell, hands, command="echo begun; sleep 1000", timeout=0.1)
        assert outcome == Outcome("begun\n[killed after the time limit of 0.1 seconds]", ok=False)

    def test_who_is_about_to_end_was_not_left_behind(self, hands: TestHands, monkeypatch: pytest.MonkeyPatch) -> None:
        """bubblewrap's inner process does this: it closes its pipes and exits a moment after the command."""
        monkeypatch.setattr(shell_module, "_LINGER_S", 30)
        outcome = call(shell, hands, command="(exec >&- 2>&-; sleep 0.1) & echo done")
        assert outcome == Outcome("done\n[exit code 0]")

    def test_what_was_left_in_the_background_ends_with_it(self, hands: TestHands) -> None:
        outcome = call(shell, hands, command="sleep 1000 & echo $! > pid; echo done")
        assert outcome == Outcome("done\n[killed 1 background process]\n[exit code 0]")
        assert not alive(int((hands.cwd / "pid").read_text()))

    def test_the_last_words_of_what_runs_on_are_heard(self, hands: TestHands, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shell_module, "_LINGER_S", 30)
        assert "late" in call(shell, hands, command="(sleep 0.05; echo late) & echo early").text

    def test_a_daemon_that_lets_go_of_everything(self, hands: TestHands) -> None:
        """The daemon has another session, no parents and no pipes. Only the mark in its environment identifies it."""
        command = "setsid bash -c 'sleep 1000 < /dev/null > /dev/null 2>&1 & echo $! > pid' & wait; echo all >> pid"
        assert call(shell, hands, command=command).ok
        assert not alive(int((hands.cwd / "pid").read_text().split()[0]))

    def test_nobody_is_left_as_a_zombie_of_ours(self, hands: TestHands) -> None:
        call(shell, hands, command="sleep 0.01 & true")
        call(shell, hands, command="sleep 1000", timeout=0.05)
        with pytest.raises(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)

    async def test_no_descriptor_is_left_open(self, hands: TestHands) -> None:
        await called(shell, hands, command="true")
        before = len(os.listdir("/proc/self/fd"))
        for command in ("true", "seq 1 100000", "sleep 1000 & true", "exit 4"):
            await called(shell, hands, command=command)
        await called(shell, hands, command="sleep 9", timeout=0.05)
        await called(shell, hands, command="a\0b")
        assert len(os.listdir("/proc/self/fd")) == before


WAIT = "until [ -s pids ]; do sleep 0.01; done"
DEAF_LOOP = 'trap "" TERM HUP INT; echo $$ >> pids; while :; do sleep 0.05; done'
FAMILIES = {
    "a child": "sleep 1000 & echo $! >> pids; echo $$ >> pids",
    "a grandchild": f"bash -c 'sleep 1000 & echo $! >> pids; wait' & {WAIT}",
    "a session of its own": "setsid sleep 1000 & echo $! >> pids",
    "deaf to SIGTERM": f"bash -c '{DEAF_LOOP}' & {WAIT}",
    "deaf, and in a session of its own": f"setsid bash -c '{DEAF_LOOP}' & {WAIT}",
    "an orphan": "(setsid sleep 1000 & echo $! >> pids)",
    "one that forgot its environment": "env -i setsid sleep 1000 & echo $! >> pids",
    "an orphan that forgot its environment": "(env -i sleep 1000 & echo $! >> pids)",
    "one that keeps forking": f"bash -c 'echo $$ >> pids; while :; do sleep 0.01 & done' & {WAIT}",
    "jobs in groups of their own": "set -m; sleep 1000 & echo $! >> pids; sleep 1001 & echo $! >> pids",
}

DEAF = "trap '' TERM; echo $$ > pids; echo all >> pids; while :; do sleep 0.01; done"


class TestCancelling:
    """Every process that a cancelled call started has ended before the call returns."""

    @pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
    async def test_ends_the_whole_tree(self, hands: TestHands, family: str) -> None:
        task = asyncio.ensure_future(called(shell, hands, command=f"{family}\necho all >> pids; sleep 1000"))
        pids = await shown(hands.cwd / "pids")
        assert pids
        assert all(map(alive, pids))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not any(map(alive, pids))
        assert carriers(hands) == []

    def test_a_program_has_a_moment_to_clear_up(self, hands: TestHands, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shell_module, "_CANCEL_GRACE_S", 30)
        command = "trap 'rm lock; exit' TERM; touch lock; echo all > pids; while :; do sleep 0.001; done"

        async def cancelled() -> None:
            task = asyncio.ensure_future(called(shell, hands, command=command, timeout=3_000))
            await shown(hands.cwd / "pids")
            task.cancel()
            await asyncio.wait([task])

        asyncio.run(cancelled())
        assert os.listdir(hands.cwd) == ["pids"]

    async def test_twice_is_no_way_out(self, hands: TestHands) -> None:
        task = asyncio.ensure_future(shell.run({"command": DEAF}, hands))
        (pid,) = await shown(hands.cwd / "pids")
        task.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert not alive(pid)

    def test_a_loop_that_is_closed_in_the_middle_of_it(self, hands: TestHands) -> None:
        pids: list[int] = []

        async def left() -> None:
            task = asyncio.ensure_future(shell.run({"command": DEAF}, hands))
            pids.extend(await shown(hands.cwd / "pids"))
            task.cancel()
            # The cancellation starts, and the loop is closed before it finishes.
            await asyncio.sleep(0)

        asyncio.run(left())
        (pid,) = pids
        # The process was killed without waiting for its exit.
        until = time.monotonic() + 30
        while alive(pid):
            assert time.monotonic() < until
            time.sleep(0.005)

    def test_others_are_left_alone(self, hands: TestHands) -> None:
        """The other process has the same name, user and folder."""
        other = subprocess.Popen(["sleep", "1000"], cwd=hands.cwd)
        try:
            call(shell, hands, command="sleep 1000", timeout=0.05)
            assert other.poll() is None
        finally:
            other.kill()
            other.wait()

    async def test_two_at_once_end_apart(self, hands: TestHands) -> None:
        first = asyncio.ensure_future(called(shell, hands, command="echo $$ > pids; echo all >> pids; sleep 1000"))
        await shown(hands.cwd / "pids")
        second = asyncio.ensure_future(called(shell, hands, command="until [ -e go ]; do sleep 0.01; done; echo ok"))
        await asyncio.sleep(0.02)
        first.cancel()
        await asyncio.wait([first])
        (hands.cwd / "go").touch()
        assert (await second).text == "ok\n[exit code 0]"

    def test_on_the_loop_of_the_product(self, hands: TestHands) -> None:
        import uvloop

        async def cancelled() -> None:
            assert (await called(shell, hands, command="echo hi")).text == "hi\n[exit code 0]"
            task = asyncio.ensure_future(called(shell, hands, command="echo $$ > pids; echo all >> pids; sleep 1000"))
            (pid,) = await shown(hands.cwd / "pids")
            task.cancel()
            await asyncio.wait([task])
            assert not alive(pid)

        run(cancelled, uvloop.new_event_loop)


def run(work: Callable[[], Awaitable[None]], factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(work())  # pyright: ignore[reportArgumentType]


def carriers(hands: TestHands) -> list[str]:
    """Return the command lines of all processes that still run in the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and entry.name != str(os.getpid()):
            try:
                if (entry / "cwd").readlink() == hands.cwd and alive(int(entry.name)):
                    found.append((entry / "cmdline").read_text())
            except OSError:
                continue
    return found


class TestTheSandboxThatIsNot:
    def test_one_that_nobody_knows(self, hands: TestHands) -> None:
        hands.sandbox = "castle"
        assert "unknown sandbox 'castle'" in call(shell, hands, command="touch x").text
        assert not (hands.cwd / "x").exists()

    def test_not_installed(self, hands: TestHands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        hands.sandbox = "bwrap"
        monkeypatch.setenv("PATH", str(tmp_path))
        outcome = call(shell, hands, command="touch x")
        assert not outcome.ok
        assert "bwrap isn't installed" in outcome.text
        assert "install the package bubblewrap" in outcome.text
        assert not (hands.cwd / "x").exists()

    def test_installed_and_not_allowed(self, hands: TestHands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        program = tmp_path / "bwrap"
        program.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
        program.chmod(0o755)
        hands.sandbox = "bwrap"
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        outcome = call(shell, hands, command="touch x")
        assert "doesn't work here: bwrap: No permissions to create new namespace" in outcome.text
        assert not (hands.cwd / "x").exists()


def no_bubblewrap() -> str:
    program = shutil.which("bwrap")
    if program is None:
        return "bubblewrap is not installed on this machine"
    trouble = shell_module._find_bwrap_problem(program)
    return f"bubblewrap cannot make namespaces on this machine: {trouble}" if trouble else ""


@pytest.mark.skipif(bool(no_bubblewrap()), reason=no_bubblewrap() or "it works")
class TestBubblewrap:
    @pytest.fixture
    def boxed(self, hands: TestHands) -> TestHands:
        hands.sandbox = "bwrap"
        return hands

    def test_the_working_directory_can_be_written(self, boxed: TestHands) -> None:
        assert call(shell, boxed, command="pwd; echo hi > a.txt") == Outcome(f"{boxed.cwd}\n[exit code 0]")
        assert (boxed.cwd / "a.txt").read_text() == "hi\n"

    def test_everything_else_is_read_only(self, boxed: TestHands) -> None:
        outside = boxed.cwd.parent / "outside"
        outside.mkdir()
        for place in (outside, Path("/usr"), Path("/etc"), Path("/")):
            outcome = call(shell, boxed, command=f"touch {place}/qd-test")
            assert not outcome.ok
            assert not (place / "qd-test").exists()

    def test_allowed_folders_can_be_written(self, boxed: TestHands) -> None:
        allowed = boxed.cwd.parent / "allowed"
        allowed.mkdir()
        boxed.allowed_paths = (allowed, boxed.cwd.parent / "not there")
        assert call(shell, boxed, command=f"echo hi > {allowed}/a").ok
        assert (allowed / "a").read_text() == "hi\n"

    def test_tmp_is_its_own(self, boxed: TestHands) -> None:
        name = f"qd-{os.getpid()}-{boxed.cwd.parent.name}"
        assert call(shell, boxed, command=f"echo hi > /tmp/{name} && cat /tmp/{name}").ok
        assert not Path("/tmp", name).exists()

    def test_it_sees_no_other_process_and_can_signal_none(self, boxed: TestHands) -> None:
        listed = call(shell, boxed, command="echo /proc/[0-9]*").text
        assert len(re.findall(r"/proc/\d+", listed)) < 5
        assert not call(shell, boxed, command=f"kill -0 {os.getpid()}").ok

    def test_a_daemon_ends_with_it(self, boxed: TestHands) -> None:
        command = "setsid sleep 1234567 > /dev/null 2>&1 < /dev/null & disown; echo ok"
        assert "ok" in call(shell, boxed, command=command).text
        assert carriers(boxed) == []

    async def test_cancelling_ends_all(self, boxed: TestHands) -> None:
        command = "trap '' TERM; setsid sleep 1000 & echo all > pids; while :; do sleep 0.05; done"
        task = asyncio.ensure_future(called(shell, boxed, command=command))
        await shown(boxed.cwd / "pids")
        assert carriers(boxed)
        task.cancel()
        await asyncio.wait([task])
        assert carriers(boxed) == []

    def test_exit_codes_and_streams_come_through(self, boxed: TestHands) -> None:
        outcome = call(shell, boxed, command="echo e >&2; exit 7")
        assert outcome == Outcome("e\n[exit code 7]", ok=False)
        assert boxed.said("stderr") == "e\n"


def test_a_killed_caller_can_be_cleared_up_by_others(hands: TestHands) -> None:
    """The mark also names outer calls, so a search for the outer call finds commands of its commands."""
    inner = (
        "import asyncio, sys; sys.path.insert(0, sys.argv[1]); from tests.support.tool_context import *; "
        "from quarterdeck.engine.tools.shell import shell; from pathlib import Path; import os; "
        "h = TestHands(Path('.')); h.environment = dict(os.environ); "
        "print(call(shell, h, command='env | grep QUARTERDECK_CALL').text)"
    )
    root = str(Path(__file__).parents[4])
    hands.environment = dict(os.environ)
    outcome = call(shell, hands, command=f'{sys.executable} -c "{inner}" {root}')
    assert re.search(r"_QUARTERDECK_CALL=[0-9a-f]{16}\.[0-9a-f]{16}\n", outcome.text), outcome.text
