"""Check every batch of events that agents write in these tests against the rules of the product model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.engine import judged


@pytest.fixture(autouse=True)
def lawful() -> Iterator[None]:
    with judged() as broken:
        yield
    assert broken == []
