"""Stand in for the server under a subreaper: start scripted agents, print their pids, and wait.

python tests/support/subreaper_server.py NONCE SCRIPT...

It prints one line of JSON when every agent runs the last command of its script. When the subreaper dies, it exits at once
without cleaning up, as the worst possible server would.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from typing import Any

from quarterdeck.process.identity import NONCE_VARIABLE
from quarterdeck.process.subreaper import become_subreaper, take_lifeline


def started(nonce: str, script: str) -> tuple[subprocess.Popen[str], list[int]]:
    """Start an agent. Return it when it runs the last command of its script, with the pids of its tool processes."""
    agent = subprocess.Popen(
        [sys.executable, "-m", "quarterdeck.testing.agent"],
        env={**os.environ, NONCE_VARIABLE: nonce},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert agent.stdin is not None
    assert agent.stdout is not None
    words = script.split(";")
    for last in (False, True):
        text = words[-1] if last else ";".join([*words[:-1], "say so far"])
        agent.stdin.write(json.dumps({"op": "prompt", "id": "p", "text": text}) + "\n")
    agent.stdin.flush()
    tools: list[int] = []
    turns = 0
    while turns < 2:
        line: dict[str, Any] = json.loads(agent.stdout.readline())
        turns += line["type"] == "turn_start"
        if line["type"] == "call_end":
            tools.append(int(line["result"]))
    return agent, tools


def main() -> None:
    nonce, *scripts = sys.argv[1:]
    become_subreaper()
    ends = take_lifeline()
    agents: list[tuple[subprocess.Popen[str], list[int]]] = []
    # Start the agents on a thread that exits: their lifetime must not be bound to the thread that started them.
    starter = threading.Thread(target=lambda: agents.extend(started(nonce, script) for script in scripts))
    starter.start()
    starter.join()
    pids = [agent.pid for agent, _ in agents]
    said = {"server": os.getpid(), "agents": pids, "tools": [pid for _, tools in agents for pid in tools]}
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
    assert ends is not None
    os.read(ends, 1)
    os._exit(0)


if __name__ == "__main__":
    main()
