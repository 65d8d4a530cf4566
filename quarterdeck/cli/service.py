"""Install and remove the server as a user service: a systemd unit on Linux, a launchd agent on macOS.

Both run `qd up` in the foreground, with the interpreter, home and options at the time of the installation.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import click

from quarterdeck.errors import QuarterdeckError
from quarterdeck.files import write_atomic
from quarterdeck.home import Home
from quarterdeck.server import server_file

UNIT = "quarterdeck.service"
LABEL = "quarterdeck.server"
#: Variables that the service inherits from the user's environment: enough to find agents, and nothing secret.
_INHERITED = ("PATH", "LANG", "LC_ALL")


class NoServices(QuarterdeckError):
    """The platform has neither systemd nor launchd."""

    code = "no_services"

    def __init__(self, platform: str) -> None:
        super().__init__(f"services aren't supported on {platform}", "Add `qd up -d` to your login items.")


class Service(NamedTuple):
    """A service file, and the commands that enable and disable it."""

    path: Path
    text: str
    enable: tuple[tuple[str, ...], ...]
    disable: tuple[tuple[str, ...], ...]


def describe_service(
    home: Home,
    options: Mapping[str, Any],
    *,
    environment: Mapping[str, str] = os.environ,
    platform: str = sys.platform,
    python: str = sys.executable,
) -> Service:
    """Return the service for this platform. Does no I/O.

    Raises:
        NoServices: the platform has no supported service manager.
    """
    user = Path(environment.get("HOME") or Path.home())
    command = [python, "-P", "-m", "quarterdeck.cli", "up", "--no-open", *format_flags(options)]
    inherited = {name: environment[name] for name in _INHERITED if environment.get(name)}
    variables = {**inherited, "QUARTERDECK_HOME": str(home.folder)}
    if platform == "darwin":
        return _launchd(user, command, variables, home)
    if platform == "linux":
        config = environment.get("XDG_CONFIG_HOME", "")
        folder = Path(config) if os.path.isabs(config) else user / ".config"
        return _systemd(folder / "systemd" / "user", command, variables)
    raise NoServices(platform)


def format_flags(options: Mapping[str, Any]) -> list[str]:
    """Format options as command-line arguments."""
    arguments: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            arguments.append(flag)
        else:
            values: Sequence[Any] = cast(Sequence[Any], value) if isinstance(value, list | tuple) else (value,)
            for item in values:
                arguments += [flag, str(item)]
    return arguments


def _systemd(folder: Path, command: Sequence[str], variables: Mapping[str, str]) -> Service:
    # KillMode=mixed sends SIGTERM to the subreaper only, so the server can suspend sessions before any agent is ended.
    environment = "\n".join(f"Environment={_quote(f'{name}={value}')}" for name, value in variables.items())
    text = f"""\
# Written by `qd up --install-service`, removed by `qd up --remove-service`.
[Unit]
Description=Quarterdeck, the command deck for coding agents

[Service]
Type=exec
ExecStart={" ".join(_quote(argument, is_command=True) for argument in command)}
{environment}
KillMode=mixed
TimeoutStopSec=30
Restart=on-failure
RestartSec=2

[Install]
WantedBy=default.target
"""
    ctl = ("systemctl", "--user")
    enable = ((*ctl, "daemon-reload"), (*ctl, "enable", UNIT), (*ctl, "restart", UNIT))
    disable = ((*ctl, "disable", "--now", UNIT), (*ctl, "daemon-reload"))
    return Service(folder / UNIT, text, enable, disable)


def _quote(text: str, *, is_command: bool = False) -> str:
    """Quote by systemd's rules: % starts a specifier everywhere, $ a variable in commands."""
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("%", "%%")
    return f'"{text.replace("$", "$$") if is_command else text}"'


def _launchd(user: Path, command: Sequence[str], variables: Mapping[str, str], home: Home) -> Service:
    # Written from the manual page and untested on a Mac.
    import plistlib

    path = user / "Library" / "LaunchAgents" / f"{LABEL}.plist"
    properties = {
        "Label": LABEL,
        "ProgramArguments": list(command),
        "EnvironmentVariables": dict(variables),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ExitTimeOut": 30,
        # launchd ends the process group of an exited job. The subreaper ends leftover agents itself.
        "AbandonProcessGroup": True,
        "StandardOutPath": "/dev/null",
        "StandardErrorPath": str(home.errors),
    }
    domain = f"gui/{os.getuid()}"
    return Service(
        path,
        plistlib.dumps(properties).decode(),
        (("launchctl", "bootstrap", domain, str(path)),),
        (("launchctl", "bootout", f"{domain}/{LABEL}"),),
    )


# --- install, remove


def install_service(home: Home, options: Mapping[str, Any]) -> None:
    """Write and enable the service. Replaces an installed one.

    Raises:
        NoServices: the platform has no supported service manager.
    """
    service = describe_service(home, options)
    home.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    is_new = not service.path.exists() or service.path.read_text("utf-8") != service.text
    if is_new:
        if sys.platform == "darwin" and service.path.exists():
            _run_all(service.disable)
        service.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(service.path, service.text, mode=0o644)
    click.echo(f"{service.path}: {'written' if is_new else 'unchanged'}")
    if is_new and server_file.find_server(home) is not None:
        click.echo("a server is already running. Run `qd down`; the service starts at the next login.", err=True)
        _run_and_report(service.enable[:-1])
        return
    _run_and_report(service.enable if is_new else service.enable[:-1])


def remove_service() -> None:
    """Disable and remove the service, and say so if there is none.

    Raises:
        NoServices: the platform has no supported service manager.
    """
    service = describe_service(Home(Path("/")), {})
    if not service.path.exists():
        click.echo(f"{service.path}: doesn't exist")
        return
    _run_all(service.disable[:1])
    service.path.unlink(missing_ok=True)
    _run_all(service.disable[1:])
    click.echo(f"{service.path}: removed")


def _run_and_report(commands: Sequence[Sequence[str]]) -> None:
    """Run commands, and print those that failed: in a container or over SSH there may be no service manager."""
    for command in _run_all(commands):
        click.echo(f"this failed now; run it later:  {' '.join(command)}", err=True)


def _run_all(commands: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Run commands and return those that failed."""
    return [command for command in commands if not _run(command)]


def _run(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
