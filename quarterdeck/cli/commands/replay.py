"""`qd replay`: run a recording through the translator and the kernel, and print the states over time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from quarterdeck.harness.registry import translator

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quarterdeck.harness.replay import Replay, Row

_COLOURS = {
    "creating": "blue",
    "streaming": "blue",
    "waiting_approval": "yellow",
    "waiting_input": "yellow",
    "completed": "green",
    "error": "red",
}


@click.command()
@click.option("--agent", required=True, help="Agent that was recorded: claude, codex, gemini, pi, …")
@click.option("--only", default="", help="Use only these sources, e.g. hook,proc.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def replay(agent: str, only: str, as_json: bool, file: Path) -> None:
    """Replay a recording and show the states over time.

    FILE has one JSON line per signal (docs/harness.md). Invalid lines are counted and skipped.
    """
    from quarterdeck.harness.replay import Replay

    run = Replay(translator(agent), agent, tuple(source.strip() for source in only.split(",") if source.strip()))
    with file.open("rb") as lines:
        rows = run.rows(lines)
        _print_json(run, rows) if as_json else _print_table(run, rows)
    _print_advice(run, agent)


def _print_advice(run: Replay, agent: str) -> None:
    """Explain on standard error why nothing happened or lines were skipped."""
    used = [src for src in sorted(run.sources) if not run.only or {src, src.partition(".")[0]} & {*run.only}]
    line = '{"t": seconds, "src": ..., "data": ...}'
    if not run.sources and run.broken:
        click.echo(
            f"no line of the file is {line}. Pass the recording itself, uncompressed (docs/harness.md).", err=True
        )
    elif not run.sources:
        click.echo("the file is empty. Record a session with `qd run --record`.", err=True)
    elif not used:
        click.echo(
            f"the file has no signals from {', '.join(run.only)}. Its sources: {', '.join(sorted(run.sources))}.",
            err=True,
        )
    elif run.view.index == 1:
        click.echo(f"{agent} recognises nothing in the file. Was another agent recorded (--agent)?", err=True)
    elif run.broken:
        click.echo(f"{run.broken} invalid lines were skipped: not {line}", err=True)


def _print_json(run: Replay, rows: Iterable[Row]) -> None:
    import msgspec

    from quarterdeck.harness.replay import end_json, row_json

    for row in rows:
        click.echo(msgspec.json.encode(row_json(row)))
    click.echo(msgspec.json.encode(end_json(run)))


def _print_table(run: Replay, rows: Iterable[Row]) -> None:
    from quarterdeck.harness.replay import end_json, summary_of

    click.echo(
        click.style(f"{'time':>9} {'line':>5}  {'phase':<17}{'activity':<30}{'run':<16}gates  events", bold=True)
    )
    for row in rows:
        state = row.view.state
        phase = click.style(f"{state.phase.value:<17}", fg=_COLOURS.get(state.phase.value))
        stale = "" if state.signal.value == "live" else f" [{state.signal.value}]"
        click.echo(
            f"{row.t:>8.2f}s {row.line or '–':>5}  {phase}{state.activity.value + stale:<30}{state.run.value:<16}"
            f"{len(state.gates.open):>5}  {summary_of(row.bodies)}"
        )
    end = end_json(run)
    click.echo(
        f"\nends {end['phase']}, {end['activity']}: {len(end['messages'])} messages, {len(end['tools'])} tool calls, "
        f"{end['gates_opened']} gates opened, {end['unknown']} unrecognised lines"
    )
