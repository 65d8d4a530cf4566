"""Test docs/agents.toml: every source answers every subject, gaps have a reason, and the generated page is up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from quarterdeck.harness.registry import TRANSLATORS
from tools.agents import Source, agents_page, load, main

ROOT = Path(__file__).parents[2]
SUBJECTS, SOURCES = load()


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_every_subject_is_answered_and_gaps_have_a_reason(source: Source) -> None:
    assert source.subjects.keys() == SUBJECTS.keys()
    for subject, known in source.subjects.items():
        assert known.level == "yes" or known.reason, f"{source.name}: {subject}"


def test_each_source_is_listed_once_and_every_translator_has_one() -> None:
    names = [source.name for source in SOURCES]
    assert len(set(names)) == len(names)
    agents = {source.agent.split()[0] for source in SOURCES}
    # `sayask` is a protocol, not an agent.
    assert TRANSLATORS.keys() - agents == {"sayask"}


def test_the_page_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().err
    page = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
    assert page == agents_page()
    assert all(f"## {source.name}" in page for source in SOURCES)


def test_an_outdated_page_is_reported_and_written_again(tmp_path: Path) -> None:
    assert main(["--check", "--root", str(tmp_path)]) == 1
    assert main(["--write", "--root", str(tmp_path)]) == 0
    assert main(["--check", "--root", str(tmp_path)]) == 0
