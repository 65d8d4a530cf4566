"""config.toml says which plugins and tools the built-in agent of the deck has."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from quarterdeck.engine.plugins.base import InvalidPluginOption
from quarterdeck.engine.plugins.configured import PluginsUnreadable, mounted
from quarterdeck.engine.plugins.installed import NoSuchExtension
from quarterdeck.engine.setup import prepared
from quarterdeck.events import Notice
from quarterdeck.server.config import read
from tests.contexts import SmallContext, ask, events_of
from tests.engine import tool

OWN: dict[str, dict[str, Any]] = {"human_approval": {"timeout": 0}}


class Deck:
    """A home with a config.toml."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"QUARTERDECK_HOME": str(folder), "HOME": str(folder)}

    def mounted(self, text: str, mode: str = "ask", installed: Sequence[str] = ()) -> tuple[list[Any], list[str]]:
        (self.folder / "config.toml").write_text(text)
        plugins, tools = mounted(mode, OWN, [tool("ls")], installed, self.environment)
        return plugins, [one.name for one in tools]


@pytest.fixture
def deck(tmp_path: Path) -> Deck:
    return Deck(tmp_path)


def test_without_a_file_the_default_set(deck: Deck) -> None:
    plugins, tools = mounted("ask", OWN, [tool("ls")], (), deck.environment)
    assert [one.name for one in plugins] == [
        "security_guard",
        "human_approval",
        "loop_detection",
        "large_result_offload",
    ]
    assert [one.name for one in tools] == ["ls"]


def test_plugins_are_added_changed_and_left_out(deck: Deck) -> None:
    plugins, _ = deck.mounted(
        "[plugin]\nloop_detection = false\nmemory_flush = true\n[plugin.human_approval]\nconfirm_prefix = '!'\n"
    )
    assert [one.name for one in plugins] == ["security_guard", "human_approval", "large_result_offload", "memory_flush"]
    assert (plugins[1].timeout, plugins[1].confirm_prefix) == (0, "!")


def test_what_the_deck_wants_by_itself_stays_unless_it_is_said(deck: Deck) -> None:
    assert deck.mounted("[plugin]\nhuman_approval = true\n")[0][1].timeout == 0
    assert deck.mounted("[plugin.human_approval]\ntimeout = 9\n")[0][1].timeout == 9
    assert [one.name for one in deck.mounted("[plugin]\nhuman_approval = false\n")[0]][1] == "loop_detection"


def test_a_plugin_that_cannot_be_had_is_an_error(deck: Deck) -> None:
    with pytest.raises(NoSuchExtension, match="redact"):
        deck.mounted("[plugin]\nredact = true\n")
    with pytest.raises(InvalidPluginOption, match="attempts"):
        deck.mounted("[plugin.planning]\nattempts = 'two'\n")


def test_a_tool_that_cannot_be_had_is_told_when_the_session_begins(deck: Deck) -> None:
    plugins, tools = deck.mounted("", installed=["weather"])
    assert tools == ["ls"]
    [told] = events_of(ask(plugins[-1], "session_start", SmallContext(deck.folder)))
    assert isinstance(told, Notice)
    assert told.level == "warning"
    assert "'weather'" in told.text


@pytest.mark.parametrize("text", ["[plugin", "plugin = 3", "[plugin]\nx = 3", "\x00"])
def test_a_file_that_cannot_be_understood_is_named(deck: Deck, text: str) -> None:
    with pytest.raises(PluginsUnreadable, match=r"config\.toml"):
        deck.mounted(text)


def test_the_server_knows_the_tables(deck: Deck) -> None:
    (deck.folder / "config.toml").write_text("[plugin]\nplanning = true\n[tools]\ninstalled = ['weather']\n")
    assert read(deck.folder / "config.toml", {}).warnings == ()


def test_the_agent_of_the_deck_is_set_up_by_them(deck: Deck, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in deck.environment.items():
        monkeypatch.setenv(name, value)
    (deck.folder / "config.toml").write_text("[plugin]\nplanning = true\n[tools]\ninstalled = ['weather']\n")
    given = prepared(deck.folder, "edits", "s1", "demo:", os.environ).settings
    assert [one.name for one in given["plugins"]][-2:] == ["planning", "installed"]
    assert "shell" in [one.name for one in given["tools"]]
