"""Open a deck and close it on a signal, as a server does: `python -m tests.support.signalled_deck HOME`.

It creates three sessions (one busy, one with an open gate, one finished), prints READY, and runs until a signal arrives.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import quarterdeck


async def main(home: Path) -> None:
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    async with quarterdeck.open(home) as deck:
        scripts = ("child 600; hang", "ask rm", "say done")
        sessions = [await deck.create("test", script, cwd=str(home)) for script in scripts]
        await sessions[2].settled()
        while not sessions[1].view.state.gates.open or sessions[0].summary.run == "idle":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        sys.stdout.write("READY\n")
        sys.stdout.flush()
        await asked.wait()
    sys.stdout.write("CLOSED\n")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
