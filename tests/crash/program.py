"""Run the deck that is killed. It is opened with `quarterdeck.open` and gets its commands as lines on stdin.

    python -m tests.crash.program HOME [--point NAME --hit N --victim deck|keeper|both] [--disk sound|full|broken]

Each line is `{"n", "op", ...}`. The answer is `{"n", "ok"}` or `{"n", "error"}`, written at once and unbuffered, so every
answer that the tester has read was acknowledged. Every durable event that is published is written as `{"event"}`.
When the keeper is gone, the deck closes and exits, as a server does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from typing import Any

import apsw
import msgspec

import quarterdeck
from quarterdeck.errors import QuarterdeckError
from quarterdeck.harness import registry
from quarterdeck.kernel.session_list import Filter
from quarterdeck.log.deltas import is_delta
from quarterdeck.process.subreaper import take_lifeline
from tests.crash import points
from tests.crash.agent import ENGINE, NAME
from tests.crash.disk import Disk

#: Errors that the disk can raise. The file system is replaced only with `--disk`.
TROUBLES = {"full": apsw.FullError, "broken": apsw.IOError, "": None}
DISK: list[Disk] = []
#: Events that are written with their content, because the tester acts on them.
_WHOLE = ("approval_required", "ask_user", "process_starting")


def say(**line: Any) -> None:
    data = json.dumps(line).encode() + b"\n"
    while data:
        data = data[os.write(1, data) :]


class Program:
    def __init__(self, deck: quarterdeck.Deck) -> None:
        self._deck = deck
        self._tasks: set[asyncio.Task[None]] = set()
        self.over = asyncio.Event()

    def begin(self, line: bytes) -> None:
        task = asyncio.get_running_loop().create_task(self._do(json.loads(line)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _do(self, asked: dict[str, Any]) -> None:
        number, op = asked.pop("n"), asked.pop("op")
        try:
            answer = await getattr(self, f"do_{op}")(**asked)
        except QuarterdeckError as error:
            say(n=number, error={"code": error.code, "message": error.message, "hint": error.hint})
        except Exception as error:
            say(n=number, defect=repr(error))
        else:
            say(n=number, ok=msgspec.to_builtins(answer))

    async def tell(self, since: str) -> None:
        async for event in self._deck.subscribe(since):
            if not is_delta(event.body):
                body = msgspec.to_builtins(event.body) if event.type in _WHOLE else None
                say(event=[event.session_id, event.index, event.type, body])

    async def listen(self) -> None:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        async for line in reader:
            self.begin(line)

    # --- requests

    async def do_create(self, agent: str = NAME, **fields: Any) -> str:
        return (await self._deck.create(agent, **fields)).id

    async def do_command(self, session: str, method: str, **fields: Any) -> Any:
        return await getattr(self._deck.session(session), method)(**fields)

    async def do_resume_interrupted(self) -> list[str]:
        return await self._deck.resume_interrupted()

    async def do_states(self) -> dict[str, Any]:
        page = self._deck.list(Filter(archived=True), limit=1000)
        return {one.id: self._state(one.id) for one in page.sessions}

    def _state(self, session_id: str) -> Any:
        view = self._deck.view(session_id)
        state = view.state
        owners = {name: getattr(state, name).value for name in ("lifecycle", "process", "run", "phase")}
        gates = {"open": [one.id for one in state.gates.open], "stale": [one.id for one in state.gates.stale]}
        queue = [[one.id, one.receipt] for one in state.queue]
        return {**owners, **gates, "queue": queue, "resumable": state.profile.resumable, "index": view.index}

    async def do_disk(self, trouble: str) -> None:
        """Let every write fail with this error from now on. '' ends that."""
        DISK[0].trouble = TROUBLES[trouble]

    async def do_close(self) -> None:
        await self._deck.close()
        self.over.set()


async def run(home: str) -> int:
    ends = take_lifeline()
    say(pid=os.getpid())
    try:
        deck = await quarterdeck.open(home, settings=quarterdeck.Settings(stop_grace=2.0))
    except QuarterdeckError as error:
        say(refused={"code": error.code, "message": error.message, "hint": error.hint})
        return 3
    program = Program(deck)
    loop = asyncio.get_running_loop()
    if ends is not None:
        loop.add_reader(ends, lambda: (loop.remove_reader(ends), program.begin(b'{"n": 0, "op": "close"}')))
    telling = loop.create_task(program.tell(await deck.services.log.last_cursor()))
    listening = loop.create_task(program.listen())
    say(opened=True)
    await program.over.wait()
    telling.cancel()
    listening.cancel()
    return 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("home")
    parser.add_argument("--point", default="")
    parser.add_argument("--hit", type=int, default=1)
    parser.add_argument("--victim", default="deck")
    parser.add_argument("--disk", choices=[*TROUBLES, "sound"], default="")
    options = parser.parse_args()
    if options.disk:
        DISK.append(Disk())
        DISK[0].trouble = TROUBLES.get(options.disk)
    registry.HARNESSES[NAME] = "tests.crash.agent:harness"
    registry.HARNESSES[ENGINE] = "tests.crash.engine:harness"
    points.install(points.Trigger(options.point, options.hit, options.victim))
    code = asyncio.run(run(options.home))
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
