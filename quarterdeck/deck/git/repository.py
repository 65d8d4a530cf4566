"""Which repository a folder belongs to. Read from git's own files: no process is started for it."""

from __future__ import annotations

import os

from quarterdeck.events import Repo

_BRANCH = "ref: refs/heads/"


def repo_of(cwd: str) -> Repo | None:
    """The repository around this folder, a worktree being one of its own; None when there is none."""
    folder = cwd
    while True:
        git = os.path.join(folder, ".git")
        if os.path.exists(git):
            return Repo(root=folder, name=os.path.basename(folder) or folder, branch=_branch(git))
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent


def _branch(git: str) -> str:
    """'' when no branch is checked out, or nobody can tell."""
    try:
        if os.path.isfile(git):  # a worktree: the file says where its folder is
            with open(git, encoding="utf-8") as file:
                git = os.path.join(os.path.dirname(git), file.read().removeprefix("gitdir:").strip())
        with open(os.path.join(git, "HEAD"), encoding="utf-8") as file:
            head = file.read().strip()
    except (OSError, ValueError):  # no file, no text, no path
        return ""
    return head.removeprefix(_BRANCH) if head.startswith(_BRANCH) else ""
