"""The environment of the user's login shell: what a program would find that the user starts in a new terminal.

A server is started from anywhere: by a service manager, by a script, in a shell of some project. What that happened to
have set is not what agents are to be started with. So the user's own shell is asked once, as a login shell, what it exports;
again only when one of the files that it reads has changed, or somebody wants it. If it cannot say, the server's own
environment is used, and everybody is told.
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

#: Some people's files take seconds; twice as long on a machine that has much to do.
LIMIT_S = 10.0
_MOST_BYTES = 4 * 1024 * 1024
#: A shell that has told all, or that is told to go, has this long to leave.
_LEAVE_S = 2.0
#: Told to the shell, so that its files can know what they are read for.
ASKING = "QUARTERDECK_ASKING"
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
#: What belongs to the user's session on the machine and not to a shell: a login shell does not set it, it finds it.
_OF_THE_SESSION = frozenset(
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
#: What is the shell's own, or ours.
_OF_THE_SHELL = ("_", "SHLVL", "PWD", "OLDPWD", ASKING)
#: What shells read when they begin, below the user's folder and elsewhere. A folder counts with what is in it.
_READ_AT_HOME = [
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
_READ = [
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
    """The login shell did not tell its environment."""

    code = "shell_said_nothing"

    def __init__(self, shell: str, why: str) -> None:
        super().__init__(f"{shell}: {why}", f"Try `{shell} -l -i -c env`, then `POST /environment`.")


class LoginShell:
    """`own` is the environment of this process. A shell has `limit_s` to answer."""

    def __init__(self, own: Mapping[str, str], limit_s: float = LIMIT_S) -> None:
        self._own = dict(own)
        self._limit_s = limit_s
        self.shell = own.get("SHELL") or _shell_of_the_user()
        self.source: Source = "server"
        #: Why the shell's environment is not known, or not known anew.
        self.problem = ""
        #: When it was last asked, in milliseconds.
        self.asked_at = 0
        self._found: Mapping[str, str] | None = None
        self._seen: tuple[object, ...] | None = None
        self._asking: asyncio.Task[None] | None = None

    @property
    def variables(self) -> int:
        """How many there are."""
        return len(self._own if self._found is None else self._found)

    async def current(self) -> Mapping[str, str]:
        """What an agent that starts now is given."""
        seen = await asyncio.to_thread(_files, self._own)
        if seen != self._seen:
            await self.refresh()
        return self._own if self._found is None else self._found

    async def refresh(self) -> None:
        """Asks the shell; whoever comes meanwhile waits for the same answer."""
        if self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(self._ask())
        await asyncio.shield(self._asking)

    async def close(self) -> None:
        """Nobody wants to know any more."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait({self._asking})

    async def _ask(self) -> None:
        try:
            self._seen = await asyncio.to_thread(_files, self._own)
            self._found = await told_by(self.shell, _begun_with(self._own, self.shell), self._limit_s)
            self.source, self.problem = "login_shell", ""
        except ShellSaidNothing as error:
            self.problem = error.message
            known = "what it said before" if self._found is not None else "the server's own"
            log.warning("the login shell does not tell its environment; agents get %s", known)
        finally:
            self.asked_at = int(time.time() * 1000)
            self._asking = None


def _shell_of_the_user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh"
    except KeyError:
        return "/bin/sh"


def _begun_with(own: Mapping[str, str], shell: str) -> dict[str, str]:
    """As a terminal would begin: who the user is, and what belongs to the whole session on the machine."""
    kept = {name: value for name, value in own.items() if name in _OF_THE_SESSION or name.startswith("LC_")}
    home = own.get("HOME") or os.path.expanduser("~")
    user = own.get("USER") or own.get("LOGNAME") or os.path.basename(home)
    who = {"HOME": home, "USER": user, "LOGNAME": user, "SHELL": shell}
    return {**kept, **who, "PATH": _PATH, "TERM": "xterm-256color", ASKING: "1"}


