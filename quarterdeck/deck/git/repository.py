"""Find the git repository around a folder by reading git's own files, without starting a process."""

from __future__ import annotations

import os

from quarterdeck.events import Repo

_BRANCH = "ref: refs/heads/"


def find_repository(cwd: str) -> Repo | None:
    """Return the repository that contains this folder, or None. A worktree counts as a repository of its own."""
    folder = cwd
    while True:
        git = os.path.join(folder, ".git")
        if os.path.exists(git):
            return Repo(root=folder, name=os.path.basename(folder) or folder, branch=_read_branch(git))
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent


def _read_branch(git: str) -> str:
    """Return the name of the branch that is checked out, or '' if none is or the files can't be read."""
    try:
        if os.path.isfile(git):
            # In a worktree, `.git` is a file that names the real folder.
            with open(git, encoding="utf-8") as file:
                git = os.path.join(os.path.dirname(git), file.read().removeprefix("gitdir:").strip())
        with open(os.path.join(git, "HEAD"), encoding="utf-8") as file:
            head = file.read().strip()
    except (OSError, ValueError):  # ValueError: not UTF-8, or the named path contains a NUL character.
        return ""
    return head.removeprefix(_BRANCH) if head.startswith(_BRANCH) else ""
