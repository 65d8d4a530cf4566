"""Restore stores of every release from SQL files, so that each migration is tested with rows that a release wrote.

`python -m tests.unit.log.old_stores` writes the file of the current version. Run it once, when a migration is added. Never
write an older file again: the code that could do it is gone.
"""

from __future__ import annotations

import asyncio
import io
import tempfile
from pathlib import Path

import apsw
import apsw.shell

from quarterdeck import events as ev
from quarterdeck.events import Body
from quarterdeck.log.session_writer import SessionWriter
from quarterdeck.log.sqlite import SqliteLog
from quarterdeck.log.sqlite.sql import newest_version

FOLDER = Path(__file__).parent / "stores"


def file_of(version: int) -> Path:
    return FOLDER / f"{version:04d}.sql"


def restored(version: int, path: Path) -> None:
    """Create the store of that version as a file."""
    connection = apsw.Connection(str(path))
    for _ in connection.execute(file_of(version).read_text(encoding="utf-8")):
        pass
    connection.close()


#: Events by session. In one of them a message is still being written, and two opened gates.
SESSIONS: dict[str, tuple[Body, ...]] = {
    "talk": (
        ev.SessionOpened(agent="claude", cwd="/w", prompt="Fix the lexer", message_id="u1"),
        ev.CommandReceipt(client_id="c1", command="open", answer={"ok": True}),
        ev.ProcessStarting(pid=41, started_at=7, nonce="n1"),
        ev.AgentReady(native_session_id="native-1", model="m", version="2.0", resumable=True),
        ev.AgentStart(turn_id="t1"),
        ev.MessageStart(message_id="m1", turn_id="t1"),
        ev.MessageDelta(message_id="m1", delta="I will ", turn_id="t1"),
        ev.MessageDelta(message_id="m1", delta="look", turn_id="t1"),
        ev.ResponseComplete(message_id="m1", blocks=(ev.Block(text="I will look"),), turn_id="t1"),
        ev.ToolCall(call_id="c1", name="bash", args={"command": "ls"}, turn_id="t1"),
        ev.ApprovalRequired(gate=ev.GateRequest(gate_id="g3", call_id="c1", tool="bash"), turn_id="t1"),
        ev.ApprovalResolved(status="approved", gate_id="g3", by="user", turn_id="t1"),
        ev.ToolExecutionStart(call_id="c1", name="bash", turn_id="t1"),
        ev.ToolExecutionOutput(call_id="c1", delta="lexer.py", turn_id="t1"),
        ev.ToolExecutionEnd(call_id="c1", name="bash", ok=True, result="lexer.py", turn_id="t1"),
        ev.AgentEnd(outcome="completed", turn_id="t1"),
        ev.SessionRenamed(name="The lexer"),
    ),
    "growing": (
        ev.SessionOpened(agent="codex", cwd="/v", prompt="Grow"),
        ev.AgentReady(native_session_id="native-2"),
        ev.AgentStart(turn_id="t1"),
        ev.MessageStart(message_id="m1", turn_id="t1"),
        ev.MessageDelta(message_id="m1", delta="half a ", turn_id="t1"),
        ev.MessageDelta(message_id="m1", delta="sentence", turn_id="t1"),
        ev.AskUser(question="Which half?", gate_id="g12", turn_id="t1"),
    ),
    "archived": (ev.SessionOpened(agent="pi"), ev.SessionArchived(end_reason="cancelled")),
    "suspended": (ev.SessionOpened(agent="pi", prompt="x"), ev.AgentReady(), ev.SessionSuspended(reason="shutdown")),
}


async def written(path: Path) -> None:
    """Write all sessions with the deck's own session writer."""
    log = await SqliteLog.open(path)
    for number, (session_id, bodies) in enumerate(SESSIONS.items()):
        record = SessionWriter(log, session_id, clock=lambda at=1_000 * (number + 1): at)
        for body in bodies:
            record.write([body], "engine")
            await record.flush()
    await log.close()


def dumped(path: Path) -> str:
    """Return the SQL that creates this store."""
    connection, text = apsw.Connection(str(path)), io.StringIO()
    apsw.shell.Shell(stdout=text, db=connection).process_command(".dump")
    connection.close()
    lines = [line for line in text.getvalue().splitlines() if not line.startswith("--")]
    return "\n".join(lines).strip() + "\n"


def main() -> None:
    version = newest_version()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "quarterdeck.db"
        asyncio.run(written(path))
        file_of(version).write_text(dumped(path), encoding="utf-8")


if __name__ == "__main__":
    main()
