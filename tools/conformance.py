"""Report which tests show which cases of the acceptance list.

    python tools/conformance.py            print the counts
    python tools/conformance.py --write    regenerate docs/conformance.md
    python tools/conformance.py --check    fail if docs/conformance.md is out of date
    python tools/conformance.py --json     print the counts and the status of every case as one JSON object

The list is tests/conformance/cases.toml. A test names its cases with the marks of tests/conformance/marks.py. The
marks are found in the syntax trees of the test files, without importing them, so the result is the same on a machine
that lacks what some tests need.

An id counts only where pytest sees it: in a mark on a test function or class (a decorator or `pytestmark`) or in a
table that such a mark names. An id in a comment or docstring, in an unused table, or on a skipped test doesn't count.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

LIST_PATH = "tests/conformance/cases.toml"
DOC_PATH = "docs/conformance.md"

ISSUES = (
    "1 Foundation",
    "2 Translators",
    "3 Log and deck",
    "4 Server and API",
    "5 Built-in agent",
    "6 Harnesses and real CLIs",
    "7 Command line",
    "8 Page",
)

PlanKind = Literal["open", "deferred", "overruled"]
Status = Literal["shown", "open", "deferred", "overruled"]

PLAN_KINDS: tuple[PlanKind, ...] = ("open", "deferred", "overruled")

# An overruled case will never be shown either, so the totals count it as deferred.
COLUMNS = ("shown", "open", "deferred")
COLUMN_OF: Mapping[Status, str] = {
    "shown": "shown",
    "open": "open",
    "deferred": "deferred",
    "overruled": "deferred",
}


# ------------------------------------------------------------------------------------------------- the list


class ListError(Exception):
    """The list is invalid."""


@dataclass(frozen=True)
class Plan:
    """What happens with a case that no test shows: the issue that will show it, or why none will."""

    kind: PlanKind
    text: str


@dataclass(frozen=True)
class Case:
    id: str
    given: str
    when: str
    then: str
    plan: Plan
    amendment: str | None = None


@dataclass(frozen=True)
class Section:
    code: str
    title: str
    cases: tuple[Case, ...]


@dataclass(frozen=True)
class Part:
    code: str
    title: str
    note: str
    sections: tuple[Section, ...]

    def cases(self) -> Iterator[Case]:
        for section in self.sections:
            yield from section.cases


def load_parts(path: Path) -> tuple[Part, ...]:
    """Read the list.

    Raises:
        ListError: the file can't be read, or a record is invalid.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        parts = tuple(_part(record) for record in document["part"])
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ListError(str(error)) from error
    except (KeyError, TypeError) as error:
        raise ListError(f"a record lacks a field or has an unknown one: {error}") from error
    _refuse_repeated_ids(parts)
    return parts


def _part(record: dict[str, Any]) -> Part:
    sections = tuple(_section(section) for section in record.pop("section"))
    return Part(**record, sections=sections)


def _section(record: dict[str, Any]) -> Section:
    cases = tuple(_case(case) for case in record.pop("case"))
    return Section(**record, cases=cases)


def _case(record: dict[str, Any]) -> Case:
    plan = _plan(record["id"], record.pop("plan"))
    return Case(**record, plan=plan)


def _plan(case_id: str, record: dict[str, str]) -> Plan:
    kinds: list[PlanKind] = [kind for kind in PLAN_KINDS if kind in record]
    if len(kinds) != 1 or len(record) != 1:
        raise ListError(f"{case_id}: a plan is exactly one of {', '.join(PLAN_KINDS)}")
    plan = Plan(kinds[0], record[kinds[0]])
    if plan.kind == "open" and plan.text not in ISSUES:
        raise ListError(f"{case_id}: no such issue: {plan.text!r}")
    return plan


def _refuse_repeated_ids(parts: Sequence[Part]) -> None:
    counts = Counter(case.id for part in parts for case in part.cases())
    repeated = [case_id for case_id, count in counts.items() if count > 1]
    if repeated:
        raise ListError(f"more than one case has the id {', '.join(repeated)}")


# ------------------------------------------------------------------------------------- the marks in the tests


@dataclass(frozen=True, order=True)
class Mark:
    """One case named by one test."""

    case_id: str
    path: str
    line: int
    test: str


