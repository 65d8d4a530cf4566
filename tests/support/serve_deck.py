"""Run a server in a process of its own, for tests that kill it: `python -m tests.support.serve_deck HOME PORT`.

It prints its port and its token.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import uvloop

from tests.support.live_server import Port


async def main() -> None:
    port = Port(Path(sys.argv[1]))
    port.port = int(sys.argv[2])
    await port.start()
    sys.stdout.write(json.dumps({"port": port.port, "token": port.token}) + "\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    uvloop.run(main())
