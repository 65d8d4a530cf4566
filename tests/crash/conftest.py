"""Create a home for each test, and kill all of its processes afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.life import Life

Live = Callable[..., Life]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "home"


@pytest.fixture
def live(home: Path) -> Iterator[Live]:
    """Return a function that starts a deck in this home."""
    lives: list[Life] = []

    def start(**options: Any) -> Life:
        lives.append(Life(home, **options))
        return lives[-1]

    yield start
    for life in lives:
        life.abandon()
