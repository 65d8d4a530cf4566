"""Run child processes: their pipes, their background processes, and their end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from quarterdeck.process.child import Child, Stream
from quarterdeck.process.identity import Identity, is_alive, start_time

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="background processes are found in /proc")


class Output:
    """The output of a child by stream, and the streams that have ended."""

    def __init__(self) -> None:
        self.data: dict[Stream, bytes] = {"stdout": b"", "stderr": b""}
        self.ended: list[Stream] = []

    def add(self, data: bytes, stream: Stream) -> None:
        self.data[stream] += data
        if not data:
            self.ended.append(stream)


def spawn(folder: Path, output: Output, command: str, **options: Any) -> Child:
    return Child.spawn(["/bin/sh", "-c", command], str(folder), os.environ, output.add, **options)


async def finish(child: Child) -> int:
    return await asyncio.wait_for(asyncio.shield(child.exited), 30)


def identity(path: Path) -> Identity:
    pid = int(path.read_text())
    return Identity(pid, start_time(pid) or 0)


async def test_each_stream_ends_once_and_after_all_its_output(tmp_path: Path) -> None:
    output = Output()
    child = spawn(tmp_path, output, "echo out; echo err >&2; exit 3")
    assert await finish(child) == 3
    assert output.data == {"stdout": b"out\n", "stderr": b"err\n"}
    assert sorted(output.ended) == ["stderr", "stdout"]
    assert child.left_behind == 0


async def test_both_streams_can_be_one(tmp_path: Path) -> None:
    output = Output()
    await finish(spawn(tmp_path, output, "echo a; echo b >&2; echo c", merge_output=True))
    assert output.data == {"stdout": b"a\nb\nc\n", "stderr": b""}


async def test_background_processes_are_killed_after_the_linger_time(tmp_path: Path) -> None:
    child = spawn(tmp_path, Output(), "setsid sleep 1000 & echo $! > pid", linger=0)
    assert await finish(child) == 0
    assert child.left_behind == 1
    assert not is_alive(identity(tmp_path / "pid"))


async def test_without_a_linger_time_they_stay_and_the_output_is_read_to_its_end(tmp_path: Path) -> None:
    output = Output()
    command = "sleep 1000 >/dev/null 2>&1 & echo $! > pid; (sleep 0.3; echo late) & echo early"
    assert await finish(spawn(tmp_path, output, command, linger=None)) == 0
    assert output.data["stdout"] == b"early\nlate\n"
    left = identity(tmp_path / "pid")
    assert is_alive(left)
    os.kill(left.pid, 9)


async def test_a_kill_ends_also_those_that_would_stay(tmp_path: Path) -> None:
    child = spawn(tmp_path, Output(), "sleep 1000 & echo $! > pid; echo all; wait", linger=None)
    while not (tmp_path / "pid").exists():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    child.kill()
    assert await finish(child) == -9
    assert not is_alive(identity(tmp_path / "pid"))


async def test_input_is_written_to_its_end_before_it_is_closed(tmp_path: Path) -> None:
    output = Output()
    child = Child.spawn(
        [sys.executable, "-c", "import sys; print(len(sys.stdin.buffer.read()))"],
        str(tmp_path),
        os.environ,
        output.add,
        has_input=True,
    )
    assert child.input is not None
    assert child.input.write(b"x" * 3_000_000)
    child.input.close()
    assert not child.input.write(b"more")
    assert await finish(child) == 0
    assert output.data["stdout"] == b"3000000\n"


async def test_paused_output_is_read_after_the_exit(tmp_path: Path) -> None:
    output = Output()
    child = spawn(tmp_path, output, "echo last words")
    child.pause_reading()
    await asyncio.sleep(0.05)
    await finish(child)
    assert output.data["stdout"] == b"last words\n"


async def test_a_pipe_that_breaks_during_a_write_is_reported_by_the_exit_only(tmp_path: Path) -> None:
    output = Output()
    child = Child.spawn(["cat"], str(tmp_path), os.environ, output.add, has_input=True)
    assert child.input is not None
    os.kill(child.identity.pid, signal.SIGKILL)
    # Block until the process is a zombie, so that the event loop hasn't seen its exit before the write.
    os.waitid(os.P_PID, child.identity.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222
    assert child.input.write(b"x")
    assert not child.input.is_open
    assert not child.input.write(b"more")
    assert await finish(child) == -9
