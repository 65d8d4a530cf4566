"""`qd down` and `qd restart`: the server's end, which interrupts nobody's work unasked."""

from __future__ import annotations

import signal
import sys
from typing import Any

import click

from quarterdeck.cli.busy import busy, told, until_settled
from quarterdeck.cli.home_check import own_home
from quarterdeck.cli.starting import StillLeaving, alone, started
from quarterdeck.cli.wire import present
from quarterdeck.client.failures import Unreachable
from quarterdeck.errors import QuarterdeckError
from quarterdeck.home import Home
from quarterdeck.process.tree import kill_processes, signal_processes, wait_until_gone
from quarterdeck.server import server_file
from quarterdeck.server.server_file import ServerInfo

_wait = click.option("--wait", "waiting", is_flag=True, help="Wait until no session is busy, then go on.")
_force = click.option("--force", is_flag=True, help="Do not ask, and kill a server that does not end.")


class BusySessions(QuarterdeckError):
    """Work would be interrupted, and nobody is there to be asked, or whoever was asked said no."""

    code = "busy_sessions"

    def __init__(self, count: int) -> None:
        what = "1 session is" if count == 1 else f"{count} sessions are"
        super().__init__(f"{what} busy", "--wait waits for them, --force interrupts them; they can be resumed later.")


@click.command()
@_wait
@_force
def down(waiting: bool, force: bool) -> None:
    """Stop the server.

    All sessions are suspended and their agents ended; they can be resumed. With busy sessions it lists them and asks; where
    nobody can be asked, it ends with 4 and does nothing.
    """
    place = own_home()
    if not place.folder.is_dir() or not _may_end(place, waiting, force):
        click.echo("no server is running")
        return
    with alone(place):
        light = server_file.find_server(place)
        if light is not None:
            _end(light, force)
    click.echo("the server is down")


@click.command()
@_wait
@_force
def restart(waiting: bool, force: bool) -> None:
    """Stop the server, and start it again in the background.

    It is started with the same options as before. Busy sessions are treated as by `qd down`.
    """
    place = own_home()
    _may_end(place, waiting, force)
    with alone(place) as lock:
        light = server_file.find_server(place)
        if light is not None:
            _end(light, force)
        again = started(place, light.options if light is not None else {}, lock)
    click.echo(f"the server is at {again.address}")


def _may_end(place: Home, waiting: bool, force: bool) -> bool:
    """False when none runs. BusySessions."""
    light = server_file.find_server(place)
    if light is None:
        # perhaps one is just being started
        with alone(place):
            light = server_file.find_server(place)
    if light is None:
        return False
    if not (force or light.is_leaving):
        _settle(place, waiting)
    return True


def _settle(place: Home, waiting: bool) -> None:
    """Returns when nothing is busy, or a person has said that it does not matter."""
    try:
        wire = present(place)
        if wire is None:
            return
        if waiting:
            until_settled(wire, _say_waiting)
            return
        found = busy(wire)
    except Unreachable as error:
        raise Unreachable(error.message, "--force ends it nevertheless.") from None
    if found:
        _ask(found)


def _ask(found: list[dict[str, Any]]) -> None:
    for one in found:
        click.echo(told(one), err=True)
    question = "They will be interrupted, and can be resumed later. Go on?"
    if not sys.stdin.isatty() or not click.confirm(question, err=True):
        raise BusySessions(len(found))


def _say_waiting(found: list[dict[str, Any]]) -> None:
    click.echo(f"waiting for {len(found)}:", err=True)
    for one in found:
        click.echo(f"  {told(one)}", err=True)


def _end(light: ServerInfo, force: bool) -> None:
    """Returns when the last process of it is gone."""
    signal_processes([light.last], signal.SIGTERM)
    if wait_until_gone(light.last, light.leaves_within):
        return
    if not force:
        raise StillLeaving(light)
    kill_processes([light.server])  # its keeper, if there is one, ends what it leaves
    if not wait_until_gone(light.last, light.leaves_within):
        raise StillLeaving(light)
