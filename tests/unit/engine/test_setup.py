"""Test how `config.toml` selects the plugins and tools of the deck's built-in agent."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from quarterdeck.config import InvalidSetting, config_file, read_config
from quarterdeck.engine.plugins.base import InvalidPluginOption
from quarterdeck.engine.plugins.installed import NoSuchExtension
from quarterdeck.engine.setup import load_extensions, prepare_agent
from quarterdeck.events import Notice
from tests.support.engine import tool
from tests.support.small_context import SmallContext, ask, events_of


class Deck:
    """A home with a config.toml."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"QUARTERDECK_HOME": str(folder), "HOME": str(folder)}

    def load(self, text: str, mode: str = "ask", installed: Sequence[str] = ()) -> tuple[list[Any], list[str]]:
        (self.folder / "config.toml").write_text(text)
        plugins, tools = load_extensions(mode, config_file(self.environment).plugins(), [tool("ls")], installed)
        return plugins, [one.name for one in tools]


@pytest.fixture
def deck(tmp_path: Path) -> Deck:
    return Deck(tmp_path)


def test_without_a_file_the_default_set(deck: Deck) -> None:
    plugins, tools = load_extensions("ask", {}, [tool("ls")])
    assert [one.name for one in plugins] == [
        "security_guard",
        "human_approval",
        "loop_detection",
        "large_result_offload",
    ]
    assert [one.name for one in tools] == ["ls"]


def test_plugins_are_added_changed_and_left_out(deck: Deck) -> None:
    plugins, _ = deck.load(
        "[plugin]\nloop_detection = false\nmemory_flush = true\n[plugin.human_approval]\nconfirm_prefix = '!'\n"
    )
    assert [one.name for one in plugins] == ["security_guard", "human_approval", "large_result_offload", "memory_flush"]
    assert (plugins[1].timeout, plugins[1].confirm_prefix) == (0, "!")


def test_what_the_deck_wants_by_itself_stays_unless_it_is_said(deck: Deck) -> None:
    assert deck.load("[plugin]\nhuman_approval = true\n")[0][1].timeout == 0
    assert deck.load("[plugin.human_approval]\ntimeout = 9\n")[0][1].timeout == 9
    assert [one.name for one in deck.load("[plugin]\nhuman_approval = false\n")[0]][1] == "loop_detection"


def test_a_plugin_that_cannot_be_had_is_an_error(deck: Deck) -> None:
    with pytest.raises(NoSuchExtension, match="redact"):
        deck.load("[plugin]\nredact = true\n")
    with pytest.raises(InvalidPluginOption, match="attempts"):
        deck.load("[plugin.planning]\nattempts = 'two'\n")


def test_a_tool_that_cannot_be_had_is_told_when_the_session_begins(deck: Deck) -> None:
    plugins, tools = deck.load("", installed=["weather"])
    assert tools == ["ls"]
    [told] = events_of(ask(plugins[-1], "session_start", SmallContext(deck.folder)))
    assert isinstance(told, Notice)
    assert told.level == "warning"
    assert "'weather'" in told.text


@pytest.mark.parametrize("text", ["[plugin", "plugin = 3", "[plugin]\nx = 3", "\x00"])
def test_a_file_that_cannot_be_understood_is_named(deck: Deck, text: str) -> None:
    with pytest.raises(InvalidSetting, match=r"config\.toml"):
        deck.load(text)


def test_the_server_knows_the_tables(deck: Deck) -> None:
    (deck.folder / "config.toml").write_text("[plugin]\nplanning = true\n[tools]\ninstalled = ['weather']\n")
    assert read_config(deck.folder / "config.toml", {}).warnings == ()


def test_the_agent_of_the_deck_is_set_up_by_them(deck: Deck, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in deck.environment.items():
        monkeypatch.setenv(name, value)
    (deck.folder / "config.toml").write_text("[plugin]\nplanning = true\n[tools]\ninstalled = ['weather']\n")
    given = prepare_agent(deck.folder, "edits", "s1", "demo:", os.environ).settings
    assert [one.name for one in given["plugins"]][-2:] == ["planning", "installed"]
    assert "shell" in [one.name for one in given["tools"]]
