"""Create real git repositories for tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_ALONE = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.com",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.com",
}


class Repository:
    """A repository at `root`, with a commit of these files if there are any."""

    def __init__(self, root: Path, *options: str, **files: str) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self.git("init", "-q", "-b", "main", *options)
        for name, text in files.items():
            self.write(name.replace("__", "."), text)
        if files:
            self.commit()

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ("git", *arguments),
            cwd=self.root,
            env={**os.environ, **_ALONE},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def write(self, name: str, text: str | bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)

    def commit(self) -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "x")

    def as_it_is(self) -> dict[str, bytes]:
        """Return every file of the `.git` folder with its content."""
        folder = self.root / ".git"
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
