"""`qd up`: start the server in this terminal or in the background, and open its page."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import click

from quarterdeck.cli.connect import connect_to, read_token
from quarterdeck.cli.home_check import check_home
from quarterdeck.cli.start_server import find_lasting_server, run_in_foreground, spawn_server, start_lock
from quarterdeck.errors import QuarterdeckError
from quarterdeck.home import Home
from quarterdeck.server import server_file
from quarterdeck.server.server_file import ServerInfo

_file = click.Path(exists=True, dir_okay=False, resolve_path=True)


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 picks a free one.  [default: 4986]")
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--allow-host", multiple=True, metavar="NAME", help="Accept requests for this host name, too.")
@click.option("--tls-cert", type=_file, help="Certificate with its chain, in PEM.")
@click.option("--tls-key", type=_file, help="Private key of the certificate.")
@click.option("--expose", is_flag=True, default=None, help="Allow a --host that other machines can reach.")
@click.option("--no-open", is_flag=True, help="Don't open the page.")
@click.option("-d", "--detach", is_flag=True, help="Run in the background; return when the server is ready.")
@click.option("--install-service", is_flag=True, help="Start the server at every login, with systemd or launchd.")
@click.option("--remove-service", is_flag=True, help="Stop starting the server at login.")
def up(no_open: bool, detach: bool, install_service: bool, remove_service: bool, **server_options: Any) -> None:
    """Start the server and open its page.

    Prints an address that logs you in. If a server runs already, prints the address of that one.
    """
    home = check_home()
    options = {name: _as_json(value) for name, value in server_options.items() if value not in (None, ())}
    if install_service and remove_service:
        raise click.UsageError("--install-service and --remove-service exclude each other.")
    if remove_service:
        from quarterdeck.cli.service import remove_service as remove

        remove()
        return
    _check_settings(home, options)
    if install_service:
        from quarterdeck.cli.service import install_service as install

        install(home, options)
        return
    _start(home, options, detach, should_open_page=not no_open and has_display())


def _as_json(value: Any) -> Any:
    """Return a value as it comes back from JSON, so that it compares equal to the options of a running server."""
    return [*value] if isinstance(value, tuple) else value


def _check_settings(home: Home, options: dict[str, Any]) -> None:
    """Report invalid and dangerous settings here, where the user reads it, before anything is started."""
    from quarterdeck.config import read_config
    from quarterdeck.harness import registry

    config = read_config(home.config, os.environ, options, agents=registry.known_agents)
    for warning in config.warnings:
        _warn(warning)
    server = config.server
    if not server.is_local:
        _warn(f"other machines can reach {server.host}: anyone with a token runs commands as you.")
        if not server.is_secure:
            _warn("without --tls-cert and --tls-key, anyone on the network path can read the token.")
        if server.is_everywhere and not server.allow_host:
            _warn("other machines can reach it only by host names that you allow with --allow-host NAME.")


def _warn(text: str) -> None:
    click.echo(f"{click.style('warning:', fg='yellow', bold=True)} {text}", err=True)


def _start(home: Home, options: dict[str, Any], detach: bool, should_open_page: bool) -> None:
    def announce(server: ServerInfo) -> None:
        _announce(home, server, should_open_page)

    server = server_file.find_server(home)
    if server is None or server.is_leaving:
        with start_lock(home) as lock:
            server = find_lasting_server(home)
            if server is None and detach:
                server = spawn_server(home, options, lock)
                options = {}
            elif server is None:
                run_in_foreground(home, options, lock, announce)
    if not _was_started_with(server, options):
        _warn("a server runs already, with other options. Run `qd down` first to change them.")
    announce(server)


def _was_started_with(server: ServerInfo, options: dict[str, Any]) -> bool:
    # Port 0 asks for any port, so every port satisfies it.
    return all(server.options.get(name) == value for name, value in options.items() if (name, value) != ("port", 0))


def _announce(home: Home, server: ServerInfo, should_open_page: bool) -> None:
    token = read_token(home)
    click.echo(f"Quarterdeck runs at {server.address}")
    click.echo(f"Log in with:  {server.address}/login?token={quote(token, safe='')}")
    if should_open_page:
        _open_page(home, server)


# --- the page


def has_display(environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> bool:
    """Return whether a browser would have a screen. Over SSH it wouldn't be the user's."""
    if platform == "darwin":
        return "SSH_CONNECTION" not in environment
    return bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def _open_page(home: Home, server: ServerInfo) -> None:
    """Open the page in a browser, logged in by a one-time code.

    The token must not be in that address: every user of the machine can read a browser's command line.
    """
    import webbrowser

    try:
        code = connect_to(server, home).api.post("/login/code")["code"]
    except QuarterdeckError:
        return
    webbrowser.open(f"{server.address}/login?code={quote(code, safe='')}")
