"""What is said about the agents is said about all of them, with a reason for what is missing, and the page says the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from quarterdeck.harness.knows import SOURCES, SUBJECTS, Source
from quarterdeck.harness.registry import TRANSLATORS
from tools.agents import agents_page, main

ROOT = Path(__file__).parents[3]


def name_of(source: Source) -> str:
    return f"{source.agent}, {source.source}"


@pytest.mark.parametrize("source", SOURCES, ids=name_of)
def test_every_subject_is_answered_and_what_is_missing_has_a_reason(source: Source) -> None:
    assert source.knows.keys() == SUBJECTS.keys()
    for subject, known in source.knows.items():
        assert known.level in ("yes", "partly", "no")
        assert known.level == "yes" or known.why, f"{name_of(source)}: {subject}"


def test_each_source_is_there_once_and_every_translator_has_one() -> None:
    names = [name_of(source) for source in SOURCES]
    assert len(set(names)) == len(names)
    agents = {source.agent.split()[0] for source in SOURCES}
    assert TRANSLATORS.keys() - agents == {"sayask"}  # a protocol, not an agent


def test_the_page_is_what_the_data_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().err
    page = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
    assert page == agents_page()
    assert all(f"## {name_of(source)}" in page for source in SOURCES)


def test_a_page_that_fell_behind_is_noticed_and_written_again(tmp_path: Path) -> None:
    assert main(["--check", "--root", str(tmp_path)]) == 1
    assert main(["--write", "--root", str(tmp_path)]) == 0
    assert main(["--check", "--root", str(tmp_path)]) == 0
