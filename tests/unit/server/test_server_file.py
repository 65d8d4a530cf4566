"""Test that `server.json` counts only while the process that it names runs."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from quarterdeck.home import Home
from quarterdeck.process.identity import start_time
from quarterdeck.server import server_file
from quarterdeck.server.server_file import ServerInfo


def mine(**changes: object) -> ServerInfo:
    started = start_time(os.getpid()) or 0
    found = ServerInfo(os.getpid(), started, os.getpid(), started, "http://127.0.0.1:1", "1", 5, {"port": 1})
    return found._replace(**changes)


def test_written_read_removed(tmp_path: Path):
    place = Home(tmp_path)
    server_file.write_server_info(place, mine())
    assert server_file.find_server(place) == mine()
    assert not mine().is_leaving
    assert stat.S_IMODE(place.server.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["server.json"]
    server_file.remove_server_info(place, 1)
    assert server_file.find_server(place) == mine()
    server_file.remove_server_info(place, os.getpid())
    server_file.remove_server_info(place, os.getpid())
    assert server_file.find_server(place) is None


def test_another_process_of_the_same_pid_is_not_it(tmp_path: Path):
    server_file.write_server_info(Home(tmp_path), mine(started=1, keeper_started=1))
    assert server_file.find_server(Home(tmp_path)) is None


@pytest.mark.parametrize(
    "changes",
    [{"stopping": True}, {"started": 1}, {"keeper_started": 1}],
    ids=["it said so", "its keeper cleans up", "its keeper is gone"],
)
def test_one_that_leaves(tmp_path: Path, changes: dict[str, object]):
    server_file.write_server_info(Home(tmp_path), mine(**changes))
    found = server_file.find_server(Home(tmp_path))
    assert found is not None
    assert found.is_leaving


def test_the_last_to_go_is_the_keeper_while_there_is_one():
    assert mine().last == mine().keeper
    assert mine(keeper_pid=0, keeper_started=0).last == mine().server
    with subprocess.Popen([sys.executable, "-c", ""]) as other:
        pass
    assert mine(keeper_pid=other.pid, keeper_started=1).last == mine().server


@pytest.mark.parametrize("told", ["", "[]", "null", "{}", '{"pid": 1}', json.dumps(mine()._asdict() | {"pid": "1"})])
def test_what_is_no_beacon_leads_nowhere(tmp_path: Path, told: str):
    Home(tmp_path).server.write_text(told, encoding="utf-8")
    assert server_file.find_server(Home(tmp_path)) is None


def test_what_a_newer_release_added_is_ignored(tmp_path: Path):
    Home(tmp_path).server.write_text(json.dumps(mine()._asdict() | {"newer": 1}), encoding="utf-8")
    assert server_file.find_server(Home(tmp_path)) == mine()
