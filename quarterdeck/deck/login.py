"""Read the environment of the user's login shell: what a program would get that the user starts in a new terminal.

A server can be started from anywhere: by a service manager, by a script, in a project's shell. Agents should not inherit
whatever was set there. So the user's own shell is asked once, as a login shell, what it exports. It's asked again only
when one of its startup files changed, or a client requests it. If the shell can't answer, agents get the server's own
environment, and their sessions say so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pwd
import secrets
import signal
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Literal, TypeAlias

from quarterdeck.errors import QuarterdeckError

log = logging.getLogger("quarterdeck.environment")

Source: TypeAlias = Literal["login_shell", "server", "caller"]

#: Startup files of some users take seconds, and twice as long on a busy machine.
LIMIT_S = 10.0
_OUTPUT_LIMIT = 4 * 1024 * 1024
#: How long a shell may take to exit after its output is complete, or after it was signalled.
_EXIT_S = 2.0
#: Set for the shell, so that startup files can tell why they are read.
ASKING = "QUARTERDECK_ASKING"
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
#: Variables of the user's login session. A login shell inherits them and doesn't set them.
_SESSION_VARIABLES = frozenset(
    [
        "LANG",
        "LANGUAGE",
        "TZ",
        "TMPDIR",
        "DISPLAY",
        "WAYLAND_DISPLAY",
        "XAUTHORITY",
        "DBUS_SESSION_BUS_ADDRESS",
        "XDG_RUNTIME_DIR",
        "XDG_SESSION_ID",
        "XDG_SESSION_TYPE",
        "XDG_CURRENT_DESKTOP",
        "SSH_AUTH_SOCK",
        "QUARTERDECK_HOME",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "NO_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "no_proxy",
    ]
)
#: Variables that only concern the shell itself, or us.
_SHELL_VARIABLES = ("_", "SHLVL", "PWD", "OLDPWD", ASKING)
#: Startup files of shells, relative to the home folder. For a folder, all files in it count.
_HOME_FILES = [
    ".profile",
    ".bash_profile",
    ".bash_login",
    ".bashrc",
    ".zshenv",
    ".zprofile",
    ".zshrc",
    ".zlogin",
    ".config/fish/config.fish",
    ".config/fish/conf.d",
    ".config/environment.d",
    ".kshrc",
    ".mkshrc",
    ".pam_environment",
]
_SYSTEM_FILES = [
    "/etc/profile",
    "/etc/profile.d",
    "/etc/bash.bashrc",
    "/etc/bashrc",
    "/etc/zshenv",
    "/etc/zprofile",
    "/etc/zshrc",
    "/etc/zsh/zshenv",
    "/etc/zsh/zprofile",
    "/etc/zsh/zshrc",
    "/etc/environment",
    "/etc/fish/config.fish",
    "/etc/paths",
    "/etc/paths.d",
]


class ShellSaidNothing(QuarterdeckError):
    """The login shell didn't print its environment."""

    code = "shell_said_nothing"

    def __init__(self, shell: str, why: str) -> None:
        super().__init__(f"{shell}: {why}", f"Try `{shell} -l -i -c env`, then `POST /environment`.")


