"""`qd up`: the server, in this terminal or in the background, and its page."""

from __future__ import annotations

import os
from typing import Any

import click

from quarterdeck.cli.home_check import own_home
from quarterdeck.cli.page import has_display, login_address, open_page
from quarterdeck.cli.starting import alone, in_foreground, running, started
from quarterdeck.cli.wire import Wire, token_of
from quarterdeck.home import Home
from quarterdeck.server import server_file
from quarterdeck.server.server_file import ServerInfo

_file = click.Path(exists=True, dir_okay=False, resolve_path=True)


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), help="The port; 0 is any that is free.  [default: 4986]")
@click.option("--host", help="The address to listen on.  [default: 127.0.0.1]")
@click.option("--allow-host", multiple=True, metavar="NAME", help="A further name by which it may be called.")
@click.option("--tls-cert", type=_file, help="A certificate with its chain, in PEM.")
@click.option("--tls-key", type=_file, help="The key of the certificate.")
@click.option("--expose", is_flag=True, default=None, help="Allow a --host that other machines can reach.")
@click.option("--no-open", is_flag=True, help="Do not open the page.")
@click.option("-d", "--detach", is_flag=True, help="In the background; return when it is ready.")
@click.option("--install-service", is_flag=True, help="Start it at every login, by systemd or launchd.")
@click.option("--remove-service", is_flag=True, help="Do not start it at login any more.")
def up(no_open: bool, detach: bool, install_service: bool, remove_service: bool, **given: Any) -> None:
    """Start the server, and open its page.

    It prints an address that lets you in. Where a server runs already, it says where.
    """
    place = own_home()
    options = {name: _plain(value) for name, value in given.items() if value not in (None, ())}
    if install_service and remove_service:
        raise click.UsageError("--install-service and --remove-service exclude each other.")
    if remove_service:
        from quarterdeck.cli.service import remove

        remove()
        return
    _check(place, options)
    if install_service:
        from quarterdeck.cli.service import install

        install(place, options)
        return
    _up(place, options, detach, wants_page=not no_open and has_display())


def _plain(value: Any) -> Any:
    """As it comes back from JSON."""
    return [*value] if isinstance(value, tuple) else value


def _check(place: Home, options: dict[str, Any]) -> None:
    """Before anything is started: what is wrong with the settings is said here, where somebody reads it."""
    from quarterdeck.config import read_config
    from quarterdeck.harness import registry

    config = read_config(place.config, os.environ, options, agents=registry.known)
    for warning in config.warnings:
        _warn(warning)
    server = config.server
    if not server.is_local:
        _warn(f"{server.host} can be reached from other machines: whoever has a token runs commands as you.")
        if not server.is_secure:
            _warn("without --tls-cert and --tls-key everybody on the way can read the token.")
        if server.is_everywhere and not server.allow_host:
            _warn("others can call it only by names that you give with --allow-host NAME.")


def _warn(what: str) -> None:
    click.echo(f"{click.style('warning:', fg='yellow', bold=True)} {what}", err=True)


def _up(place: Home, options: dict[str, Any], detach: bool, wants_page: bool) -> None:
    def announce(light: ServerInfo) -> None:
        _announce(place, light, wants_page)

    light = server_file.find_server(place)
    if light is None or light.is_leaving:
        with alone(place) as lock:
            light = running(place)
            if light is None and detach:
                light = started(place, options, lock)
                options = {}
            elif light is None:
                in_foreground(place, options, lock, announce)
    if not _has(light, options):
        _warn("a server was running already, with other options: `qd down` first to change them.")
    announce(light)


def _has(light: ServerInfo, options: dict[str, Any]) -> bool:
    """Whether the server was started with these options; any port does where any was asked for."""
    return all(light.options.get(name) == value for name, value in options.items() if (name, value) != ("port", 0))


def _announce(place: Home, light: ServerInfo, wants_page: bool) -> None:
    token = token_of(place)
    click.echo(f"Quarterdeck is at {light.address}")
    click.echo(f"This lets you in:  {login_address(light.address, token)}")
    if wants_page:
        open_page(Wire(light, token))
