"""Test plugins and tools of other packages with real distributions, working and broken."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from quarterdeck.engine.plugins.base import InvalidPluginOption, Plugin
from quarterdeck.engine.plugins.installed import (
    PLUGINS,
    TOOLS,
    BrokenExtension,
    Extension,
    NoSuchExtension,
    all_installed_tools,
    extensions,
    installed_plugin,
    installed_tools,
)
from quarterdeck.engine.plugins.shipped import default_plugins
from quarterdeck.engine.tools.base import Tool
from tests.support.engine import Heard, Script, calls, opened, text

GOOD = """
from quarterdeck.engine.plugins.base import Emit, InvalidPluginOption, Plugin
from quarterdeck.engine.tools.base import Outcome, Tool
from quarterdeck.engine.model import ToolSpec
from quarterdeck.events import PluginEvent

class Counter(Plugin):
    def __init__(self, *, step: int = 1):
        if step < 1:
            raise InvalidPluginOption("acme_counter", "step", "it only goes up")
        self.step, self.state = step, 0

    def after_turn(self, payload, context):
        self.state += self.step
        return Emit(PluginEvent(name="turns", payload={"count": self.state}))

async def run(args, hands):
    return Outcome("sunny")

weather = Tool(spec=ToolSpec("weather", "The weather.", {"type": "object", "properties": {}}), run=run)
several = [weather]

def made():
    return (weather,)

def explodes():
    raise RuntimeError("boom")

def leaves():
    raise SystemExit(3)

def not_a_plugin(**options):
    return 42
number = 42
mixed = [weather, "a string"]
none = []
class tell:
    def __init__(self, **options):
        raise ValueError("cannot be made")
"""


class Packages:
    """Create distributions as an installer leaves them: a module and a metadata folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, name: str, version: str, module: str, code: str, **groups: dict[str, str]) -> None:
        (self.folder / f"{module}.py").write_text(dedent(code))
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        lines: list[str] = []
        for group, points in groups.items():
            lines += [f"[quarterdeck.{group}]", *(f"{point} = {target}" for point, target in points.items())]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Packages]:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield Packages(folder)
    for name in set(sys.modules) - before:
        if name.startswith("acme_"):
            del sys.modules[name]


@pytest.fixture
def acme(packages: Packages) -> Packages:
    plugins = ["Counter", "not_a_plugin", "number", "explodes", "leaves", "tell", "missing"]
    tools = ["weather", "several", "made", "explodes", "number", "mixed", "none"]
    packages.add(
        "acme-tools",
        "1.2",
        "acme_tools",
        GOOD,
        plugins={f"acme_{name.lower()}": f"acme_tools:{name}" for name in plugins},
        tools={f"acme_{name}": f"acme_tools:{name}" for name in tools},
    )
    return packages


