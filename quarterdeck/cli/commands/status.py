"""`qd status`: show whether and where the server runs, or every setting with its source."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from quarterdeck import __version__
from quarterdeck.cli.exits import Exit, echo_json
from quarterdeck.cli.home_check import check_home
from quarterdeck.home import Home


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--config", "show_config", is_flag=True, help="Show every setting with its source instead.")
@click.pass_context
def status(ctx: click.Context, as_json: bool, show_config: bool) -> None:
    """Show whether and where the server runs, or its settings.

    Exits with code 5 if no server runs, or if it doesn't answer.
    """
    home = check_home()
    if show_config:
        _print_config(home, as_json)
        return
    report = _query_server(home)
    echo_json(report) if as_json else click.echo("\n".join(_format(report)))
    if not report["healthy"]:
        ctx.exit(Exit.UNREACHABLE)


def _query_server(home: Home) -> dict[str, Any]:
    from quarterdeck.cli.connect import connect_to
    from quarterdeck.errors import QuarterdeckError
    from quarterdeck.server.server_file import find_server

    report: dict[str, Any] = {"running": False, "healthy": False, "home": str(home.folder)}
    server = find_server(home)
    if server is None or server.is_leaving:
        return report
    report |= {
        "running": True,
        "address": server.address,
        "pid": server.pid,
        "version": server.version,
        "since": server.since,
    }
    try:
        api = connect_to(server, home).api
        api.get("/healthz")
        badge = api.get("/sessions", limit="1")["badge"]
        environment = api.get("/environment")
    except QuarterdeckError as error:
        return report | error.as_json()
    return report | {
        "healthy": True,
        "sessions": badge["count"],
        "attention": badge["attention"],
        "environment": environment,
    }


def _format(report: dict[str, Any]) -> list[str]:
    if not report["running"]:
        return [f"no server is running for {report['home']}", "Start it with `qd up`."]
    lines = [
        f"{report['address']}  (pid {report['pid']}, version {report['version']}, up {_format_age(report['since'])})",
        f"home: {report['home']}",
    ]
    if report["healthy"]:
        sessions, attention = report["sessions"], report["attention"]
        need_you = "1 needs you" if attention == 1 else f"{attention} need you"
        lines.append(f"{sessions} session{'' if sessions == 1 else 's'}, {need_you}")
        lines += _format_environment_problem(report["environment"])
    else:
        lines += [f"not healthy: {report['error']['message']}", report["error"]["hint"]]
    if report["version"] != __version__:
        lines.append(f"this is qd {__version__}. Run `qd restart` to bring the server to the same version.")
    return lines


def _format_environment_problem(environment: dict[str, Any]) -> list[str]:
    if not environment["problem"]:
        return []
    is_servers_own = environment["source"] == "server"
    which = "the server's own environment" if is_servers_own else "the login shell's earlier environment"
    return [f"agents get {which}: {environment['problem']}"]


def _format_age(since: int) -> str:
    minutes, seconds = divmod(max(0, int(time.time()) - since // 1000), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min" if minutes else f"{seconds} s"


def _print_config(home: Home, as_json: bool) -> None:
    import os

    from quarterdeck.config import read_config
    from quarterdeck.harness import registry

    config = read_config(home.config, os.environ, agents=registry.known_agents)
    if as_json:
        import msgspec

        report = {
            "file": str(home.config),
            "settings": {name: {"value": value.value, "source": value.source} for name, value in config.values.items()},
            "profiles": config.profiles,
            "warnings": config.warnings,
        }
        click.echo(msgspec.json.encode(report))
        return
    width = max(map(len, config.values))
    for name, value in config.values.items():
        click.echo(f"{name:<{width}}  {json.dumps(value.value, ensure_ascii=False):<28}  {value.source}")
    for name, profile in config.profiles.items():
        click.echo(f"@{name}: {profile.agent} {profile.model} {profile.mode or ''}".rstrip())
    for warning in config.warnings:
        click.echo(f"warning: {warning}", err=True)
