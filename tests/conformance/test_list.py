"""Check that the acceptance list is complete, every case has an owner, and the document matches the list and the tests."""

from pathlib import Path

import pytest

from tools.conformance import COLUMNS, LIST_PATH, Case, Part, Report, load_parts, main, make_report

ROOT = Path(__file__).parents[2]

SIZES = {"0": 118, "1": 123, "2": 79, "3": 75, "4": 62, "U": 116, "X": 40}


@pytest.fixture(scope="module")
def parts() -> tuple[Part, ...]:
    return load_parts(ROOT / LIST_PATH)


@pytest.fixture(scope="module")
def report() -> Report:
    return make_report(ROOT)


def all_cases(parts: tuple[Part, ...]) -> list[Case]:
    return [case for part in parts for case in part.cases()]


def test_the_list_has_every_case_once_and_in_order(parts: tuple[Part, ...]) -> None:
    expected = [f"{part}-{number:03d}" for part, size in SIZES.items() for number in range(1, size + 1)]
    assert [case.id for case in all_cases(parts)] == expected
    assert len(expected) == 613


def test_cases_stand_in_their_own_part(parts: tuple[Part, ...]) -> None:
    assert {part.code: len(list(part.cases())) for part in parts} == SIZES
    for part in parts:
        assert {case.id.split("-")[0] for case in part.cases()} == {part.code}
        assert all(section.code.startswith(f"{part.code}.") for section in part.sections)


def test_every_text_is_filled_in(parts: tuple[Part, ...]) -> None:
    for case in all_cases(parts):
        texts = (case.given, case.when, case.then, case.plan.text, case.amendment)
        assert all(text is None or text.strip() for text in texts), case.id


def test_every_mark_in_the_tests_names_a_case(report: Report) -> None:
    assert [str(problem) for problem in report.problems] == []


def test_every_case_has_a_test_or_a_plan(report: Report) -> None:
    for part in report.parts:
        assert sum(report.count(part.cases()).values()) == SIZES[part.code]
    assert sum(report.count(report.cases()).values()) == 613


def test_the_document_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().err


def test_the_last_line_gives_the_totals(report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    counts = report.count(report.cases())
    expected = "{} shown, {} open, {} deferred".format(*(counts[column] for column in COLUMNS))
    assert capsys.readouterr().out.splitlines()[-1] == expected