class TestPlugins:
    def test_are_loaded_by_name_with_their_options(self, acme: Packages) -> None:
        plugin = installed_plugin("acme_counter", {"step": 2})
        assert isinstance(plugin, Plugin)
        assert plugin.name == "acme_counter"
        plugin.after_turn({}, None)  # type: ignore[attr-defined]
        assert plugin.state == 2

    def test_are_part_of_the_set_when_they_are_wanted(self, acme: Packages) -> None:
        found = default_plugins("ask", {"acme_counter": {"step": 3}})
        assert found[-1].name == "acme_counter"
        assert all(not plugin.name.startswith("acme") for plugin in default_plugins("ask"))

    def test_nothing_is_imported_before_it_is_asked_for(self, acme: Packages) -> None:
        assert Extension(PLUGINS, "acme_counter", "acme-tools 1.2", "acme_tools:Counter") in extensions(PLUGINS)
        assert "acme_tools" not in sys.modules

    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("acme_not_a_plugin", "returns an object of type int, not a quarterdeck Plugin"),
            ("acme_number", "can't be created: TypeError"),
            ("acme_explodes", "can't be created: RuntimeError: boom"),
            ("acme_leaves", "can't be created: SystemExit: 3"),
            ("acme_tell", "can't be created: ValueError"),
            ("acme_missing", "can't be imported: AttributeError"),
        ],
    )
    def test_a_broken_one_is_an_error_that_names_the_package(self, acme: Packages, name: str, says: str) -> None:
        with pytest.raises(BrokenExtension) as caught:
            installed_plugin(name, {})
        assert says in caught.value.message
        assert "acme-tools 1.2" in caught.value.message
        assert "acme-tools 1.2" in caught.value.hint
        assert caught.value.code == "broken_extension"

    def test_an_option_that_it_refuses_is_its_own_word(self, acme: Packages) -> None:
        with pytest.raises(InvalidPluginOption, match="only goes up"):
            installed_plugin("acme_counter", {"step": 0})

    def test_an_option_that_it_does_not_have_names_the_package(self, acme: Packages) -> None:
        with pytest.raises(BrokenExtension, match=r"acme-tools 1\.2.*nope"):
            installed_plugin("acme_counter", {"nope": 1})

    @pytest.mark.parametrize("code", ["import no_such_module_of_anybody", "raise SystemExit(1)", "x = (", "1 / 0"])
    def test_a_module_that_cannot_be_imported_names_its_package(self, packages: Packages, code: str) -> None:
        packages.add("acme-broken", "0.1", "acme_broken", code, plugins={"acme_broken": "acme_broken:Plugin"})
        with pytest.raises(BrokenExtension, match=r"acme-broken 0\.1"):
            installed_plugin("acme_broken", {})

    def test_one_that_is_not_there_is_told_with_those_that_are(self, acme: Packages) -> None:
        with pytest.raises(NoSuchExtension) as caught:
            installed_plugin("acme_countr", {})
        assert "acme_counter" in caught.value.hint
        assert caught.value.code == "no_such_extension"

    def test_two_packages_of_one_name_are_told_and_neither_is_taken(self, acme: Packages) -> None:
        acme.add("acme-other", "3", "acme_other", GOOD, plugins={"acme_counter": "acme_other:Counter"})
        with pytest.raises(BrokenExtension, match=r"more than one package: acme-other 3, acme-tools 1\.2"):
            installed_plugin("acme_counter", {})

    def test_a_package_cannot_take_the_name_of_one_of_ours(self, packages: Packages) -> None:
        packages.add("acme-evil", "1", "acme_evil", GOOD, plugins={"human_approval": "acme_evil:Counter"})
        found = {plugin.name: type(plugin).__module__ for plugin in default_plugins("ask")}
        assert found["human_approval"] == "quarterdeck.engine.plugins.approval"
        assert "acme_evil" not in sys.modules


class TestTools:
    @pytest.mark.parametrize("name", ["acme_weather", "acme_several", "acme_made"])
    def test_one_several_or_a_function_that_gives_them(self, acme: Packages, name: str) -> None:
        [tool] = installed_tools(name)
        assert isinstance(tool, Tool)
        assert tool.name == "weather"

    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("acme_explodes", "RuntimeError: boom"),
            ("acme_number", "returns an object of type int"),
            ("acme_mixed", "returns an object of type str among its tools"),
            ("acme_none", "returns no tools"),
        ],
    )
    def test_a_broken_one_names_its_package(self, acme: Packages, name: str, says: str) -> None:
        with pytest.raises(BrokenExtension, match=r"acme-tools 1\.2") as caught:
            installed_tools(name)
        assert says in caught.value.message

    def test_the_others_work_without_it(self, acme: Packages) -> None:
        tools, faults = all_installed_tools(["acme_weather", "acme_explodes", "acme_nowhere"])
        assert [tool.name for tool in tools] == ["weather"]
        assert [type(fault) for fault in faults] == [BrokenExtension, NoSuchExtension]

    def test_are_listed(self, acme: Packages) -> None:
        assert {one.name for one in extensions(TOOLS)} >= {"acme_weather", "acme_several"}


async def test_an_agent_with_a_plugin_and_a_tool_of_another_package(acme: Packages, tmp_path: Path) -> None:
    script = Script(calls(("c1", "weather")), text("sunny it is"))
    settings = {
        "tools": installed_tools("acme_weather"),
        "plugins": default_plugins("auto", {"acme_counter": True}),
    }
    async with opened(script, cwd=tmp_path, mode="auto", **settings) as agent:
        heard = Heard(agent)
        await agent.prompt("how is the weather?")
        assert await agent.collect_reply() == "sunny it is"
        assert heard.one("tool_execution_end").result == "sunny"
        assert heard.one("plugin_event").payload == {"count": 1}
        saved = {body.name: body.state for body in heard.bodies("plugin_state")}
        assert saved["acme_counter"] == 1
