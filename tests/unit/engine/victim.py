"""Run an agent with a store on disk for a test that kills it: `python -m tests.unit.engine.victim STORE FOLDER`.

The agent finishes one turn, then starts another whose tool creates a marker file and never returns.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from quarterdeck.engine.plugins.base import Plugin
from quarterdeck.events import Todo
from quarterdeck.log.sqlite.store import SqliteLog
from tests.support.engine import Heard, Script, calls, opened, text, tool


class Counts(Plugin):
    """Count requests in the plugin's state."""

    name = "counts"
    state = 0

    def before_request(self, messages: Any, context: Any) -> None:
        self.state += 1


def tools_in(folder: Path) -> list[Any]:
    async def slow(args: Any, hands: Any) -> str:
        with (folder / "ran").open("a") as file:
            file.write("once\n")
        sys.stdout.write("running\n")
        sys.stdout.flush()
        await asyncio.sleep(3600)
        return "never"

    def plan(args: Any, hands: Any) -> str:
        hands.set_todos([Todo(id="1", content="survive", status="in_progress")])
        return "planned"

    return [tool("slow", slow), tool("plan", plan)]


async def main(store: Path, folder: Path) -> None:
    log = await SqliteLog.open(store)
    model = Script(calls(("c1", "plan")), text("first reply"), calls(("c2", "slow"), ("c3", "plan"), say="now"))
    agent = await opened(model, log=log, session_id="victim", tools=tools_in(folder), plugins=[Counts()], cwd=folder)
    heard = Heard(agent)
    await agent.prompt("one")
    await agent.collect_reply()
    await agent.prompt("two")
    await agent.prompt("queued")
    # Subscribers get only durable events.
    await heard.until("tool_execution_end", 2)
    sys.stdout.write("queued\n")
    sys.stdout.flush()
    await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
