"""Test tools/conformance.py on small invented repositories."""

import json
from pathlib import Path
from textwrap import dedent

import pytest

from tests.conformance.marks import case, cases_from
from tools.conformance import DOC_PATH, LIST_PATH, ListError, find_marks, load_parts, main, make_report

LIST = """
[[part]]
code = "0"
title = "Part nought"
note = "A note."

[[part.section]]
code = "0.A"
title = "Beginnings"

[[part.section.case]]
id = "0-001"
given = "a door"
when = "a knock | a bell"
then = "it opens"
plan = { open = "1 Foundation" }

[[part.section.case]]
id = "0-002"
given = "a window"
when = "—"
then = "it is shut"
amendment = "it is open in summer"
plan = { open = "8 Page" }

[[part]]
code = "U"
title = "Part U"
note = "Another note."

[[part.section]]
code = "U.0"
title = "Upstream"

[[part.section.case]]
id = "U-001"
given = "ten logs"
when = "one more comes"
then = "the oldest goes"
plan = { overruled = "nothing is pruned" }

[[part.section.case]]
id = "U-002"
given = "a timer"
when = "it rings"
then = "it is heard"
plan = { deferred = "timers come later" }
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / LIST_PATH).parent.mkdir(parents=True)
    (tmp_path / LIST_PATH).write_text(LIST, encoding="utf-8")
    return tmp_path


def write_test(repository: Path, source: str, name: str = "test_made_up.py") -> None:
    (repository / "tests" / name).write_text(dedent(source), encoding="utf-8")


def shown(repository: Path) -> dict[str, list[str]]:
    """Return each case with the tests that cover it, without their file names."""
    found: dict[str, list[str]] = {}
    for mark in find_marks(repository).marks:
        found.setdefault(mark.case_id, []).append(mark.test.removeprefix("tests/test_made_up.py"))
    return found


def problems(repository: Path) -> list[str]:
    return [str(problem) for problem in make_report(repository).problems]


def run(repository: Path, *options: str) -> int:
    return main([*options, "--root", str(repository)])


class TestWhereAnIdCounts:
    def test_on_a_function_by_either_spelling(self, repository: Path) -> None:
        write_test(
            repository,
            """
            @case("0-001")
            def test_one(): ...

            @pytest.mark.case("0-001", "0-002")
            async def test_two(): ...
            """,
        )
        assert shown(repository) == {"0-001": ["::test_one", "::test_two"], "0-002": ["::test_two"]}

    def test_on_a_class_and_on_its_methods(self, repository: Path) -> None:
        write_test(
            repository,
            """
            @case("0-001")
            class TestDoor:
                @case("0-002")
                def test_it(self): ...
            """,
        )
        assert shown(repository) == {"0-001": ["::TestDoor"], "0-002": ["::TestDoor::test_it"]}

    def test_in_pytestmark_of_a_module_and_of_a_class(self, repository: Path) -> None:
        write_test(
            repository,
            """
            pytestmark = [case("0-001")]

            class TestDoor:
                pytestmark = case("0-002")
            """,
        )
        assert shown(repository) == {"0-001": [""], "0-002": ["::TestDoor"]}

    def test_on_a_row_in_the_decorator(self, repository: Path) -> None:
        write_test(
            repository,
            """
            @pytest.mark.parametrize("door", [
                pytest.param(1, marks=case("0-001")),
                pytest.param(2, marks=[case("0-002"), pytest.mark.slow]),
            ])
            def test_it(door): ...
            """,
        )
        assert shown(repository) == {"0-001": ["::test_it"], "0-002": ["::test_it"]}

    def test_on_a_row_of_a_table_that_a_decorator_names(self, repository: Path) -> None:
        write_test(
            repository,
            """
            DOORS: list[object] = [pytest.param(1, marks=case("0-001"))]
            ALL = DOORS + [pytest.param(2, marks=case("0-002"))]

            @pytest.mark.parametrize("door", ALL)
            def test_it(door): ...
            """,
        )
        assert shown(repository) == {"0-001": ["::test_it"], "0-002": ["::test_it"]}

    def test_as_a_key_of_a_table_of_cases(self, repository: Path) -> None:
        write_test(
            repository,
            """
            ROWS = {"0-001": 1}

            @cases_from(ROWS)
            def test_one(row): ...

            class TestWindow:
                INNER: Final = {"0-002": (1, 2)}

                @marks.cases_from(INNER, "left, right")
                def test_two(self, left, right): ...

            @cases_from({"0-002": 1})
            def test_three(row): ...
            """,
        )
        assert shown(repository) == {
            "0-001": ["::test_one"],
            "0-002": ["::TestWindow::test_two", "::test_three"],
        }

    def test_files_are_found_in_all_folders_of_the_tests(self, repository: Path) -> None:
        (repository / "tests" / "deep").mkdir()
        write_test(repository, '@case("0-001")\ndef test_it(): ...', "deep/test_it.py")
        write_test(repository, '@case("0-002")\ndef test_it(): ...', "it_test.py")
        tests = {mark.test for mark in find_marks(repository).marks}
        assert tests == {"tests/deep/test_it.py::test_it", "tests/it_test.py::test_it"}


class TestWhereAnIdDoesNotCount:
    def test_outside_of_marks(self, repository: Path) -> None:
        write_test(
            repository,
            '''
            """0-001, case("0-001")"""
            UNUSED = [pytest.param(1, marks=case("0-001"))]
            ROWS = {"0-002": 1}

            def test_it():
                """0-002"""
                case("0-001")  # 0-001
                assert "0-002" in ROWS
            ''',
        )
        assert shown(repository) == {}

    def test_on_a_test_that_is_switched_off(self, repository: Path) -> None:
        write_test(
            repository,
            """
            @pytest.mark.skip
            @case("0-001")
            def test_one(): ...

            @case("0-001")
            @pytest.mark.xfail(reason="not yet")
            def test_two(): ...

            @pytest.mark.skip(reason="not yet")
            class TestDoor:
                @case("0-002")
                def test_it(self): ...
            """,
        )
        assert shown(repository) == {}

    def test_in_a_file_that_pytest_does_not_collect(self, repository: Path) -> None:
        write_test(repository, '@case("0-001")\ndef test_it(): ...', "helpers.py")
        assert shown(repository) == {}


class TestWhatIsRefused:
    def test_an_unknown_id(self, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
        write_test(repository, '@case("0-001",\n    "9-999")\ndef test_it(): ...')
        assert run(repository) == 1
        assert capsys.readouterr().err == "tests/test_made_up.py:2: unknown case '9-999'\n"

    def test_an_unknown_key_of_a_table(self, repository: Path) -> None:
        write_test(repository, 'ROWS = {\n    "9-999": 1,\n}\n@cases_from(ROWS)\ndef test_it(row): ...')
        assert problems(repository) == ["tests/test_made_up.py:2: unknown case '9-999'"]

    @pytest.mark.parametrize(
        ("decorator", "complaint"),
        [
            ("case()", "case() names no case"),
            ("case(f'0-00{1}')", "the id of a case must be a string literal"),
            ("case(*IDS)", "the id of a case must be a string literal"),
            ("cases_from({**ROWS})", "the id of a case must be a string literal"),
            ("cases_from(ELSEWHERE)", "cases_from() takes a dict literal of this file"),
            ("cases_from()", "cases_from() takes a dict literal of this file"),
        ],
    )
    def test_an_id_that_cannot_be_read(self, repository: Path, decorator: str, complaint: str) -> None:
        write_test(repository, f"@{decorator}\ndef test_it(row): ...")
        assert problems(repository) == [f"tests/test_made_up.py:1: {complaint}"]

    def test_a_mark_on_what_is_no_test(self, repository: Path) -> None:
        write_test(
            repository,
            """\
            @case("0-001")
            def helper(): ...

            class Base:
                @case("0-002")
                def test_it(self): ...
            """,
        )
        first, second = problems(repository)
        assert first.startswith("tests/test_made_up.py:1: 0-001 is named on tests/test_made_up.py::helper, which")
        assert second.startswith("tests/test_made_up.py:5: 0-002 is named on tests/test_made_up.py::Base::test_it, ")

    @pytest.mark.parametrize(("case_id", "kind"), [("U-001", "overruled"), ("U-002", "deferred")])
    def test_a_test_for_what_is_not_to_be_shown(self, repository: Path, case_id: str, kind: str) -> None:
        write_test(repository, f'@case("{case_id}")\ndef test_it(): ...')
        assert problems(repository) == [
            f"tests/test_made_up.py:1: {case_id} is {kind} in {LIST_PATH}, yet a test shows it"
        ]

    def test_a_file_that_is_not_python(self, repository: Path) -> None:
        write_test(repository, "x = 1\ndef test_it(:")
        assert problems(repository) == ["tests/test_made_up.py:2: can't be parsed: invalid syntax"]

    def test_one_broken_file_hides_no_other(self, repository: Path) -> None:
        write_test(repository, "def test_it(:", "test_broken.py")
        write_test(repository, '@case("0-001")\ndef test_it(): ...')
        assert shown(repository) == {"0-001": ["::test_it"]}


class TestTheList:
    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ('"0-002"', '"0-001"', "more than one case has the id 0-001"),
            ('"8 Page"', '"8 Cage"', "0-002: no such issue: '8 Cage'"),
            ('{ open = "8 Page" }', "{ }", "0-002: a plan is exactly one of open, deferred, overruled"),
            (
                '{ open = "8 Page" }',
                '{ open = "8 Page", deferred = "no" }',
                "0-002: a plan is exactly one of",
            ),
            ("amendment =", "amendmend =", "amendmend"),
            ('given = "a window"', "", "given"),
            ("[[part.section]]", "[[part.section", "line"),
        ],
    )
    def test_a_bad_record_is_named(self, repository: Path, old: str, new: str, message: str) -> None:
        path = repository / LIST_PATH
        path.write_text(LIST.replace(old, new, 1), encoding="utf-8")
        with pytest.raises(ListError, match=message):
            load_parts(path)

    def test_a_missing_list_is_said(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(tmp_path) == 1
        assert capsys.readouterr().err.startswith(f"{LIST_PATH}: ")


class TestTheReport:
    def test_text(self, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
        write_test(repository, '@case("0-001")\ndef test_it(): ...')
        assert run(repository) == 0
        assert capsys.readouterr().out.splitlines() == [
            "part       shown      open  deferred",
            "0              1         1         0",
            "U              0         0         2",
            "total          1         1         2",
            "",
            "open in 8 Page: 1",
            "deferred U-002: timers come later",
            "overruled U-001: nothing is pruned",
            "",
            "1 shown, 1 open, 2 deferred",
        ]

    def test_json(self, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
        write_test(repository, '@case("0-001")\ndef test_it(): ...')
        assert run(repository, "--json") == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["counts"] == {"shown": 1, "open": 1, "deferred": 2}
        assert answer["parts"]["U"] == {"shown": 0, "open": 0, "deferred": 2}
        assert [item["status"] for item in answer["cases"]] == ["shown", "open", "overruled", "deferred"]
        assert answer["cases"][0]["tests"] == ["tests/test_made_up.py::test_it"]
        assert answer["problems"] == []


class TestTheDocument:
    def test_it_says_who_shows_each_case(self, repository: Path) -> None:
        write_test(
            repository,
            """
            @case("0-001")
            def test_one(): ...

            class TestDoor:
                @case("0-001")
                def test_two(self): ...
            """,
        )
        assert run(repository, "--write") == 0
        lines = (repository / DOC_PATH).read_text(encoding="utf-8").splitlines()
        assert (
            "| 0-001 | a door | a knock \\| a bell | it opens "
            "| [tests/test_made_up.py::TestDoor::test_two](../tests/test_made_up.py)"
            "<br>[tests/test_made_up.py::test_one](../tests/test_made_up.py) |"
        ) in lines
        assert "| 0-002 | a window | — | it is shut<br>*amended:* it is open in summer | open: 8 Page |" in lines
        assert "| U-001 | ten logs | one more comes | the oldest goes | overruled: nothing is pruned |" in lines
        assert "| U-002 | a timer | it rings | it is heard | deferred: timers come later |" in lines

    def test_a_module_is_linked_by_its_path(self, repository: Path) -> None:
        write_test(repository, 'pytestmark = case("0-001")')
        run(repository, "--write")
        assert "| [tests/test_made_up.py](../tests/test_made_up.py) |" in (repository / DOC_PATH).read_text("utf-8")

    def test_check_passes_on_what_write_made(self, repository: Path) -> None:
        run(repository, "--write")
        assert run(repository, "--check") == 0

    def test_check_fails_when_a_test_came(self, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run(repository, "--write")
        write_test(repository, '@case("0-001")\ndef test_it(): ...')
        assert run(repository, "--check") == 1
        assert f"{DOC_PATH} is out of date" in capsys.readouterr().err

    def test_check_fails_when_there_is_none(self, repository: Path) -> None:
        assert run(repository, "--check") == 1

    def test_nothing_is_written_from_bad_marks(self, repository: Path) -> None:
        write_test(repository, '@case("9-999")\ndef test_it(): ...')
        assert run(repository, "--write") == 1
        assert not (repository / DOC_PATH).exists()


class TestTheMarks:
    def test_a_row_carries_its_own_case(self) -> None:
        names, rows = cases_from({"0-001": (1, 2), "0-002": (3, 4)}, "left, right").args
        assert names == "left, right"
        assert [(row.id, row.values, row.marks) for row in rows] == [
            ("0-001", (1, 2), (case("0-001"),)),
            ("0-002", (3, 4), (case("0-002"),)),
        ]

    def test_one_name_takes_the_row_whole(self) -> None:
        _, (row,) = cases_from({"0-001": (1, 2)}).args
        assert row.values == ((1, 2),)
