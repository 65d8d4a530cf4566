"""Test the shipped plugins: the default set and the validation of options."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from quarterdeck.engine.plugins.base import HOOKS, InvalidPluginOption, Plugin
from quarterdeck.engine.plugins.installed import NoSuchExtension
from quarterdeck.engine.plugins.shipped import DEFAULTS, SHIPPED, create_plugin, default_plugins, shipped
from quarterdeck.kernel.commands import MODES

NEEDED: dict[str, Any] = {"content_policy": {"policies": {"a": "b"}}}


def names(plugins: list[Plugin]) -> list[str]:
    return [plugin.name for plugin in plugins]


class TestTheDefaultSet:
    @pytest.mark.parametrize("mode", ["", *MODES])
    def test_guards_asks_notices_loops_and_offloads_in_every_mode(self, mode: str) -> None:
        found = names(default_plugins(mode))
        assert found[:4] == ["security_guard", "human_approval", "loop_detection", "large_result_offload"]
        assert found[4:] == (["planning"] if mode == "plan" else [])

    def test_a_plugin_can_be_added_changed_and_left_out(self) -> None:
        wanted = {"memory_flush": True, "human_approval": {"timeout": 5}, "loop_detection": False}
        found = default_plugins("ask", wanted)
        assert names(found) == ["security_guard", "human_approval", "large_result_offload", "memory_flush"]
        assert found[1].timeout == 5  # type: ignore[attr-defined]
        assert found[1].safe  # type: ignore[attr-defined]

    def test_each_call_makes_plugins_of_its_own(self) -> None:
        assert default_plugins()[0] is not default_plugins()[0]

    def test_an_unknown_mode_is_refused(self) -> None:
        with pytest.raises(InvalidPluginOption, match="yolo"):
            default_plugins("yolo")

    def test_a_plugin_that_is_not_there_is_refused(self) -> None:
        with pytest.raises(NoSuchExtension, match="no_such_create_plugin_anybody"):
            default_plugins("", {"no_such_create_plugin_anybody": True})


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("planning", {"attempts": "two"}, "Expected `int`"),
        ("planning", {"nope": 1}, "no such option"),
        ("planning", {"return": 1}, "no such option"),
        ("human_approval", {"safe_commands": "ls"}, "Expected `array`"),
        ("security_guard", {"audit": "some"}, "some"),
        ("content_policy", {}, "policies"),
    ],
)
def test_an_option_that_does_not_fit_is_named(name: str, options: Any, says: str) -> None:
    with pytest.raises(InvalidPluginOption, match=says) as caught:
        create_plugin(name, options)
    assert caught.value.plugin == name
    assert caught.value.hint


def test_options_are_an_object() -> None:
    with pytest.raises(InvalidPluginOption, match="must be a table"):
        default_plugins("", {"planning": 5})


@pytest.mark.parametrize("name", SHIPPED)
class TestEach:
    def test_has_its_name_a_priority_and_a_hook(self, name: str) -> None:
        kind = shipped(name)
        assert kind.name == name
        assert 1 <= kind.priority <= 1_000
        assert any(hasattr(kind, hook) for hook in HOOKS)
        assert kind.__doc__

    def test_remembers_in_json(self, name: str) -> None:
        plugin = create_plugin(name, NEEDED.get(name, {}))
        told = msgspec.json.decode(msgspec.json.encode(plugin.state))
        plugin.restore(told)
        assert msgspec.json.decode(msgspec.json.encode(plugin.state)) == told

    def test_has_no_method_that_looks_like_a_hook_and_is_none(self, name: str) -> None:
        begins = ("before_", "after_", "on_", "session_")
        found = {one for one in vars(shipped(name)) if one.startswith(begins)}
        assert found <= HOOKS.keys()


def test_people_are_asked_after_all_that_change_arguments_and_the_guard_comes_first() -> None:
    by_priority = sorted(default_plugins(), key=lambda plugin: plugin.priority)
    assert names(by_priority) == ["security_guard", "loop_detection", "human_approval", "large_result_offload"]


def test_defaults_are_of_ours() -> None:
    assert DEFAULTS.keys() <= SHIPPED.keys()


def test_nothing_is_imported_before_it_is_mounted() -> None:
    program = (
        "import sys, quarterdeck.engine.plugins.base\n"
        "print(*[one for one in sys.modules if one.startswith('quarterdeck.policy') or one.startswith('aiohttp')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
