"""Test that `GET /healthz` tries the log and answers 503 when it can't be used."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from quarterdeck.errors import QuarterdeckError
from quarterdeck.log.base import LogUnavailable
from quarterdeck.log.memory import MemoryLog
from quarterdeck.log.sqlite import SqliteLog
from quarterdeck.server.metrics import Health
from tests.support.observed_agents import observed
from tests.unit.log.test_failures import NAMESPACE, own_disk


async def test_it_needs_no_token_and_commits_something(tmp_path: Path) -> None:
    async with observed(tmp_path) as here:
        async with here.stranger.get(f"{here.url}/healthz") as response:
            assert (response.status, await response.json()) == (200, {"status": "ok", "environment": "caller"})
        store = here.deck.services.log._writer._store  # type: ignore[attr-defined]
        assert store.execute("SELECT value FROM meta WHERE key = 'probe'") == [(1,)]
        assert here.deck.session_ids() == []


async def test_a_store_that_is_read_only_is_a_typed_503_until_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Health, "INTERVAL_S", 0.0)
    async with observed(tmp_path) as here:
        store = here.deck.services.log._writer._store  # type: ignore[attr-defined]
        store.execute("PRAGMA query_only = ON")
        async with here.stranger.get(f"{here.url}/healthz") as response:
            assert response.status == 503
            error = (await response.json())["error"]
        store.execute("PRAGMA query_only = OFF")
        status, _ = await here.get("/healthz")
    assert error["code"] == "log_unavailable"
    assert "read-only" in error["message"]
    assert error["hint"]
    assert status == 200


async def test_a_deck_that_closes_is_not_healthy(tmp_path: Path) -> None:
    async with observed(tmp_path) as here:
        await here.deck.close()
        status, text = await here.get("/healthz")
    assert (status, json.loads(text)["error"]["code"]) == (503, "deck_closed")


CHILD = """
import asyncio, json, os, resource, signal, subprocess, sys
from pathlib import Path
from quarterdeck.deck.deck import Deck
from quarterdeck.server.metrics import Health
from tests.support.observed_agents import observed

folder, said = Path(sys.argv[1]), []
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
Health.INTERVAL_S = 0.0

async def ask(here):
    async with here.stranger.get(here.url + "/healthz") as response:
        body = await response.json()
        said.append([response.status, body.get("error", {}).get("code", ""), body.get("error", {}).get("message", "")])

async def fill(here, name):
    session = here.deck.session(name)
    for _ in range(2_000):
        try:
            await session.rename("x" * 90)
        except Exception as error:
            return
    raise AssertionError("never full")
"""
FULL_DISK = """
async def main():
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], check=True)
    async with observed(folder) as here:
        created = await here.post("/sessions", agent="test", cwd=str(folder))
        await ask(here)
        filler = open(folder / "filler", "wb", buffering=0)
        for size in (65536, 4096, 1):
            try:
                while True:
                    filler.write(b"x" * size)
            except OSError:
                pass
        await fill(here, created["id"])
        await ask(here)
        filler.close()
        (folder / "filler").unlink()
        await ask(here)

asyncio.run(main())
print(json.dumps(said))
"""
LIMITED = """
async def main():
    async with observed(folder) as here:
        created = await here.post("/sessions", agent="test", cwd=str(folder))
        await ask(here)
        size = len((folder / "home" / "quarterdeck.db-wal").read_bytes().rstrip(bytes(1)))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        await fill(here, created["id"])
        await ask(here)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await ask(here)

asyncio.run(main())
print(json.dumps(said))
"""


def child(script: str, folder: Path, *before: str) -> list[list[object]]:
    command = [*before, sys.executable, "-c", CHILD + script, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@own_disk
def test_a_full_disk_is_a_503_until_there_is_room(tmp_path: Path) -> None:
    before, during, after = child(FULL_DISK, tmp_path, *NAMESPACE)
    assert before[0] == after[0] == 200
    assert during[:2] == [503, "log_unavailable"]
    assert "the disk is full" in str(during[2])


def test_a_file_that_may_not_grow_is_a_503_until_it_may(tmp_path: Path) -> None:
    """Limit the file size like a full disk: `server.log` can't be written either, and nothing else fails."""
    before, during, after = child(LIMITED, tmp_path)
    assert before[0] == after[0] == 200
    assert during[:2] == [503, "log_unavailable"]


class TestTheProbe:
    async def test_however_many_ask_there_is_one_a_second(self) -> None:
        now, tried = [100.0], asyncio.Event()
        free = asyncio.Event()

        async def probe() -> None:
            tried.set()
            await free.wait()

        found = Health(probe, lambda: now[0])
        askers = [asyncio.create_task(found.check()) for _ in range(50)]
        await tried.wait()
        askers[0].cancel()
        free.set()
        await asyncio.gather(*askers[1:])
        assert found.probes == 1
        now[0] += 0.99
        await found.check()
        assert found.probes == 1
        now[0] += 0.02
        await found.check()
        assert found.probes == 2

    async def test_what_it_found_is_everybodys(self) -> None:
        now, wrong = [0.0], [True]

        async def probe() -> None:
            if wrong[0]:
                raise LogUnavailable("full")

        found = Health(probe, lambda: now[0])
        for _ in range(3):
            with pytest.raises(LogUnavailable, match="full"):
                await found.check()
        wrong[0] = False
        with pytest.raises(LogUnavailable):
            await found.check()
        now[0] += 1
        await found.check()
        assert found.probes == 2

    async def test_a_disk_that_hangs_is_told_of(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Health, "TIMEOUT_S", 0.01)
        free = asyncio.Event()

        async def probe() -> None:
            await free.wait()

        found = Health(probe, lambda: 0.0)
        for _ in range(2):
            with pytest.raises(LogUnavailable, match="didn't answer"):
                await found.check()
        free.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert found.probes == 1
        await found.check()

    async def test_a_fault_of_ours_does_not_stop_it_for_ever(self) -> None:
        wrong, now = [True], [0.0]

        async def probe() -> None:
            if wrong[0]:
                raise RuntimeError("odd")

        found = Health(probe, lambda: now[0])
        with pytest.raises(RuntimeError):
            await found.check()
        wrong[0] = False
        now[0] += 1
        await found.check()
        assert found.probes == 2


async def test_a_store_that_another_process_took_over_is_not_ours_to_probe(tmp_path: Path) -> None:
    log = await SqliteLog.open(tmp_path / "x.db")
    await log.probe()
    other = await SqliteLog.open(tmp_path / "x.db")
    with pytest.raises(LogUnavailable, match="another process"):
        await log.probe()
    await other.probe()
    await other.close()
    await log.close()


async def test_a_closed_log_cannot_be_probed(tmp_path: Path) -> None:
    for log in (await SqliteLog.open(tmp_path / "x.db"), MemoryLog()):
        await log.probe()
        await log.close()
        with pytest.raises(QuarterdeckError):
            await log.probe()