class LoginShell:
    """The environment of the user's login shell, cached until a startup file changes."""

    def __init__(self, own: Mapping[str, str], limit_s: float = LIMIT_S) -> None:
        """Use the shell that `own`, the environment of this process, names. It has `limit_s` to answer."""
        self._own = dict(own)
        self._limit_s = limit_s
        self.shell = own.get("SHELL") or _user_shell()
        self.source: Source = "server"
        #: Why the shell's environment couldn't be read the last time, or ''.
        self.problem = ""
        #: When the shell was last asked, in milliseconds.
        self.asked_at = 0
        self._environment: Mapping[str, str] | None = None
        self._file_stamps: tuple[object, ...] | None = None
        self._asking: asyncio.Task[None] | None = None

    @property
    def variables(self) -> int:
        """Number of variables."""
        return len(self._own if self._environment is None else self._environment)

    async def current(self) -> Mapping[str, str]:
        """Return the environment for an agent that starts now."""
        stamps = await asyncio.to_thread(_stamp_files, self._own)
        if stamps != self._file_stamps:
            await self.refresh()
        return self._own if self._environment is None else self._environment

    async def refresh(self) -> None:
        """Ask the shell again. Concurrent callers share one shell."""
        if self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(self._ask())
        # Shielded, so that a cancelled caller doesn't cancel the shell for the others.
        await asyncio.shield(self._asking)

    async def close(self) -> None:
        """End the shell if it's running."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait({self._asking})

    async def _ask(self) -> None:
        try:
            self._file_stamps = await asyncio.to_thread(_stamp_files, self._own)
            self._environment = await read_shell_environment(
                self.shell, _initial_environment(self._own, self.shell), self._limit_s
            )
            self.source, self.problem = "login_shell", ""
        except ShellSaidNothing as error:
            self.problem = error.message
            used = "its previous output" if self._environment is not None else "the server's own environment"
            log.warning("the login shell's environment can't be read; agents get %s", used)
        finally:
            self.asked_at = int(time.time() * 1000)
            self._asking = None


def _user_shell() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh"
    except KeyError:
        return "/bin/sh"


def _initial_environment(own: Mapping[str, str], shell: str) -> dict[str, str]:
    """Return what a terminal would start the shell with: the user's identity and the login session's variables."""
    session = {name: value for name, value in own.items() if name in _SESSION_VARIABLES or name.startswith("LC_")}
    home = own.get("HOME") or os.path.expanduser("~")
    user = own.get("USER") or own.get("LOGNAME") or os.path.basename(home)
    identity = {"HOME": home, "USER": user, "LOGNAME": user, "SHELL": shell}
    return {**session, **identity, "PATH": _PATH, "TERM": "xterm-256color", ASKING: "1"}


def _stamp_files(own: Mapping[str, str]) -> tuple[object, ...]:
    """Return path, time and size of all startup files, to notice changes."""
    home = own.get("HOME") or os.path.expanduser("~")
    folders = [home] + ([own["ZDOTDIR"]] if "ZDOTDIR" in own else [])
    paths = [*_SYSTEM_FILES, *(os.path.join(folder, name) for folder in folders for name in _HOME_FILES)]
    return tuple(stamp for path in paths for stamp in _stamp_path(path))


def _stamp_path(path: str) -> list[tuple[str, int, int]]:
    try:
        info = os.stat(path)
        names = os.listdir(path) if os.path.isdir(path) else []
    except OSError:
        return []
    inside = [stamp for name in sorted(names)[:100] for stamp in _stamp_path(os.path.join(path, name))]
    return [(path, info.st_mtime_ns, info.st_size), *inside]


# --- asking the shell


async def read_shell_environment(
    shell: str, environment: Mapping[str, str], limit_s: float = LIMIT_S
) -> dict[str, str]:
    """Start a login shell and return what it exports.

    Raises:
        ShellSaidNothing: the shell can't be started, takes too long, or prints no environment.
    """
    why = ""
    # Try an interactive shell first: many users set their paths only there.
    for flags in (("-l", "-i", "-c"), ("-l", "-c")):
        try:
            async with asyncio.timeout(limit_s):
                variables, why = await _run_shell(shell, flags, environment)
        except TimeoutError:
            raise ShellSaidNothing(shell, f"no answer within {limit_s:g} seconds") from None
        if variables:
            return variables
    raise ShellSaidNothing(shell, why)


async def _run_shell(shell: str, flags: tuple[str, ...], environment: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Run the shell once. Return the variables it exports, or none and the reason."""
    # The marks separate the environment from whatever the startup files print.
    mark = secrets.token_hex(16)
    command = f"printf %s {mark}; /usr/bin/env -0; printf %s {mark}"
    async with _open_pipe() as (reader, writer):
        try:
            process = await _start_shell((shell, *flags, command), environment, writer)
        except (OSError, ValueError) as error:
            return {}, error.strerror if isinstance(error, OSError) and error.strerror else "can't be started"
        finally:
            os.close(writer)
        output = None
        try:
            output = await _read_between_marks(reader, mark.encode())
        finally:
            await _end_shell(process, is_done=output is not None)
    if output is None:
        return {}, f"exited with {process.returncode} without printing its environment"
    variables = _parse_variables(output)
    return (variables, "") if "PATH" in variables else ({}, "printed no PATH")


@asynccontextmanager
async def _open_pipe() -> AsyncGenerator[tuple[asyncio.StreamReader, int]]:
    """Open a pipe for the shell's output.

    It's ours and not the subprocess module's, so that we can close it: a background program that the startup files start may
    hold the other end open for ever.
    """
    source, writer = os.pipe()
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    file = os.fdopen(source, "rb", 0)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    try:
        yield reader, writer
    finally:
        transport.close()


async def _start_shell(
    command: tuple[str, ...], environment: Mapping[str, str], writer: int
) -> asyncio.subprocess.Process:
    nothing = asyncio.subprocess.DEVNULL
    home = environment["HOME"]
    folder = home if await asyncio.to_thread(os.path.isdir, home) else "/"
    return await asyncio.create_subprocess_exec(
        *command, stdin=nothing, stdout=writer, stderr=nothing, env=environment, cwd=folder, start_new_session=True
    )


async def _read_between_marks(reader: asyncio.StreamReader, mark: bytes) -> bytes | None:
    data = b""
    while chunk := await reader.read(65536):
        data += chunk
        if data.count(mark) >= 2:
            return data.split(mark)[1]
        if len(data) > _OUTPUT_LIMIT:
            return None
    return None


async def _end_shell(process: asyncio.subprocess.Process, *, is_done: bool) -> None:
    """Wait for the shell to exit, or end it.

    A shell that printed everything exits by itself, and programs that it started for the user may stay. A shell that hangs
    is ended with its process group, first as by a closed terminal: programs in startup files may have locks to release.
    """
    if not is_done:
        _signal_group(process, signal.SIGHUP)
        _signal_group(process, signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _EXIT_S)
    if not is_done or process.returncode is None:
        _signal_group(process, signal.SIGKILL)
    await process.wait()


def _signal_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _parse_variables(output: bytes) -> dict[str, str]:
    pairs = (line.partition(b"=") for line in output.split(b"\0"))
    variables = {os.fsdecode(name): os.fsdecode(value) for name, equals, value in pairs if name and equals}
    for name in _SHELL_VARIABLES:
        variables.pop(name, None)
    # Agents don't run in a terminal, whatever TERM the shell exports.
    return variables | ({"TERM": "dumb"} if "TERM" in variables else {})
