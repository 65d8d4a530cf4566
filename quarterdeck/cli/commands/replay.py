"""`qd replay`: a raw trace through the translator and the kernel, as a table of states over time or as JSON lines."""

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
@click.option("--agent", required=True, help="Whose trace it is: claude, codex, gemini, pi, …")
@click.option("--only", default="", help="Keep these sources only, e.g. hook,proc.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def replay(agent: str, only: str, as_json: bool, file: Path) -> None:
    """Replay a recorded trace and show the states over time.

    FILE holds one JSON line a signal (docs/harness.md). Broken lines are counted and skipped.
    """
    from quarterdeck.harness.replay import Replay

    run = Replay(translator(agent), agent, tuple(one.strip() for one in only.split(",") if one.strip()))
    with file.open("rb") as lines:
        rows = run.rows(lines)
        _print_json(run, rows) if as_json else _print_table(run, rows)
    _print_advice(run, agent)


def _print_advice(run: Replay, agent: str) -> None:
    """Where nothing happened, or lines were skipped: why, and what to do. Beside the output, which programs may read."""
    taken = [src for src in sorted(run.sources) if not run.only or {src, src.partition(".")[0]} & {*run.only}]
    line = '{"t": seconds, "src": ..., "data": ...}'
    if not run.sources and run.broken:
        click.echo(f"no line of it is {line}: give the recording itself, unpacked (docs/harness.md)", err=True)
    elif not run.sources:
        click.echo("the file is empty: record a session with `qd run --record`", err=True)
    elif not taken:
        click.echo(
            f"nothing in it is from {', '.join(run.only)}; its sources: {', '.join(sorted(run.sources))}", err=True
        )
    elif run.view.index == 1:
        click.echo(f"nothing in it means anything to {agent}: was it another agent's (--agent)?", err=True)
    elif run.broken:
        click.echo(f"{run.broken} broken lines were skipped: not {line}", err=True)


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
        f"{end['gates_opened']} gates opened, {end['unknown']} lines that no rule knew"
    )