@dataclass(frozen=True, order=True)
class Problem:
    """A mark that is invalid or contradicts the list."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


@dataclass
class Findings:
    marks: list[Mark] = field(default_factory=list[Mark])
    problems: list[Problem] = field(default_factory=list[Problem])


# The values of the names in a module or class, to follow a mark into the table that it names.
Scope = Mapping[str, ast.expr]
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Complain = Callable[[int, str], None]
IdAtLine = tuple[str, int]


def find_marks(root: Path) -> Findings:
    """Find the marks in every test file below root/tests."""
    findings = Findings()
    for path in sorted((root / "tests").rglob("*.py")):
        if path.name.startswith("test_") or path.name.endswith("_test.py"):
            _read_file(path, path.relative_to(root).as_posix(), findings)
    return findings


def _read_file(path: Path, shown_path: str, findings: Findings) -> None:
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError as error:
        findings.problems.append(Problem(shown_path, error.lineno or 1, f"can't be parsed: {error.msg}"))
    else:
        _FileReader(shown_path, findings).read(tree)


class _FileReader:
    """Walk a module, its classes and their methods as pytest does when it collects tests."""

    def __init__(self, path: str, findings: Findings) -> None:
        self.path = path
        self.findings = findings

    def read(self, tree: ast.Module) -> None:
        scope = _assigned(tree.body)
        self._record(_pytestmarks(scope), scope, self.path, collected=True)
        self._read_body(tree.body, scope, self.path, collected=True)

    def _read_body(self, body: Sequence[ast.stmt], scope: Scope, owner: str, collected: bool) -> None:
        for node in body:
            if isinstance(node, Definition) and not _switched_off(node):
                self._read_definition(node, scope, f"{owner}::{node.name}", collected and _is_test(node))

    def _read_definition(self, node: Definition, scope: Scope, test: str, collected: bool) -> None:
        # A class's decorator is evaluated outside the class, so it sees only the outer names.
        self._record(node.decorator_list, scope, test, collected)
        if isinstance(node, ast.ClassDef):
            inside = _assigned(node.body)
            self._record(_pytestmarks(inside), {**scope, **inside}, test, collected)
            self._read_body(node.body, {**scope, **inside}, test, collected)

    def _record(self, marks: Sequence[ast.expr], scope: Scope, test: str, collected: bool) -> None:
        for mark in marks:
            for case_id, line in _named_cases(mark, scope, self._complain):
                if collected:
                    self.findings.marks.append(Mark(case_id, self.path, line, test))
                else:
                    self._complain(line, f"{case_id} is named on {test}, which pytest does not collect")

    def _complain(self, line: int, message: str) -> None:
        self.findings.problems.append(Problem(self.path, line, message))


def _is_test(node: Definition) -> bool:
    return node.name.startswith("Test" if isinstance(node, ast.ClassDef) else "test")


def _switched_off(node: Definition) -> bool:
    """Return whether a test is skipped or expected to fail, so that it shows nothing."""
    return any(_called_name(decorator) in ("skip", "xfail") for decorator in node.decorator_list)


def _assigned(body: Sequence[ast.stmt]) -> dict[str, ast.expr]:
    """Return the value that the plain assignments of a body give to each name."""
    pairs = (pair for statement in body for pair in _assignments(statement))
    return {target.id: value for target, value in pairs if isinstance(target, ast.Name)}


def _assignments(statement: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(statement, ast.Assign):
        yield from ((target, statement.value) for target in statement.targets)
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        yield statement.target, statement.value


def _pytestmarks(scope: Scope) -> list[ast.expr]:
    return [scope["pytestmark"]] if "pytestmark" in scope else []


def _named_cases(mark: ast.expr, scope: Scope, complain: Complain) -> Iterator[IdAtLine]:
    """Return the ids in a mark's expression and in the tables that it names, at any depth."""
    for node in _with_tables(mark, scope):
        if isinstance(node, ast.Call) and _called_name(node) == "case":
            yield from _ids_of_case(node, complain)
        elif isinstance(node, ast.Call) and _called_name(node) == "cases_from":
            yield from _ids_of_table(node, scope, complain)


def _with_tables(mark: ast.expr, scope: Scope) -> Iterator[ast.AST]:
    waiting = [mark]
    followed: set[str] = set()
    while waiting:
        for node in ast.walk(waiting.pop()):
            yield node
            if isinstance(node, ast.Name) and node.id in scope and node.id not in followed:
                followed.add(node.id)
                waiting.append(scope[node.id])


def _called_name(node: ast.expr) -> str | None:
    """Return `case` for each of case(...), mark.case(...) and pytest.mark.case(...), and `skip` for a bare mark.skip."""
    called = node.func if isinstance(node, ast.Call) else node
    if isinstance(called, ast.Attribute):
        return called.attr
    return called.id if isinstance(called, ast.Name) else None


