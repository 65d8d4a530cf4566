"""Compare the built-in agent with agent frameworks: the same turns, the same scripted model, one process each.

The frameworks are in another environment, which `make bench` creates (requirements-frameworks.txt): one of them needs other
versions than our tests do, and the tests shouldn't wait for their installation. Without that environment only the built-in
agent and the bare client are measured, and a message says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from bench.engine import CALLS, PIECES, TEXT, served
from bench.figure import Figure
from bench.measure import SMOKE, Effort, in_turns

RIVALS = {"openai_agents": "openai-agents", "pydantic_ai": "pydantic-ai", "langgraph": "langgraph"}
AT_ONCE = 20
_ROOT = Path(__file__).parent.parent
#: The environment that `make bench` creates.
PYTHON = Path(sys.prefix, "frameworks", "bin", "python")
#: Nothing of the caller's environment: no key, no proxy, and no telemetry.
_ENVIRONMENT = {
    "PATH": os.defpath,
    "PYTHONPATH": str(_ROOT),
    "DO_NOT_TRACK": "1",
    "LANGCHAIN_TRACING_V2": "false",
    "LANGSMITH_TRACING": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
}


class Turn(msgspec.Struct, frozen=True):
    """The prompt for each agent, the end of its reply, and how many times faster ours has to be."""

    name: str
    scenario: str
    times: int
    ending: str
    ahead: float
    effort: Effort


def _turns(effort: Effort) -> tuple[Turn, ...]:
    """Return the turns to measure. Turns of frameworks are long, and twenty dripped ones take seconds, so rounds are few."""
    smoke = effort is SMOKE
    once, slow = (effort if smoke else msgspec.structs.replace(effort, rounds=rounds) for rounds in (11, 5))
    many = 2 if smoke else AT_ONCE
    return (
        Turn(f"a text turn of {PIECES} chunks", "burst", 1, TEXT, 8, once),
        Turn(f"a loop of {CALLS} tool calls", "tools", 1, "done", 8, once),
        Turn(f"a text turn dripped, {many} at once", "trickle", many, TEXT, 8, slow),
    )


def figures(effort: Effort) -> Iterator[Figure]:
    turns = _turns(effort)
    rivals = RIVALS if PYTHON.exists() else {}
    if not rivals:
        print("  no frameworks here: make bench installs them", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as server, ExitStack() as all_of_them:
        all_of_them.callback(server.terminate)
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        ours, bare = (all_of_them.enter_context(_working(sys.executable, one, url)) for one in ("ours", "bare"))
        for turn in turns:
            found = in_turns(_asked(ours, turn), _asked(bare, turn), turn.effort)
            yield Figure("frameworks", f"{turn.name}: ours, made and stopped too, to a bare client", found)
        for name, called in rivals.items():
            with _working(str(PYTHON), name, url) as rival:
                for turn in turns:
                    found = in_turns(_asked(rival, turn), _asked(ours, turn), turn.effort)
                    yield Figure("frameworks", f"{turn.name}: {called} to ours", found, turn.ahead, "at least")


@contextmanager
def _working(python: str, name: str, url: str) -> Iterator[subprocess.Popen[str]]:
    command = [python, "-W", "ignore", "-m", "bench.worker", name, url]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT, env=_ENVIRONMENT
    ) as worker:
        try:
            yield worker
        finally:
            worker.terminate()


def _asked(worker: subprocess.Popen[str], turn: Turn) -> Callable[[], float]:
    """Return a function that runs one turn and returns its CPU time. Run one turn first, because much is created lazily."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    said, heard = worker.stdin, worker.stdout

    def ask() -> float:
        said.write(f"{turn.scenario} {turn.times} {turn.ending}\n")
        said.flush()
        answer = heard.readline()
        if not answer:
            raise RuntimeError(f"{worker.args} ended; it says above why")
        return float(answer)

    ask()
    return ask
