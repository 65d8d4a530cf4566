"""git as a tool that obeys nobody but us.

An agent can write what it likes into the configuration of the repository that it works in: a file system monitor, filters,
an external diff. Each of them is a program, and we would run it with rights that the agent may not have. So git is only
ever run in a repository of our own, and no configuration of anybody else's is read.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from quarterdeck.errors import QuarterdeckError

#: However large a repository is, nobody waits longer for one step of git.
LIMIT_S = 120.0
_SAID = 300

#: What git is told of the outside world. Everything else, and every GIT_* of whoever started us, is left out.
_KEPT = ("PATH", "HOME", "XDG_CONFIG_HOME", "TMPDIR")
_ALONE = {
    "LC_ALL": "C",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_AUTHOR_NAME": "Quarterdeck",
    "GIT_AUTHOR_EMAIL": "deck@localhost",
    "GIT_COMMITTER_NAME": "Quarterdeck",
    "GIT_COMMITTER_EMAIL": "deck@localhost",
}


class GitMissing(QuarterdeckError):
    """There is no git on this machine."""

    code = "git_missing"

    def __init__(self) -> None:
        super().__init__("git is not installed", "Install git; from the next turn on changes are known.")


class GitFailed(QuarterdeckError):
    """git did not do what it was told."""

    code = "git_failed"

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"git {what}: {why}", "Ask again; if it stays, the server's log says more.")


class Git:
    """All that run at the moment can be ended at once. Its methods block: they are for threads."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_closed = False

    def close(self) -> None:
        """Ends what runs; from now on everything fails."""
        self._is_closed = True
        for process in list(self._running):
            process.kill()

    def run(self, *arguments: str, settings: Mapping[str, str], given: bytes = b"") -> bytes:
        """What it says. GitFailed."""
        with self._begun(arguments, settings) as process:
            said, complaint = process.communicate(given)
        if process.returncode:
            raise GitFailed(arguments[0], _told(complaint) or f"it ended with {process.returncode}")
        return said

    def begin_of(self, *arguments: str, settings: Mapping[str, str], limit: int) -> tuple[bytes, bool]:
        """The first bytes of what it says, and whether that is all."""
        with self._begun(arguments, settings, subprocess.DEVNULL) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            said = process.stdout.read(limit + 1)
            if len(said) > limit:
                process.kill()
                return said[:limit], False
        if process.returncode:
            raise GitFailed(arguments[0], f"it ended with {process.returncode}")
        return said, True

    @contextmanager
    def _begun(
        self, arguments: tuple[str, ...], settings: Mapping[str, str], stderr: int = subprocess.PIPE
    ) -> Generator[subprocess.Popen[bytes]]:
        if self._is_closed:
            raise GitFailed(arguments[0], "the deck is closing")
        pipe, folder = subprocess.PIPE, settings.get("GIT_WORK_TREE", "/")
        environment = {**_kept(), **_ALONE, **settings}
        try:
            process = subprocess.Popen(
                ("git", *arguments), env=environment, cwd=folder, stdin=pipe, stdout=pipe, stderr=stderr
            )
        except OSError as error:
            raise _refusal(error, arguments[0], folder) from None
        timer = threading.Timer(LIMIT_S, process.kill)
        timer.start()
        self._running.add(process)
        if self._is_closed:  # just now
            process.kill()
        try:
            with process:
                yield process
        finally:
            timer.cancel()
            self._running.discard(process)


def ignored_everywhere() -> str:
    """The file in which the user says what git is to ignore everywhere; '' when none is named, and git's default holds.

    `git config` reads and runs nothing, so here the user's own configuration may be read."""
    own = {name: os.environ[name] for name in ("GIT_CONFIG_GLOBAL",) if name in os.environ}
    asked = ("git", "config", "--global", "--path", "core.excludesFile")
    try:
        done = subprocess.run(asked, env=_kept() | own, cwd="/", capture_output=True, timeout=LIMIT_S, check=False)
    except FileNotFoundError:
        raise GitMissing from None
    return os.fsdecode(done.stdout).strip()


def _kept() -> dict[str, str]:
    return {name: os.environ[name] for name in _KEPT if name in os.environ}


def _refusal(error: OSError, what: str, folder: str) -> QuarterdeckError:
    if isinstance(error, FileNotFoundError) and error.filename != folder:
        return GitMissing()
    return GitFailed(what, f"{error.filename}: {error.strerror}")


def _told(complaint: bytes) -> str:
    return complaint.decode(errors="replace").strip().replace("\n", "; ")[:_SAID]
