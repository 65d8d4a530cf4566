"""Test the paths of Quarterdeck's files on each platform."""

from __future__ import annotations

from pathlib import Path

import pytest

from quarterdeck.home import home

USER = Path("/home/dev")


@pytest.mark.parametrize(
    ("environment", "platform", "folder"),
    [
        ({}, "linux", "/home/dev/.local/state/quarterdeck"),
        ({"XDG_STATE_HOME": "/x"}, "linux", "/x/quarterdeck"),
        ({"XDG_STATE_HOME": "relative"}, "linux", "/home/dev/.local/state/quarterdeck"),
        ({"XDG_STATE_HOME": ""}, "linux", "/home/dev/.local/state/quarterdeck"),
        ({"XDG_STATE_HOME": "/x"}, "darwin", "/home/dev/Library/Application Support/Quarterdeck"),
        ({"QUARTERDECK_HOME": "/deck", "XDG_STATE_HOME": "/x"}, "linux", "/deck"),
        ({"QUARTERDECK_HOME": "~/deck"}, "darwin", "/home/dev/deck"),
        ({"QUARTERDECK_HOME": "~"}, "linux", "/home/dev"),
        ({"QUARTERDECK_HOME": ""}, "linux", "/home/dev/.local/state/quarterdeck"),
    ],
)
def test_the_folder(environment: dict[str, str], platform: str, folder: str) -> None:
    assert home(environment, platform, USER).folder == Path(folder)


def test_a_relative_folder_is_one_of_this_directory() -> None:
    assert home({"QUARTERDECK_HOME": "deck/../here"}, "linux", USER).folder == Path.cwd() / "here"


def test_the_user_is_found_by_the_environment_first() -> None:
    assert home({"HOME": "/home/dev"}, "linux").folder == Path("/home/dev/.local/state/quarterdeck")


def test_every_file_is_in_the_folder() -> None:
    found = home({"QUARTERDECK_HOME": "/deck"}, "linux", USER)
    files = [found.store, found.token, found.config, found.traces, found.server, found.lock]
    assert [one.name for one in files] == ["quarterdeck.db", "token", "config.toml", "traces", "server.json", "lock"]
    assert [one.name for one in (found.starting, found.log, found.errors)] == ["start.lock", "server.log", "server.err"]
    assert found.store.parent == Path("/deck")
