"""Where a path leads, found out quickly: never anything else than `os.path.realpath` says."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarterdeck.deck.links import resolved

_NAMES = ["a", "b", "c", ".h", "..x", "d.e", "x..", "é", "a b", "\udc80"]
_TARGETS = ["a", "b", "../a", "..", ".", "nowhere", "b/../c", "/", "../../x", "a/b/c", "{root}/a", "{root}//a/."]
_name = st.sampled_from(_NAMES)
_step = st.tuples(st.lists(_name, min_size=1, max_size=3), st.sampled_from(["folder", "file", *_TARGETS]))
_asked = st.lists(st.sampled_from([*_NAMES, ".", "..", ""]), max_size=6)


@contextlib.contextmanager
def _tree(steps: list[tuple[list[str], str]]) -> Iterator[str]:
    """A folder in which these were made, as far as each could be."""
    root = os.path.realpath(tempfile.mkdtemp())
    for names, what in steps:
        path = os.path.join(root, *names)
        with contextlib.suppress(OSError):
            if what == "folder":
                os.makedirs(path)
            elif what == "file":
                Path(path).touch()
            else:
                os.symlink(what.replace("{root}", root), path)
    try:
        yield root
    finally:
        shutil.rmtree(root)


@given(
    st.lists(_step, max_size=12),
    st.lists(_asked, min_size=1, max_size=12),
    st.sampled_from(["", "/", "//", "/.", "/.."]),
)
def test_it_is_what_the_system_says(steps: list[tuple[list[str], str]], asked: list[list[str]], end: str) -> None:
    with _tree(steps) as root:
        for names in asked:
            path = "/".join((root, *names)) + end
            assert resolved(path) == os.path.realpath(path)


@pytest.mark.parametrize("path", ["", "/", "//", "//etc", "relative", "./a", "..", "~", "/nowhere/at/all", "/x" * 5000])
def test_paths_that_are_no_usual_ones(path: str) -> None:
    assert resolved(path) == os.path.realpath(path)


def test_links_on_the_way(tmp_path: Path) -> None:
    here = Path(os.path.realpath(tmp_path))
    (here / "real" / "below").mkdir(parents=True)
    (here / "real" / "file").touch()
    (here / "link").symlink_to("real")
    (here / "dangling").symlink_to("gone")
    (here / "loop").symlink_to("loop")
    assert resolved(f"{here}/link/below/new") == f"{here}/real/below/new"
    assert resolved(f"{here}/link") == f"{here}/real"
    assert resolved(f"{here}/dangling/x") == f"{here}/gone/x"
    for odd in ("loop/x", "real/file/x", "real/below/../file", "link/..", "real/below/new/new"):
        assert resolved(f"{here}/{odd}") == os.path.realpath(f"{here}/{odd}")


@pytest.mark.parametrize("mode", [0o000, 0o100, 0o400])
def test_a_folder_that_may_not_be_read(tmp_path: Path, mode: int) -> None:
    closed = tmp_path / "closed"
    (closed / "in").mkdir(parents=True)
    (closed / "link").symlink_to("in")
    closed.chmod(mode)
    try:
        for path in (f"{closed}/in/x", f"{closed}/link/x", f"{closed}/none"):
            assert resolved(path) == os.path.realpath(path)
    finally:
        closed.chmod(0o700)
