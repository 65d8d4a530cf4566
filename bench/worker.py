"""Run one agent in a process of its own, so that imports, threads and garbage of one don't count for another.

    python -m bench.worker NAME URL     NAME is a module of bench/rivals

A line `SCENARIO TIMES ENDING` runs that scenario TIMES times at once. The answer is the CPU time of one turn in nanoseconds,
of this process with all its threads. Every reply must end with ENDING. It needs only uvloop and the imports of NAME, because
the frameworks are in an environment of their own.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Awaitable, Callable
from importlib import import_module

import uvloop

Turn = Callable[[str], Awaitable[str]]


async def spent_ns(turn: Turn, scenario: str, times: int, ending: str) -> float:
    """Return the CPU time of one turn. The collector runs before the turns and is off during them."""
    gc.collect()
    gc.disable()
    try:
        began = time.process_time_ns()
        said = await asyncio.gather(*[turn(scenario) for _ in range(times)])
        spent = time.process_time_ns() - began
    finally:
        gc.enable()
    wrong = [one for one in said if not one.endswith(ending)]
    if wrong:
        raise ValueError(f"{scenario} ended with {wrong[0][-80:]!r} and not with {ending!r}")
    return spent / times


def main() -> None:
    name, url = sys.argv[1:]
    loop = uvloop.new_event_loop()
    turn: Turn = import_module(f"bench.rivals.{name}").turn_of(url)
    for line in sys.stdin:
        scenario, times, ending = line.split(maxsplit=2)
        print(loop.run_until_complete(spent_ns(turn, scenario, int(times), ending.rstrip("\n"))), flush=True)


if __name__ == "__main__":
    main()
