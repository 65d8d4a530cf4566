"""The server as a service of the user: a systemd unit on Linux, a launchd agent on macOS. Written, and removed, by us.

Both run `qd up` in the foreground, with the interpreter, the home and the options of the moment they were installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from quarterdeck.errors import QuarterdeckError
from quarterdeck.files import write_atomic
from quarterdeck.home import Home
from quarterdeck.server.server_file import find_server

UNIT = "quarterdeck.service"
LABEL = "quarterdeck.server"
#: Of the environment of whoever installs it, what agents need to be found. Nothing that may hold a secret.
_KEPT = ("PATH", "LANG", "LC_ALL")


class NoServices(QuarterdeckError):
    """Neither systemd nor launchd."""

    code = "no_services"

    def __init__(self, platform: str) -> None:
        super().__init__(f"no way is known to start a service on {platform}", "Put `qd up -d` where logins run it.")


class Service(NamedTuple):
    """A file, what is in it, and the commands that make it known. Pure."""

    path: Path
    text: str
    begin: tuple[tuple[str, ...], ...]
    end: tuple[tuple[str, ...], ...]


def service(
    place: Home,
    options: Mapping[str, Any],
    *,
    environment: Mapping[str, str] = os.environ,
    platform: str = sys.platform,
    python: str = sys.executable,
) -> Service:
    """The service of this platform; NoServices."""
    user = Path(environment.get("HOME") or Path.home())
    command = [python, "-P", "-m", "quarterdeck.cli", "up", "--no-open", *flags(options)]
    kept = {name: environment[name] for name in _KEPT if environment.get(name)}
    variables = {**kept, "QUARTERDECK_HOME": str(place.folder)}
    if platform == "darwin":
        return _launchd(user, command, variables, place)
    if platform == "linux":
        chosen = environment.get("XDG_CONFIG_HOME", "")
        folder = Path(chosen) if os.path.isabs(chosen) else user / ".config"
        return _systemd(folder / "systemd" / "user", command, variables)
    raise NoServices(platform)


def flags(options: Mapping[str, Any]) -> list[str]:
    """Options as they are typed."""
    typed: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            typed.append(flag)
        else:
            for one in value if isinstance(value, list | tuple) else (value,):  # pyright: ignore[reportUnknownVariableType]
                typed += [flag, str(one)]  # pyright: ignore[reportUnknownArgumentType]
    return typed


def _systemd(folder: Path, command: Sequence[str], variables: Mapping[str, str]) -> Service:
    """SIGTERM goes to the keeper only (mixed), which has the sessions suspended before any agent is ended."""
    environment = "\n".join(f"Environment={_quoted(f'{name}={value}')}" for name, value in variables.items())
    text = f"""\
# Written by `qd up --install-service`, removed by `qd up --remove-service`.
[Unit]
Description=Quarterdeck, the command deck for coding agents

[Service]
Type=exec
ExecStart={" ".join(_quoted(one, is_command=True) for one in command)}
{environment}
KillMode=mixed
TimeoutStopSec=30
Restart=on-failure
RestartSec=2

[Install]
WantedBy=default.target
"""
    ctl = ("systemctl", "--user")
    begin = ((*ctl, "daemon-reload"), (*ctl, "enable", UNIT), (*ctl, "restart", UNIT))
    return Service(folder / UNIT, text, begin, ((*ctl, "disable", "--now", UNIT), (*ctl, "daemon-reload")))


def _quoted(text: str, *, is_command: bool = False) -> str:
    """By systemd's rules: % begins a specifier everywhere, $ a variable in commands."""
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("%", "%%")
    return f'"{text.replace("$", "$$") if is_command else text}"'


def _launchd(user: Path, command: Sequence[str], variables: Mapping[str, str], place: Home) -> Service:
    """Untested on a Mac: written from the manual page."""
    import plistlib

    path = user / "Library" / "LaunchAgents" / f"{LABEL}.plist"
    told = {
        "Label": LABEL,
        "ProgramArguments": list(command),
        "EnvironmentVariables": dict(variables),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ExitTimeOut": 30,
        # launchd ends the group of a job that has ended; what is left of agents is the keeper's to end
        "AbandonProcessGroup": True,
        "StandardOutPath": "/dev/null",
        "StandardErrorPath": str(place.errors),
    }
    domain = f"gui/{os.getuid()}"
    return Service(
        path,
        plistlib.dumps(told).decode(),
        (("launchctl", "bootstrap", domain, str(path)),),
        (("launchctl", "bootout", f"{domain}/{LABEL}"),),
    )


# --- doing it


def install(place: Home, options: Mapping[str, Any]) -> None:
    """Also over one that is there already."""
    wanted = service(place, options)
    place.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    is_new = not wanted.path.exists() or wanted.path.read_text("utf-8") != wanted.text
    if is_new:
        if sys.platform == "darwin" and wanted.path.exists():
            _run(wanted.end)
        wanted.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(wanted.path, wanted.text, mode=0o644)
    click.echo(f"{wanted.path}: {'written' if is_new else 'is there already'}")
    if is_new and find_server(place) is not None:
        click.echo("a server is running already: `qd down`, and the service takes over at the next login", err=True)
        _told(wanted.begin[:-1])
        return
    _told(wanted.begin if is_new else wanted.begin[:-1])


def remove() -> None:
    """Says so when there is none."""
    wanted = service(Home(Path("/")), {})
    if not wanted.path.exists():
        click.echo(f"{wanted.path}: is not there")
        return
    _run(wanted.end[:1])
    wanted.path.unlink(missing_ok=True)
    _run(wanted.end[1:])
    click.echo(f"{wanted.path}: removed")


def _told(commands: Sequence[Sequence[str]]) -> None:
    """Where no service manager can be reached (a container, an SSH login), the person does the rest later."""
    failed = _run(commands)
    for command in failed:
        click.echo(f"could not be done now, do it later:  {' '.join(command)}", err=True)


def _run(commands: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Those that failed."""
    return [command for command in commands if not _is_done(command)]


def _is_done(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
