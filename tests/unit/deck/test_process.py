"""Real processes, really ended: nothing of a launch is left, whatever it did."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from quarterdeck.deck.identity import Identity, descendants_of_launch, is_alive, start_time
from quarterdeck.deck.process import AgentProcess
from quarterdeck.harness.base import Signal
from quarterdeck.harness.drive import Start
from quarterdeck.testing.harness import TestDriver

Work = Callable[["Rig"], Awaitable[None]]


class Rig:
    """A scripted agent and everything that was heard from it."""

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
        async with asyncio.timeout(20):
            while len(self.of(src, kind)) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.of(src, kind)[count - 1]

    def prompt(self, text: str) -> None:
        self.process.write(self.driver.prompt(text, "m1"))


def run(folder: Path, work: Work) -> None:
    async def main() -> None:
        rig = Rig()
        spawn = rig.driver.spawn(Start(cwd=str(folder)))
        nonce = f"{os.getpid()}-{time.monotonic_ns()}"
        rig.process = await AgentProcess.start(spawn, str(folder), dict(os.environ), nonce, rig.hear)
        try:
            await work(rig)
        finally:
            rig.process.kill()
            await asyncio.wait([rig.process.exited])

    asyncio.run(main())


def test_it_speaks_and_is_heard(tmp_path: Path) -> None:
    async def work(rig: Rig) -> None:
        assert (await rig.until("stdout", "ready"))["session"]
        rig.prompt("say hello there")
        await rig.until("stdout", "turn_end")
        assert [line["delta"] for line in rig.of("stdout", "text")] == ["hello ", "there "]

    run(tmp_path, work)


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 3", 3), ("crash", -9)])
def test_its_exit_is_the_last_thing_heard(tmp_path: Path, script: str, code: int) -> None:
    async def work(rig: Rig) -> None:
        rig.prompt(f"say goodbye; {script}")
        assert await rig.process.exited == code
        assert rig.signals[-1] == Signal("proc", {"event": "exit", "code": code})
        assert rig.of("stdout", "text_end")

    run(tmp_path, work)


@pytest.mark.parametrize("script", ["", "hang", "child 300", "orphan 300", "child 300; orphan 300; hang"])
def test_a_stop_leaves_nothing_behind(tmp_path: Path, script: str) -> None:
    async def work(rig: Rig) -> None:
        await rig.until("stdout", "ready")
        if script:
            rig.prompt(script)
            await rig.until("stdout", "turn_start")
            for number in range(script.count("300")):
                await rig.until("stdout", "call_end", number + 1)
        await rig.process.stop(rig.driver.farewell(), grace=5)
        assert not is_alive(rig.process.identity)
        assert _settled(rig.process.identity.nonce) == []

    run(tmp_path, work)


def test_one_that_does_not_listen_is_killed_after_the_grace(tmp_path: Path) -> None:
    async def work(rig: Rig) -> None:
        await rig.until("stdout", "ready")
        rig.prompt("deaf")
        await rig.until("stdout", "turn_start")
        await rig.process.stop(rig.driver.farewell(), grace=0.5)
        assert not is_alive(rig.process.identity)

    run(tmp_path, work)


def test_a_pid_that_comes_again_is_somebody_else() -> None:
    mine = start_time(os.getpid())
    assert mine is not None
    assert is_alive(Identity(os.getpid(), mine, ""))
    assert not is_alive(Identity(os.getpid(), mine + 1, ""))
    assert start_time(2**22 + 1) is None


def test_long_lines_come_whole(tmp_path: Path) -> None:
    async def work(rig: Rig) -> None:
        await rig.until("stdout", "ready")
        rig.prompt("flood 60000")
        whole = await rig.until("stdout", "text_end")
        assert len(whole["text"]) > 300_000

    run(tmp_path, work)


def _settled(nonce: str) -> list[int]:
    """Killed processes take a moment to vanish from the table."""
    until = time.monotonic() + 10
    while (left := descendants_of_launch(nonce)) and time.monotonic() < until:
        time.sleep(0.01)
    return left
