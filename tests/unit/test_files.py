"""Test atomic replacement and locking of files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from quarterdeck.files import locked, write_atomic


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_replaced_and_private(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"one", durable=durable)
    write_atomic(path, "zwö", durable=durable)
    assert path.read_text("utf-8") == "zwö"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    write_atomic(path, "three", mode=0o644, durable=durable)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(tmp_path) == ["file"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_atomic(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomic(path, "old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_lock_is_exclusive_and_ends_with_its_block(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path), pytest.raises(BlockingIOError), locked(path, wait=False):
        pass
    with locked(path, wait=False):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
