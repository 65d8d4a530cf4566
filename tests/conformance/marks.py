"""Mark tests with the cases of the acceptance list (cases.toml) that they show.

On a function or a class:

    @case("0-044", "0-045")
    def test_start() -> None: ...

On one row of a parametrized test, in the decorator or in a table that the decorator names:

    @pytest.mark.parametrize("event", [pytest.param("cancel_session", marks=case("0-059"))])
    def test_event(event: str) -> None: ...

As a table with one row per case:

    ROWS = {
        "0-044": ("idle", "start_session", "creating"),
        "0-048": ("creating", "process_error", "error"),
    }

    @cases_from(ROWS, "before, event, after")
    def test_row(before: str, event: str, after: str) -> None: ...

tools/conformance.py reads the marks from the source and never imports it. So write ids as plain strings: the tool refuses
ids that a loop or a format string creates.
"""

from collections.abc import Mapping
from typing import cast

import pytest

case = pytest.mark.case


def cases_from(table: Mapping[str, object], argnames: str = "row") -> pytest.MarkDecorator:
    """Run the test once for each row, marked with the row's case. Several names unpack the row, which is a tuple."""
    several = "," in argnames
    rows = [
        pytest.param(*(cast("tuple[object, ...]", row) if several else (row,)), marks=case(case_id), id=case_id)
        for case_id, row in table.items()
    ]
    return pytest.mark.parametrize(argnames, rows)
