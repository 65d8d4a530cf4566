"""Test how agents are found by name: built-in ones, those of other packages, and unknown ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quarterdeck.harness.driver import CannotDo
from quarterdeck.harness.registry import (
    HARNESSES,
    TRANSLATORS,
    BrokenHarness,
    UnknownAgent,
    harness,
    known_agents,
    startable_agents,
    translator,
)
from quarterdeck.testing.harness import TestDriver, TestTranslator

FOREIGN = """
from quarterdeck.harness.registry import Harness
from quarterdeck.testing.harness import TestDriver, TestTranslator
def parrot(agent):
    return Harness(agent, TestDriver, TestTranslator)
def wrong(agent):
    return "a parrot"
def broken(agent):
    raise RuntimeError("no seed left")
"""
ENTRY_POINTS = """[quarterdeck.harnesses]
parrot = qd_parrot:parrot
wrong = qd_parrot:wrong
broken = qd_parrot:broken
absent = qd_parrot:nobody
claude = qd_parrot:wrong
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package as pip would: a module and a metadata folder."""
    (tmp_path / "qd_parrot.py").write_text(FOREIGN)
    info = tmp_path / "qd_parrot-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: qd-parrot\nVersion: 1\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_the_test_agent_has_a_whole_harness() -> None:
    found = harness("test")
    assert found.name == "test"
    assert isinstance(found.make_driver(), TestDriver)
    assert isinstance(found.make_translator(), TestTranslator)
    assert isinstance(translator("test"), TestTranslator)
    assert found.make_driver() is not found.make_driver()


@pytest.mark.parametrize("agent", [*TRANSLATORS, "acp:my-agent --acp"])
def test_ours_are_read_and_those_without_a_driver_say_so(agent: str) -> None:
    assert translator(agent).unknown == 0
    if agent not in HARNESSES:
        with pytest.raises(CannotDo, match="only its signals are read") as caught:
            harness(agent)
        assert caught.value.code == "agent_cannot"
        assert all(name in caught.value.hint for name in HARNESSES)


@pytest.mark.parametrize("agent", ["", "nobody", "Test", "claude:x", "quarterdeck.testing.harness:harness"])
def test_a_name_that_nobody_knows_is_a_typed_error_that_lists_the_known(agent: str) -> None:
    for ask in (harness, translator):
        with pytest.raises(UnknownAgent) as caught:
            ask(agent)
        assert caught.value.code == "unknown_agent"
        assert repr(agent) in caught.value.message
        could_be = [*known_agents(), "acp:COMMAND"] if ask is translator else startable_agents()
        assert caught.value.hint == f"Use one of: {', '.join(could_be)}."


def test_somebody_elses_is_found_by_its_entry_point(package: None) -> None:
    assert isinstance(harness("parrot").make_driver(), TestDriver)
    assert harness("parrot").name == "parrot"
    assert isinstance(translator("parrot"), TestTranslator)
    assert "parrot" in known_agents()


def test_packages_that_come_and_go_are_seen(package: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a change, the packages aren't read again."""
    os.utime(tmp_path, (1, 1))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert "parrot" in known_agents()
    points = tmp_path / "qd_parrot-1.dist-info" / "entry_points.txt"
    points.write_text("")
    assert "parrot" in known_agents(), "kept: a package is not changed, it comes and goes"
    points.parent.rename(tmp_path / "qd_parrot-2.dist-info")
    assert "parrot" not in known_agents()
    (tmp_path / "qd_parrot-2.dist-info" / "entry_points.txt").write_text(ENTRY_POINTS)
    assert "parrot" in known_agents(), "a folder that changed just now may be in the middle of an installation"


@pytest.mark.parametrize(
    ("agent", "why"), [("wrong", "a str instead of a Harness"), ("broken", "no seed left"), ("absent", "nobody")]
)
def test_a_broken_one_is_its_own_fault(package: None, agent: str, why: str) -> None:
    with pytest.raises(BrokenHarness, match=why) as caught:
        harness(agent)
    assert caught.value.code == "broken_harness"


def test_nobody_can_take_the_place_of_ours(package: None) -> None:
    assert known_agents().count("claude") == 1
    assert type(translator("claude")).__module__.startswith("quarterdeck.harness.claude")


def test_nothing_is_loaded_before_it_is_asked_for() -> None:
    code = "import sys, quarterdeck.harness.registry; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "quarterdeck.testing" not in loaded
    assert not any(name.startswith("quarterdeck.harness.claude") for name in loaded)
    assert "importlib.metadata" not in loaded


@pytest.mark.parametrize("agent", [*TRANSLATORS, "acp:some command"])
def test_each_session_has_a_translator_of_its_own(agent: str) -> None:
    assert translator(agent) is not translator(agent)
