"""Run git without executing anything that the user's repository configures.

An agent can write whatever it likes into the configuration of the repository that it works in: a file system monitor,
filters, an external diff. Each of those is a program, and git would run it with rights that the agent may not have. So git
only ever runs in a repository of our own, and reads no configuration but ours.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from quarterdeck.errors import QuarterdeckError

#: Time limit for one git command, however large the repository is.
LIMIT_S = 120.0
#: Characters of git's error output that an error message quotes.
_STDERR_LIMIT = 300

#: Variables that git inherits. Everything else is left out, above all every GIT_* variable of the server's parent.
_INHERITED = ("PATH", "HOME", "XDG_CONFIG_HOME", "TMPDIR")
_ISOLATION = {
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
    """git isn't installed on this machine."""

    code = "git_missing"

    def __init__(self) -> None:
        super().__init__("git isn't installed", "Install git. Changes are tracked from the next turn on.")


class GitFailed(QuarterdeckError):
    """A git command failed."""

    code = "git_failed"

    def __init__(self, command: str, why: str) -> None:
        super().__init__(f"git {command}: {why}", "Try again. If the error persists, see the server's log.")


class Git:
    """Runs git commands and can kill all running ones at once. Methods block, so call them from threads."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_closed = False

    def close(self) -> None:
        """Kill all running commands. Every later command fails."""
        self._is_closed = True
        for process in list(self._running):
            process.kill()

    def run(self, *arguments: str, settings: Mapping[str, str], stdin: bytes = b"") -> bytes:
        """Run a git command and return its output. `settings` are added to the environment.

        Raises:
            GitFailed: the command failed, took too long, or the deck is closing.
            GitMissing: git isn't installed.
        """
        with self._start(arguments, settings) as process:
            stdout, stderr = process.communicate(stdin)
        if process.returncode:
            raise GitFailed(arguments[0], _shorten(stderr) or f"exited with {process.returncode}")
        return stdout

    def read_start(self, *arguments: str, settings: Mapping[str, str], limit: int) -> tuple[bytes, bool]:
        """Run a git command and return the first `limit` bytes of its output, and whether that is all of it.

        Raises:
            GitFailed: the command failed, took too long, or the deck is closing.
            GitMissing: git isn't installed.
        """
        with self._start(arguments, settings, subprocess.DEVNULL) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            stdout = process.stdout.read(limit + 1)
            if len(stdout) > limit:
                process.kill()
                return stdout[:limit], False
        if process.returncode:
            raise GitFailed(arguments[0], f"exited with {process.returncode}")
        return stdout, True

    @contextmanager
    def _start(
        self, arguments: tuple[str, ...], settings: Mapping[str, str], stderr: int = subprocess.PIPE
    ) -> Generator[subprocess.Popen[bytes]]:
        if self._is_closed:
            raise GitFailed(arguments[0], "the deck is closing")
        pipe, folder = subprocess.PIPE, settings.get("GIT_WORK_TREE", "/")
        environment = {**_inherited_environment(), **_ISOLATION, **settings}
        try:
            process = subprocess.Popen(
                ("git", *arguments), env=environment, cwd=folder, stdin=pipe, stdout=pipe, stderr=stderr
            )
        except OSError as error:
            raise _start_error(error, arguments[0], folder) from None
        timer = threading.Timer(LIMIT_S, process.kill)
        timer.start()
        self._running.add(process)
        # `close` runs on another thread and may have missed this process, so check again now that it is registered.
        if self._is_closed:
            process.kill()
        try:
            with process:
                yield process
        finally:
            timer.cancel()
            self._running.discard(process)


def global_excludes_file() -> str:
    """Return the file with the user's global ignore patterns, or '' if none is configured and git's default applies.

    `git config` runs no configured programs, so reading the user's own configuration is safe here.

    Raises:
        GitMissing: git isn't installed.
    """
    user_config = {name: os.environ[name] for name in ("GIT_CONFIG_GLOBAL",) if name in os.environ}
    command = ("git", "config", "--global", "--path", "core.excludesFile")
    try:
        result = subprocess.run(
            command,
            env=_inherited_environment() | user_config,
            cwd="/",
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
    except FileNotFoundError:
        raise GitMissing from None
    return os.fsdecode(result.stdout).strip()


def _inherited_environment() -> dict[str, str]:
    return {name: os.environ[name] for name in _INHERITED if name in os.environ}


def _start_error(error: OSError, command: str, folder: str) -> QuarterdeckError:
    # A missing working folder raises FileNotFoundError too. Only `filename` tells the two apart.
    if isinstance(error, FileNotFoundError) and error.filename != folder:
        return GitMissing()
    return GitFailed(command, f"{error.filename}: {error.strerror}")


def _shorten(stderr: bytes) -> str:
    return stderr.decode(errors="replace").strip().replace("\n", "; ")[:_STDERR_LIMIT]
