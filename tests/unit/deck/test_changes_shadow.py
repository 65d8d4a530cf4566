"""Test snapshots of real repositories: complete, without changing the user's files or obeying the user's git settings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quarterdeck.deck.git import snapshots as module
from quarterdeck.deck.git.diff import ChangedFile
from quarterdeck.deck.git.run_git import Git, GitFailed
from quarterdeck.deck.git.snapshots import SnapshotRepository, list_roots
from tests.support.git_repositories import Repository

TEXT = "one\ntwo\nthree\nfour\nfive\n"


def shadow_of(repository: Repository, folder: Path, git: Git | None = None) -> SnapshotRepository:
    home = folder / "home"
    home.mkdir(exist_ok=True)
    return SnapshotRepository(git or Git(), home / "changes" / "x.git", str(repository.root), home)


def shown(files: list[ChangedFile]) -> dict[str, tuple[str, int, int]]:
    return {one.path: (one.status, one.added, one.removed) for one in files}


def test_all_that_git_would_track_and_nothing_of_the_users_is_touched(tmp_path: Path):
    repository = Repository(
        tmp_path / "repo", kept="k\n", changed=TEXT, staged="s\n", gone="g\n", moved=TEXT, __gitignore="ignored\n"
    )
    repository.write("untracked", "was here before\n")
    shadow = shadow_of(repository, tmp_path)
    before = shadow.snapshot()
    repository.write("changed", TEXT.replace("two", "2") + "six\n")
    repository.write("staged", "s\nt\n")
    repository.git("add", "staged")
    (repository.root / "gone").unlink()
    (repository.root / "moved").rename(repository.root / "there")
    repository.write("deep/new", "a\nb\n")
    repository.write("binary", b"\0\1\2")
    repository.write("untracked", "was here before\nand more\n")
    repository.write("ignored", "not seen\n")
    own = repository.as_it_is()
    found = shadow.compare(before, shadow.snapshot())
    assert shown(found) == {
        "changed": ("modified", 2, 1),
        "staged": ("modified", 1, 0),
        "gone": ("deleted", 0, 1),
        "there": ("renamed", 0, 0),
        "deep/new": ("added", 2, 0),
        "binary": ("added", 0, 0),
        "untracked": ("modified", 1, 0),
    }
    assert {one.path for one in found if one.binary} == {"binary"}
    assert {one.old_path for one in found} == {"", "moved"}
    patch, is_whole = shadow.patch(before, shadow.snapshot())
    assert is_whole
    assert "-two\n+2\n" in patch
    assert "rename from moved\nrename to there\n" in patch
    assert repository.as_it_is() == own
    assert shadow.compare(before, before) == []


def test_what_is_configured_in_a_repository_is_not_run(tmp_path: Path):
    repository = Repository(tmp_path / "repo", text="a\n", __gitattributes="* filter=evil diff=evil\n")
    shadow = shadow_of(repository, tmp_path)
    before = shadow.snapshot()
    ran = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {ran}\ncat\n")
    program.chmod(0o755)
    names = ("core.fsmonitor", "filter.evil.clean", "filter.evil.process", "diff.external", "diff.evil.textconv")
    for name in (*names, "diff.evil.command", "core.sshCommand", "core.pager"):
        repository.git("config", name, str(program))
    repository.git("config", "core.hooksPath", str(tmp_path))
    repository.write("text", "a\nb\n")
    after = shadow.snapshot()
    assert shown(shadow.compare(before, after)) == {"text": ("modified", 1, 0)}
    assert "+b" in shadow.patch(before, after)[0]
    assert not ran.exists()


def test_what_the_user_ignores_everywhere_and_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    repository = Repository(tmp_path / "repo", a="a\n")
    (tmp_path / "everywhere").write_text("*.swp\n")
    (tmp_path / "config").write_text(f"[core]\n\texcludesFile = {tmp_path}/everywhere\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    # The process that started the server may have set GIT_DIR.
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    (repository.root / ".git" / "info" / "exclude").write_text("local\n")
    shadow = shadow_of(repository, tmp_path)
    before = shadow.snapshot()
    for name in ("x.swp", "local", "seen"):
        repository.write(name, "x\n")
    assert shown(shadow.compare(before, shadow.snapshot())) == {"seen": ("added", 1, 0)}


@pytest.mark.parametrize("options", [(), ("--object-format=sha256",)])
def test_a_repository_without_a_commit(tmp_path: Path, options: tuple[str, ...]):
    repository = Repository(tmp_path / "repo", *options)
    shadow = shadow_of(repository, tmp_path)
    before = shadow.snapshot()
    repository.write("first", "1\n")
    repository.git("add", "first")
    assert shown(shadow.compare(before, shadow.snapshot())) == {"first": ("added", 1, 0)}
    repository.commit()
    assert shown(shadow.compare(before, shadow.snapshot())) == {"first": ("added", 1, 0)}


def test_a_worktree_and_a_repository_in_a_repository(tmp_path: Path):
    main = Repository(tmp_path / "main", a="a\n")
    main.git("worktree", "add", "-q", str(tmp_path / "tree"))
    tree = Repository.__new__(Repository)
    tree.root = tmp_path / "tree"
    Repository(tree.root / "nested", b="b\n")
    Repository(tree.root / "empty")
    shadow = shadow_of(tree, tmp_path)
    before = shadow.snapshot()
    tree.write("a", "a\nb\n")
    tree.write("nested/b", "changed\n")
    tree.write("empty/c", "c\n")
    main.write("a", "other\n")
    assert shown(shadow.compare(before, shadow.snapshot())) == {"a": ("modified", 1, 0)}


def test_a_submodule_is_one_entry(tmp_path: Path):
    inner = Repository(tmp_path / "inner", b="b\n")
    repository = Repository(tmp_path / "repo", a="a\n")
    repository.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner.root), "sub")
    repository.commit()
    shadow = shadow_of(repository, tmp_path)
    before = shadow.snapshot()
    sub = Repository.__new__(Repository)
    sub.root = repository.root / "sub"
    sub.write("b", "c\n")
    sub.commit()
    assert shown(shadow.compare(before, shadow.snapshot())) == {"sub": ("modified", 1, 1)}


def test_a_merge_with_conflicts(tmp_path: Path):
    repository = Repository(tmp_path / "repo", a="a\n")
    repository.git("checkout", "-q", "-b", "other")
    repository.write("a", "b\n")
    repository.commit()
    repository.git("checkout", "-q", "main")
    repository.write("a", "c\n")
    repository.commit()
    with pytest.raises(AssertionError):
        repository.git("merge", "other")
    own = repository.as_it_is()
    shadow = shadow_of(repository, tmp_path)
    before = shadow.snapshot()
    repository.write("a", "mended\n")
    found = shadow.compare(before, shadow.snapshot())
    assert [(one.path, one.status, one.added) for one in found] == [("a", "modified", 1)]
    assert repository.as_it_is() == own


def test_a_file_becomes_a_folder_and_back_and_a_link(tmp_path: Path):
    repository = Repository(tmp_path / "repo", a="a\n", b="b\n")
    shadow = shadow_of(repository, tmp_path)
    first = shadow.snapshot()
    (repository.root / "a").unlink()
    repository.write("a/inside", "i\n")
    (repository.root / "b").unlink()
    (repository.root / "b").symlink_to("nowhere")
    second = shadow.snapshot()
    assert shown(shadow.compare(first, second)) == {
        "a": ("deleted", 0, 1),
        "a/inside": ("added", 1, 0),
        "b": ("type_changed", 1, 1),
    }
    (repository.root / "a" / "inside").unlink()
    (repository.root / "a").rmdir()
    (repository.root / "b").unlink()
    for name in ("a", "b"):
        repository.write(name, f"{name}\n")
    assert shadow.snapshot() == first


def test_names_that_are_hard_to_say(tmp_path: Path):
    repository = Repository(tmp_path / "repo: a \"b\" 'c' \\d", a="a\n")
    shadow = shadow_of(repository, tmp_path)
    before = shadow.snapshot()
    names = ["-rf", "with space", "new\nline", "tab\t", "ümlaut", "*", ":(exclude)a", '"quoted"']
    for name in names:
        repository.write(name, "x\n")
    with open(os.fsencode(repository.root) + b"/\xff", "w") as file:
        file.write("x\n")
    found = shown(shadow.compare(before, shadow.snapshot()))
    assert found == dict.fromkeys([*names, "�"], ("added", 1, 0))


def test_what_is_big_is_not_stored_and_seen_to_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "BIG_FILE", 1000)
    repository = Repository(tmp_path / "repo", tracked="x\n" * 2000, __gitignore="ignored\n")
    repository.write("ignored", "y\n")
    repository.git("add", "-f", "ignored")
    repository.commit()
    shadow = shadow_of(repository, tmp_path)
    first = shadow.snapshot()
    repository.write("tracked", "x\n" * 2001)
    repository.write("new", "secret\n" * 1000)
    repository.write("ignored", "z\n" * 1000)
    second = shadow.snapshot()
    found = shadow.compare(first, second)
    assert shown(found) == {
        "tracked": ("modified", 0, 0),
        "new": ("added", 0, 0),
        "ignored": ("modified", 0, 0),
    }
    assert all(one.binary for one in found)
    assert "secret" not in shadow.patch(first, second)[0]
    assert shadow.snapshot() == second
    os.utime(repository.root / "new", ns=(1, 1))
    assert shown(shadow.compare(second, shadow.snapshot())) == {"new": ("modified", 0, 0)}
    (repository.root / "new").unlink()
    assert "new" not in shown(shadow.compare(first, shadow.snapshot()))


def test_a_patch_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "PATCH_LIMIT", 1000)
    repository = Repository(tmp_path / "repo", a="a\n")
    shadow = shadow_of(repository, tmp_path)
    before = shadow.snapshot()
    repository.write("long", "line\n" * 100_000)
    after = shadow.snapshot()
    patch, is_whole = shadow.patch(before, after)
    assert not is_whole
    assert 900 < len(patch) <= 1000
    assert patch.endswith("+line\n")
    assert shown(shadow.compare(before, after)) == {"long": ("added", 100_000, 0)}


def test_the_deck_does_not_see_itself(tmp_path: Path):
    repository = Repository(tmp_path, a="a\n")
    shadow = shadow_of(repository, tmp_path)
    before = shadow.snapshot()
    (tmp_path / "home" / "quarterdeck.db").write_text("x")
    assert shadow.snapshot() == before


def test_what_a_killed_git_left_is_in_nobodys_way(tmp_path: Path):
    repository = Repository(tmp_path / "repo", a="a\n")
    shadow = shadow_of(repository, tmp_path)
    before = shadow.snapshot()
    place = tmp_path / "home" / "changes" / "x.git"
    (place / "index.lock").write_text("")
    (place / "index").write_text("torn")
    repository.write("a", "b\n")
    assert shown(shadow.compare(before, shadow.snapshot())) == {"a": ("modified", 1, 1)}


def test_one_file_that_git_cannot_take_does_not_keep_the_others(tmp_path: Path):
    repository = Repository(tmp_path / "repo", **{f"f{n}": "a\n" for n in range(9)}, sub="x\n")
    shadow = shadow_of(repository, tmp_path)
    before = shadow.snapshot()
    for number in range(9):
        repository.write(f"f{number}", "b\n")
    settings = shadow._settings(module.locate_user_repository(str(repository.root)))
    listed = [b"f%d" % number for number in range(9)]
    shadow._update_index([*listed[:4], b"../outside", *listed[4:]], settings, [20])
    assert len(shadow.compare(before, shadow._write_tree({}, settings))) == 9


def test_snapshots_are_kept_by_name_and_forgotten(tmp_path: Path):
    repository = Repository(tmp_path / "repo", a="a\n")
    shadow = shadow_of(repository, tmp_path)
    assert shadow.load("s1") == {}
    first = shadow.save("s1", ("start", "turn"), shadow.snapshot(), 7)
    other = shadow.save("not a ref..lock", ("start",), shadow.snapshot(), 8)
    assert shadow.load("s1") == {"start": first, "turn": first}
    assert first.at == 7
    assert shadow.load("not a ref..lock") == {"start": other}
    shadow.drop("s1", "turn")
    assert shadow.load("s1") == {"start": first}
    assert list_roots(tmp_path / "home" / "changes") == [str(repository.root)]
    shadow.prune(frozenset({"not a ref..lock"}), collect_garbage=True)
    assert shadow.load("s1") == {}
    assert shadow.load("not a ref..lock") == {"start": other}
    shadow.prune(frozenset(), collect_garbage=False)
    assert list_roots(tmp_path / "home" / "changes") == []


def test_a_repository_that_is_gone_and_a_git_that_is_told_to_end(tmp_path: Path):
    repository = Repository(tmp_path / "repo", a="a\n")
    git = Git()
    shadow = shadow_of(repository, tmp_path, git)
    shadow.snapshot()
    repository.root.rename(tmp_path / "elsewhere")
    with pytest.raises(GitFailed, match="No such file"):
        shadow.snapshot()
    git.close()
    with pytest.raises(GitFailed, match="closing"):
        shadow.load("s1")
