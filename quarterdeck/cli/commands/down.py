"""`qd down` and `qd restart`: stop the server, without interrupting work unasked."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from quarterdeck.cli.connect import find_server
from quarterdeck.cli.home_check import check_home
from quarterdeck.cli.start_server import StillStopping, spawn_server, start_lock
from quarterdeck.client.errors import Unreachable
from quarterdeck.client.transport import StreamCut
from quarterdeck.errors import QuarterdeckError
from quarterdeck.home import Home
from quarterdeck.process.tree import kill_processes, signal_processes, wait_until_gone
from quarterdeck.server import server_file
from quarterdeck.server.server_file import ServerInfo

if TYPE_CHECKING:
    from quarterdeck.client.sync_client import Client
    from quarterdeck.kernel.summary import Summary

_wait = click.option("--wait", is_flag=True, help="Wait until no session is busy.")
_force = click.option("--force", is_flag=True, help="Don't ask, and kill a server that doesn't stop.")
_PAGE = 200


class BusySessions(QuarterdeckError):
    """Stopping would interrupt sessions, and the user declined or couldn't be asked."""

    code = "busy_sessions"

    def __init__(self, count: int) -> None:
        busy = "1 session is" if count == 1 else f"{count} sessions are"
        super().__init__(
            f"{busy} busy", "Wait for them with --wait, or interrupt them with --force; they can be resumed later."
        )


@click.command()
@_wait
@_force
def down(wait: bool, force: bool) -> None:
    """Stop the server.

    Suspends all sessions and ends their agents; sessions can be resumed. If sessions are busy, lists them and asks.
    Without a terminal to ask on, exits with code 4 and changes nothing.
    """
    home = check_home()
    if not home.folder.is_dir() or not _confirm_stop(home, wait, force):
        click.echo("no server is running")
        return
    with start_lock(home):
        server = server_file.find_server(home)
        if server is not None:
            _stop(server, force)
    click.echo("the server is down")


@click.command()
@_wait
@_force
def restart(wait: bool, force: bool) -> None:
    """Stop the server and start it again in the background.

    Uses the same options as before. Handles busy sessions like `qd down`.
    """
    home = check_home()
    _confirm_stop(home, wait, force)
    with start_lock(home) as lock:
        server = server_file.find_server(home)
        if server is not None:
            _stop(server, force)
        restarted = spawn_server(home, server.options if server is not None else {}, lock)
    click.echo(f"the server runs at {restarted.address}")


def _confirm_stop(home: Home, wait: bool, force: bool) -> bool:
    """Return whether a server runs that may be stopped now.

    Raises:
        BusySessions: sessions are busy and may not be interrupted.
    """
    server = server_file.find_server(home)
    if server is None:
        # Another command may be starting one at this moment.
        with start_lock(home):
            server = server_file.find_server(home)
    if server is None:
        return False
    if not (force or server.is_leaving):
        _check_busy_sessions(home, wait)
    return True


def _check_busy_sessions(home: Home, wait: bool) -> None:
    try:
        connection = find_server(home)
        if connection is None:
            return
        if wait:
            _wait_until_idle(connection.client, _print_waiting)
            return
        busy = list_busy_sessions(connection.client)
    except QuarterdeckError as error:
        raise Unreachable(error.message, "Stop the server all the same with --force.") from None
    if busy:
        _ask_to_interrupt(busy)


def _ask_to_interrupt(busy: list[Summary]) -> None:
    for summary in busy:
        click.echo(_format(summary), err=True)
    question = "Stopping the server interrupts these sessions. They can be resumed later. Stop it?"
    if not sys.stdin.isatty() or not click.confirm(question, err=True):
        raise BusySessions(len(busy))


def _print_waiting(busy: list[Summary]) -> None:
    click.echo(f"waiting for {len(busy)}:", err=True)
    for summary in busy:
        click.echo(f"  {_format(summary)}", err=True)


def _stop(server: ServerInfo, force: bool) -> None:
    """Stop the server and return when its last process has exited.

    Raises:
        StillStopping: it doesn't stop within its time limit.
    """
    signal_processes([server.last], signal.SIGTERM)
    if wait_until_gone(server.last, server.leaves_within):
        return
    if not force:
        raise StillStopping(server)
    kill_processes([server.server])  # The subreaper, if there is one, ends everything that the server leaves behind.
    if not wait_until_gone(server.last, server.leaves_within):
        raise StillStopping(server)


# --- busy sessions


def is_busy(summary: Summary) -> bool:
    """Return whether stopping the server would interrupt this session.

    A finished turn can have left a shell or a sub-agent in the background. Agents in a terminal don't need the server.
    """
    return summary.owner == "deck" and bool(summary.flags.isActive or summary.background)


def list_busy_sessions(client: Client) -> list[Summary]:
    """Return the busy sessions, newest first."""
    busy: list[Summary] = []
    cursor = ""
    while True:
        page = client.list(status="active", limit=_PAGE, cursor=cursor)
        busy += filter(is_busy, page.sessions)
        if not page.next_cursor:
            return busy
        cursor = page.next_cursor


def _format(summary: Summary) -> str:
    name = summary.name or summary.last_text[:40] or "(no name)"
    background = f", {summary.background} in the background" if summary.background else ""
    return f"{summary.id[:8]}  {summary.agent:<8}  {summary.phase.replace('_', ' ')}{background}  {name}"


def _wait_until_idle(client: Client, report: Callable[[list[Summary]], None]) -> None:
    """Return when no session is busy. Calls `report` with the busy ones each time they are listed."""
    while busy := list_busy_sessions(client):
        report(busy)
        _wait_for_session(client, busy[0])


def _wait_for_session(client: Client, summary: Summary) -> None:
    """Follow the session from where it was listed, and check again after each event that can have ended its work."""
    session = client.session(summary.id)
    try:
        for block in session.blocks(summary.index):
            if not block.name.endswith(("_delta", "_output")) and not is_busy(session.show()):
                return
    except StreamCut as cut:
        raise cut.error from None
    except QuarterdeckError as error:
        if error.code != "no_such_session":  # A deleted session isn't busy.
            raise
