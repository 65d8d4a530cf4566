"""Settings that every test shares."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.crash import report

# "ci" finds the same examples on every run and on every machine, so that a red run can be believed and repeated.
# Looking for new ones is a thing to do on purpose: HYPOTHESIS_PROFILE=explore pytest …
settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", deadline=None, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture
def hangups_are_heard() -> Iterator[None]:
    """Whoever is started in this test hears SIGHUP, also if the tests run under nohup: what is ignored is inherited."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The crash suite's report: here, because of a sub-folder's conftest the head of a parallel run never hears."""
    kills: Counter[tuple[str, str]] = Counter()
    failures: list[str] = []
    for outcome in ("passed", "failed"):
        for one in terminalreporter.stats.get(outcome, ()):
            for name, value in getattr(one, "user_properties", ()):
                if name == "kills":
                    kills.update({(point, victim): count for point, victim, count in value})
                    failures += [one.nodeid] if outcome == "failed" else []
    if kills:
        terminalreporter.section("crash suite")
        for line in report.lines(kills, failures):
            terminalreporter.write_line(line)
