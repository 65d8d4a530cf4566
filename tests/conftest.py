"""Define the settings and fixtures that every test shares."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.crash import report

# The profile "ci" tries the same examples on every run and machine, so that a failure can be repeated. Search for new
# ones with HYPOTHESIS_PROFILE=explore pytest …
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


# A shell without job control starts background commands with SIGINT ignored, and processes inherit that. Tests that send
# Ctrl-C to a process would then wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def hangups_are_heard() -> Iterator[None]:
    """Reset SIGHUP, so that processes of this test receive it under nohup too: an ignored signal is inherited."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the crash suite's report. The controller of a parallel run doesn't load a subfolder's conftest."""
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