def _files(own: Mapping[str, str]) -> tuple[object, ...]:
    """When the files that shells read were last written."""
    home = own.get("HOME") or os.path.expanduser("~")
    places = [home] + ([own["ZDOTDIR"]] if "ZDOTDIR" in own else [])
    paths = [*_READ, *(os.path.join(place, name) for place in places for name in _READ_AT_HOME)]
    return tuple(mark for path in paths for mark in _marks(path))


def _marks(path: str) -> list[tuple[str, int, int]]:
    try:
        found = os.stat(path)
        names = os.listdir(path) if os.path.isdir(path) else []
    except OSError:
        return []
    inside = [mark for name in sorted(names)[:100] for mark in _marks(os.path.join(path, name))]
    return [(path, found.st_mtime_ns, found.st_size), *inside]


# --- asking


async def told_by(shell: str, environment: Mapping[str, str], limit_s: float = LIMIT_S) -> dict[str, str]:
    """What a login shell exports; ShellSaidNothing. First an interactive one: many set their paths only there."""
    why = ""
    for flags in (("-l", "-i", "-c"), ("-l", "-c")):
        try:
            async with asyncio.timeout(limit_s):
                found, why = await _told(shell, flags, environment)
        except TimeoutError:
            raise ShellSaidNothing(shell, f"no answer within {limit_s:g} seconds") from None
        if found:
            return found
    raise ShellSaidNothing(shell, why)


async def _told(shell: str, flags: tuple[str, ...], environment: Mapping[str, str]) -> tuple[dict[str, str], str]:
    mark = secrets.token_hex(16)
    command = f"printf %s {mark}; /usr/bin/env -0; printf %s {mark}"
    async with _pipe() as (reader, writer):
        try:
            process = await _begun((shell, *flags, command), environment, writer)
        except (OSError, ValueError) as error:
            return {}, error.strerror if isinstance(error, OSError) and error.strerror else "it cannot be started"
        finally:
            os.close(writer)
        said = None
        try:
            said = await _between(reader, mark.encode())
        finally:
            await _left(process, is_done=said is not None)
    if said is None:
        return {}, f"it ended with {process.returncode} and told nothing"
    found = _variables(said)
    return (found, "") if "PATH" in found else ({}, "it told no PATH")


@asynccontextmanager
async def _pipe() -> AsyncGenerator[tuple[asyncio.StreamReader, int]]:
    """Ours, so that we can close it: something that the shell's files started may hold the other end open for ever."""
    source, writer = os.pipe()
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    file = os.fdopen(source, "rb", 0)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    try:
        yield reader, writer
    finally:
        transport.close()


async def _begun(command: tuple[str, ...], environment: Mapping[str, str], writer: int) -> asyncio.subprocess.Process:
    nothing = asyncio.subprocess.DEVNULL
    home = environment["HOME"]
    folder = home if await asyncio.to_thread(os.path.isdir, home) else "/"
    return await asyncio.create_subprocess_exec(
        *command, stdin=nothing, stdout=writer, stderr=nothing, env=environment, cwd=folder, start_new_session=True
    )


async def _between(reader: asyncio.StreamReader, mark: bytes) -> bytes | None:
    """What is said between two marks; what the shell's files say before does not matter."""
    data = b""
    while part := await reader.read(65536):
        data += part
        if data.count(mark) >= 2:
            return data.split(mark)[1]
        if len(data) > _MOST_BYTES:
            return None
    return None


async def _left(process: asyncio.subprocess.Process, *, is_done: bool) -> None:
    """A shell that has told all leaves by itself, and what it started for the user may stay. One that hangs is ended with
    its group, as by a terminal that is closed: the programs in the user's files have locks and the like to give back."""
    if not is_done:
        _tell_group(process, signal.SIGHUP)
        _tell_group(process, signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _LEAVE_S)
    if not is_done or process.returncode is None:
        _tell_group(process, signal.SIGKILL)
    await process.wait()


def _tell_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _variables(said: bytes) -> dict[str, str]:
    pairs = (one.partition(b"=") for one in said.split(b"\0"))
    found = {os.fsdecode(name): os.fsdecode(value) for name, equals, value in pairs if name and equals}
    for name in _OF_THE_SHELL:
        found.pop(name, None)
    return found | ({"TERM": "dumb"} if "TERM" in found else {})
