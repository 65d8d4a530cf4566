"""Record sessions of the built-in agent for tests/conformance/traces, with a real deck and process and a scripted model.

    .venv/bin/python tools/record_builtin.py FOLDER

Recordings are never edited. Record them again only if the protocol between deck and agent changes.
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
    """Wait for the next event of one of these types."""
    async for event in session.subscribe(0):
        if event.type in names:
            return {"type": event.type}
    raise AssertionError(names)


async def _wait_until_idle(session: SessionHandle) -> None:
    await session.until(lambda view: not view.state.turn.is_open and not view.state.queue)


async def _wait_for_gate(session: SessionHandle) -> str:
    return (await session.until(lambda view: view.state.gates.open)).state.gates.open[0].id


async def _prompt_again(session: SessionHandle, text: str) -> None:
    await session.prompt(text)
    await asyncio.sleep(0.05)
    await _wait_until_idle(session)


async def approve(session: SessionHandle) -> None:
    await session.approve(await _wait_for_gate(session))
    await _wait_until_idle(session)


async def reject(session: SessionHandle) -> None:
    await session.reject(await _wait_for_gate(session), reason="not today", auto_resume=True)
    await _wait_until_idle(session)


async def answer(session: SessionHandle) -> None:
    await session.respond(await _wait_for_gate(session), "blue")
    await _wait_until_idle(session)


async def stop(session: SessionHandle) -> None:
    await _until(session, "message_start")
    await asyncio.sleep(0.3)
    await session.abort()
    await _wait_until_idle(session)
    await _prompt_again(session, "script:text")


async def steer(session: SessionHandle) -> None:
    await _until(session, "message_start")
    await session.steer("and be brief")
    await _wait_until_idle(session)


async def take_tour(session: SessionHandle) -> None:
    await approve_only(session)
    await session.respond(await _wait_for_gate(session), "Keep it")
    await _wait_until_idle(session)


async def approve_only(session: SessionHandle) -> None:
    gate_id = await _wait_for_gate(session)
    await session.approve(gate_id)
    await session.until(lambda view: all(gate.id != gate_id for gate in view.state.gates.open))


async def kill_process(session: SessionHandle) -> None:
    """Kill the process during a call. The next prompt resumes the conversation."""
    await session.approve(await _wait_for_gate(session))
    await _until(session, "tool_execution_start")
    pid = next(int(name) for name in os.listdir("/proc") if name.isdigit() and _is_engine(name))
    os.kill(pid, 9)
    await _until(session, "process_exited")
    await _prompt_again(session, "script:text")


def _is_engine(pid: str) -> bool:
    try:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return parent == os.getpid() and b"quarterdeck.engine" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError, IndexError):
        return False


PLAYS: dict[str, tuple[str, str, Play]] = {
    "text": ("builtin", "script:text", _wait_until_idle),
    "tool": ("builtin", "script:tool", _wait_until_idle),
    "approval": ("builtin", "script:approval", approve),
    "rejected": ("builtin", "script:approval", reject),
    "question": ("builtin", "script:question", answer),
    "stopped": ("builtin", "script:slow", stop),
    "steered": ("builtin", "script:steered", steer),
    "failed": ("builtin", "script:failed", _wait_until_idle),
    "killed": ("builtin", "script:cut", kill_process),
    "tour": ("demo", "Show me what you can do.", take_tour),
}


def _copy_trace(scratch: Path, trace: Path, target: Path) -> None:
    """Copy a recording and replace the scratch folder in it with /home/dev."""
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
            # One deck per recording: closing the deck ends the process and the recording.
            async with quarterdeck.open(scratch / "decks" / name, environment=environment) as deck:
                model_name = "" if agent == "demo" else "anthropic:scripted"
                cwd = str(scratch / "projects" / name)
                session = await deck.create(agent, prompt, cwd=cwd, model=model_name, record=True)
                await asyncio.sleep(0.1)
                await asyncio.wait_for(play(session), 60)
            _copy_trace(scratch, scratch / "decks" / name / "traces" / f"{session.id}.jsonl", target / f"{name}.jsonl")
            sys.stdout.write(f"{name}\n")


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        for name in PLAYS:
            Path(scratch, "projects", name).mkdir(parents=True)
        asyncio.run(record(target, Path(scratch)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