def _ids_of_case(call: ast.Call, complain: Complain) -> Iterator[IdAtLine]:
    if not call.args:
        complain(call.lineno, "case() names no case")
    yield from _literal_ids(call.args, call.lineno, complain)


def _ids_of_table(call: ast.Call, scope: Scope, complain: Complain) -> Iterator[IdAtLine]:
    table = call.args[0] if call.args else None
    if isinstance(table, ast.Name):
        table = scope.get(table.id)
    if isinstance(table, ast.Dict):
        yield from _literal_ids(table.keys, table.lineno, complain)
    else:
        complain(call.lineno, "cases_from() takes a dict literal of this file")


def _literal_ids(nodes: Sequence[ast.expr | None], line: int, complain: Complain) -> Iterator[IdAtLine]:
    """Return literal ids. Computed ones would require running the test. A `**other` in a dict is None here."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value, node.lineno
        else:
            complain(node.lineno if node else line, "the id of a case must be a string literal")


# ------------------------------------------------------------------------------------------------ the report


@dataclass(frozen=True)
class Report:
    """The list, and the tests that show its cases."""

    parts: tuple[Part, ...]
    tests: Mapping[str, tuple[str, ...]]
    problems: tuple[Problem, ...]

    def cases(self) -> Iterator[Case]:
        for part in self.parts:
            yield from part.cases()

    def status(self, case: Case) -> Status:
        return "shown" if case.id in self.tests else case.plan.kind

    def count(self, cases: Iterable[Case]) -> dict[str, int]:
        counts = Counter(COLUMN_OF[self.status(case)] for case in cases)
        return {column: counts[column] for column in COLUMNS}

    def by_plan(self, kind: PlanKind) -> dict[str, list[str]]:
        """Return the ids of the cases with this kind of plan, grouped by issue or reason, in the list's order."""
        groups: dict[str, list[str]] = {}
        for case in self.cases():
            if self.status(case) == kind:
                groups.setdefault(case.plan.text, []).append(case.id)
        return groups


def make_report(root: Path) -> Report:
    parts = load_parts(root / LIST_PATH)
    findings = find_marks(root)
    plans = {case.id: case.plan for part in parts for case in part.cases()}
    misuses = [problem for mark in findings.marks if (problem := _misuse(mark, plans))]
    tests = _tests_by_case(mark for mark in findings.marks if mark.case_id in plans)
    return Report(parts, tests, tuple(sorted({*findings.problems, *misuses})))


def _misuse(mark: Mark, plans: Mapping[str, Plan]) -> Problem | None:
    plan = plans.get(mark.case_id)
    if plan is None:
        return Problem(mark.path, mark.line, f"unknown case {mark.case_id!r}")
    if plan.kind == "open":
        return None
    # A case can't be both shown and deferred or overruled.
    return Problem(mark.path, mark.line, f"{mark.case_id} is {plan.kind} in {LIST_PATH}, yet a test shows it")


def _tests_by_case(marks: Iterable[Mark]) -> dict[str, tuple[str, ...]]:
    tests_by_case: dict[str, set[str]] = {}
    for mark in marks:
        tests_by_case.setdefault(mark.case_id, set()).add(mark.test)
    return {case_id: tuple(sorted(tests)) for case_id, tests in tests_by_case.items()}


def totals_line(report: Report) -> str:
    return ", ".join(f"{count} {column}" for column, count in report.count(report.cases()).items())


def render_text(report: Report) -> str:
    rows = [(part.code, report.count(part.cases())) for part in report.parts]
    rows.append(("total", report.count(report.cases())))
    lines = [f"{'part':<6}" + "".join(f"{column:>10}" for column in COLUMNS)]
    lines += [f"{name:<6}" + "".join(f"{count:>10}" for count in counts.values()) for name, counts in rows]
    return "\n".join([*lines, "", *_plan_lines(report), "", totals_line(report)])


def _plan_lines(report: Report) -> Iterator[str]:
    open_cases = report.by_plan("open")
    for issue in ISSUES:
        if issue in open_cases:
            yield f"open in {issue}: {len(open_cases[issue])}"
    for kind in ("deferred", "overruled"):
        for reason, ids in report.by_plan(kind).items():
            yield f"{kind} {', '.join(ids)}: {reason}"


