"""Records sessions of the built-in agent for tests/conformance/traces: a real deck, its real process, a scripted model.

    .venv/bin/python tools/record_builtin.py FOLDER

A recording is data and is never edited. Make it anew only when the lines between deck and agent change.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import quarterdeck
from quarterdeck.deck.session_api import SessionHandle
from quarterdeck.testing.model import ScriptedModel
from quarterdeck.testing.script import Fault, Script, ScriptedCall, Step

Play = Callable[[SessionHandle], Awaitable[None]]


def _calls(name: str, **args: object) -> Step:
    return Step(text="I try that.", calls=(ScriptedCall(name=name, args=dict(args)),))


_DONE = Step(text="It is done.")
_SHELL = _calls("shell", command="touch made")
MODEL = Script(
    scenario={
        "text": (Step(think="Easy.", text="Hello there. What shall we do?"),),
        "tool": (_calls("ls", path="."), _DONE),
        "approval": (_SHELL, _DONE),
        "question": (_calls("ask_user", question="Which colour?", options=["red", "blue"]), _DONE),
        "slow": (Step(text="I talk for a long while about nothing in particular. " * 20, delay=0.02),),
        "steered": (Step(text="I look around first.", delay=0.05, calls=_calls("ls", path=".").calls), _DONE),
        "failed": (Step(faults=(Fault(kind="http", status=400, times=0, message="no such thing"),)),),
        "cut": (_calls("shell", command="sleep 300"), _DONE),
    }
)


async def _until(session: SessionHandle, *names: str) -> dict[str, object]:
    """The next event of one of these types."""
    async for event in session.subscribe(0):
        if event.type in names:
            return {"type": event.type}
    raise AssertionError(names)


async def _rests(session: SessionHandle) -> None:
    await session.until(lambda view: not view.state.turn.is_open and not view.state.queue)


async def _gate(session: SessionHandle) -> str:
    return (await session.until(lambda view: view.state.gates.open)).state.gates.open[0].id


async def _again(session: SessionHandle, text: str) -> None:
    await session.prompt(text)
    await asyncio.sleep(0.05)
    await _rests(session)


async def approved(session: SessionHandle) -> None:
    await session.approve(await _gate(session))
    await _rests(session)


async def rejected(session: SessionHandle) -> None:
    await session.reject(await _gate(session), reason="not today", auto_resume=True)
    await _rests(session)


async def answered(session: SessionHandle) -> None:
    await session.respond(await _gate(session), "blue")
    await _rests(session)


async def stopped(session: SessionHandle) -> None:
    await _until(session, "message_start")
    await asyncio.sleep(0.3)
    await session.abort()
    await _rests(session)
    await _again(session, "script:text")


async def steered(session: SessionHandle) -> None:
    await _until(session, "message_start")
    await session.steer("and be brief")
    await _rests(session)


async def toured(session: SessionHandle) -> None:
    await approved_only(session)
    await session.respond(await _gate(session), "Keep it")
    await _rests(session)


async def approved_only(session: SessionHandle) -> None:
    gate = await _gate(session)
    await session.approve(gate)
    await session.until(lambda view: all(one.id != gate for one in view.state.gates.open))


async def killed(session: SessionHandle) -> None:
    """The process dies in a call, and the next prompt brings the conversation back."""
    await session.approve(await _gate(session))
    await _until(session, "tool_execution_start")
    pid = next(int(one) for one in os.listdir("/proc") if one.isdigit() and _is_engine(one))
    os.kill(pid, 9)
    await _until(session, "process_exited")
    await _again(session, "script:text")


def _is_engine(pid: str) -> bool:
    try:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return parent == os.getpid() and b"quarterdeck.engine" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError, IndexError):
        return False


PLAYS: dict[str, tuple[str, str, Play]] = {
    "text": ("builtin", "script:text", _rests),
    "tool": ("builtin", "script:tool", _rests),
    "approval": ("builtin", "script:approval", approved),
    "rejected": ("builtin", "script:approval", rejected),
    "question": ("builtin", "script:question", answered),
    "stopped": ("builtin", "script:slow", stopped),
    "steered": ("builtin", "script:steered", steered),
    "failed": ("builtin", "script:failed", _rests),
    "killed": ("builtin", "script:cut", killed),
    "tour": ("demo", "Show me what you can do.", toured),
}


def _kept(scratch: Path, trace: Path, target: Path) -> None:
    """The recording, without the folder of this machine that it was made in."""
    target.write_text(trace.read_text("utf-8").replace(str(scratch), "/home/dev"), "utf-8")


async def record(target: Path, scratch: Path) -> None:
    async with ScriptedModel(MODEL) as model:
        environment = {
            **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
            "HOME": str(scratch),
            "QUARTERDECK_HOME": f"{scratch}/home",
            "ANTHROPIC_API_KEY": "sk-none",
            "ANTHROPIC_BASE_URL": model.url,
        }
        for name, (agent, prompt, play) in PLAYS.items():
            # one deck for each: its end is the end of the process, and of the recording
            async with quarterdeck.open(scratch / "decks" / name, environment=environment) as deck:
                chosen = "" if agent == "demo" else "anthropic:scripted"
                cwd = str(scratch / "projects" / name)
                session = await deck.create(agent, prompt, cwd=cwd, model=chosen, record=True)
                await asyncio.sleep(0.1)
                await asyncio.wait_for(play(session), 60)
            _kept(scratch, scratch / "decks" / name / "traces" / f"{session.id}.jsonl", target / f"{name}.jsonl")
            sys.stdout.write(f"{name}\n")


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        for name in PLAYS:
            Path(scratch, "projects", name).mkdir(parents=True)
        asyncio.run(record(target, Path(scratch)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
