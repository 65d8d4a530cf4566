"""`qd status`: whether the server runs, and where; with `--config` what is set, and by whom."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from quarterdeck import __version__
from quarterdeck.cli.exits import Exit, echo_json
from quarterdeck.cli.home_check import own_home
from quarterdeck.home import Home


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--config", "wants_config", is_flag=True, help="Show every setting with its source instead.")
@click.pass_context
def status(ctx: click.Context, as_json: bool, wants_config: bool) -> None:
    """Say whether the server runs, where, and what is set.

    Ends with 5 when no server runs, or when it does not answer.
    """
    place = own_home()
    if wants_config:
        _show_config(place, as_json)
        return
    found = _found(place)
    echo_json(found) if as_json else click.echo("\n".join(_as_text(found)))
    if not found["healthy"]:
        ctx.exit(Exit.UNREACHABLE)


def _found(place: Home) -> dict[str, Any]:
    from quarterdeck.cli.wire import present
    from quarterdeck.errors import QuarterdeckError

    told: dict[str, Any] = {"running": False, "healthy": False, "home": str(place.folder)}
    wire = present(place)
    if wire is None:
        return told
    light = wire.beacon
    told |= {
        "running": True,
        "address": light.address,
        "pid": light.pid,
        "version": light.version,
        "since": light.since,
    }
    try:
        wire.get("/healthz")
        badge = wire.get("/sessions", limit=1)["badge"]
        environment = wire.get("/environment")
    except QuarterdeckError as error:
        return told | error.as_json()
    told |= {"healthy": True, "sessions": badge["count"], "attention": badge["attention"]}
    return told | {"environment": environment}


def _as_text(found: dict[str, Any]) -> list[str]:
    if not found["running"]:
        return [f"no server is running for {found['home']}", "`qd up` starts it."]
    lines = [
        f"{found['address']}  (pid {found['pid']}, version {found['version']}, up {_since(found['since'])})",
        f"home: {found['home']}",
    ]
    if found["healthy"]:
        sessions, attention = found["sessions"], found["attention"]
        needing = "1 needs you" if attention == 1 else f"{attention} need you"
        lines.append(f"{sessions} session{'' if sessions == 1 else 's'}, {needing}")
        lines += _environment(found["environment"])
    else:
        lines += [f"not healthy: {found['error']['message']}", found["error"]["hint"]]
    if found["version"] != __version__:
        lines.append(f"this is qd {__version__}: `qd restart` brings the server to the same version")
    return lines


def _environment(found: dict[str, Any]) -> list[str]:
    """Only what is not as it should be."""
    if not found["problem"]:
        return []
    which = "the server's own environment" if found["source"] == "server" else "the environment as it was before"
    return [f"agents get {which}: {found['problem']}"]


def _since(since: int) -> str:
    minutes, seconds = divmod(max(0, int(time.time()) - since // 1000), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours // 24} d {hours % 24} h"
        if hours >= 24
        else f"{hours} h {minutes} min"
        if hours
        else _short(minutes, seconds)
    )


def _short(minutes: int, seconds: int) -> str:
    return f"{minutes} min" if minutes else f"{seconds} s"


def _show_config(place: Home, as_json: bool) -> None:
    import os

    from quarterdeck.config import read_config
    from quarterdeck.harness import registry

    config = read_config(place.config, os.environ, agents=registry.known)
    if as_json:
        import msgspec

        settings = {name: {"value": one.value, "source": one.source} for name, one in config.values.items()}
        told = {
            "file": str(place.config),
            "settings": settings,
            "profiles": config.profiles,
            "warnings": config.warnings,
        }
        click.echo(msgspec.json.encode(told))
        return
    width = max(map(len, config.values))
    for name, one in config.values.items():
        click.echo(f"{name:<{width}}  {_shown(one.value):<28}  {one.source}")
    for name, profile in config.profiles.items():
        click.echo(f"@{name}: {profile.agent} {profile.model} {profile.mode or ''}".rstrip())
    for warning in config.warnings:
        click.echo(f"warning: {warning}", err=True)


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