def render_json(report: Report) -> str:
    answer = {
        "counts": report.count(report.cases()),
        "parts": {part.code: report.count(part.cases()) for part in report.parts},
        "cases": [_case_as_json(report, case) for case in report.cases()],
        "problems": [str(problem) for problem in report.problems],
    }
    return json.dumps(answer, ensure_ascii=False)


def _case_as_json(report: Report, case: Case) -> dict[str, object]:
    return {
        "id": case.id,
        "status": report.status(case),
        "tests": list(report.tests.get(case.id, ())),
        "plan": {case.plan.kind: case.plan.text},
    }


# ----------------------------------------------------------------------------------------------- the document

DOC_HEAD = """\
# Conformance

<!-- Generated from tests/conformance/cases.toml and the tests by `python tools/conformance.py --write`. -->

What Quarterdeck must do, as given / when / then. The character before the dash of an id names the part: 0 to 4 are
the five documents that Quarterdeck is based on, `U` is what the projects behind them check in their own tests, and
`X` is what must hold across all of them. `—` under *when* means that the *given* itself is the trigger. Sections
called *Totality* define what a document leaves open, without contradicting its rows. If a row has an amendment, the
amendment applies.

The last column names the tests that show the case, the issue for which it is *open*, or the reason why it is
*deferred* or *overruled* (the totals count both as deferred). [marks.py](../tests/conformance/marks.py) explains how a
test names its cases. Some rows refer to `design.md`, `facts/` and `seeds`, which are working papers of the project and
not in this repository.
"""


def render_document(report: Report) -> str:
    blocks = [DOC_HEAD, _count_table(report)]
    for part in report.parts:
        blocks.append(f"## {part.title}\n\n{part.note}\n")
        blocks += [_section_block(report, section) for section in part.sections]
    return "\n".join(blocks)


def _count_table(report: Report) -> str:
    lines = [f"| part | {' | '.join(COLUMNS)} |", "|---|---:|---:|---:|"]
    lines += [_count_row(part.title, report.count(part.cases())) for part in report.parts]
    lines.append(_count_row("**total**", report.count(report.cases())))
    return "\n".join(lines) + "\n"


def _count_row(title: str, counts: Mapping[str, int]) -> str:
    return f"| {title} | {' | '.join(str(count) for count in counts.values())} |"


def _section_block(report: Report, section: Section) -> str:
    lines = [f"### {section.code} {section.title}", "", "| id | given | when | then | shown by |"]
    lines.append("|---|---|---|---|---|")
    lines += [_case_row(report, case) for case in section.cases]
    return "\n".join(lines) + "\n"


def _case_row(report: Report, case: Case) -> str:
    then = f"{case.then}<br>*amended:* {case.amendment}" if case.amendment else case.then
    cells = (case.id, case.given, case.when, then, _shown_by(report, case))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _shown_by(report: Report, case: Case) -> str:
    tests = report.tests.get(case.id)
    if tests is None:
        return f"{case.plan.kind}: {case.plan.text}"
    return "<br>".join(_link(test) for test in tests)


def _link(test: str) -> str:
    # No line number in the link: otherwise every edit of a test file would change the document.
    path = test.partition("::")[0]
    return f"[{test}](../{path})"


# ------------------------------------------------------------------------------------------- the command line


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        report = make_report(options.root)
    except ListError as error:
        return _fail([f"{LIST_PATH}: {error}"])
    if report.problems:
        print(render_json(report) if options.json else render_text(report))
        return _fail(str(problem) for problem in report.problems)
    return _answer(options, report)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Report which tests show which cases of the acceptance list.")
    task = parser.add_mutually_exclusive_group()
    task.add_argument("--write", action="store_true", help=f"write {DOC_PATH}")
    task.add_argument("--check", action="store_true", help=f"fail if {DOC_PATH} is out of date")
    task.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="the repository to read")
    return parser


def _answer(options: argparse.Namespace, report: Report) -> int:
    document = options.root / DOC_PATH
    if options.json:
        print(render_json(report))
    elif options.check:
        return _check(document, render_document(report))
    else:
        if options.write:
            document.parent.mkdir(exist_ok=True)
            document.write_text(render_document(report), encoding="utf-8")
        print(render_text(report))
    return 0


def _check(document: Path, expected: str) -> int:
    if document.is_file() and document.read_text(encoding="utf-8") == expected:
        return 0
    return _fail([f"{DOC_PATH} is out of date: run `python tools/conformance.py --write`"])


def _fail(messages: Iterable[str]) -> int:
    for message in messages:
        print(message, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
