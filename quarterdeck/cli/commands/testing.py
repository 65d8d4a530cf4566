"""`qd testing`: what stands in for the real thing in tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from quarterdeck.testing.model import Seen
    from quarterdeck.testing.script import Script


@click.group()
def testing() -> None:
    """Stand-ins for tests: a scripted model."""


@testing.command()
@click.option("--script", "path", type=click.Path(path_type=Path), help="What it says, in TOML or JSON.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default="any that is free",
    help="Where it listens, on this machine only.",
)
@click.option(
    "--record", type=click.Path(path_type=Path), help="Append every request to this file, a JSON object a line."
)
def model(path: Path | None, port: int, record: Path | None) -> None:
    """Serve a scripted model in the formats of Anthropic, OpenAI and Gemini.

    It prints its address and serves until it is interrupted. The format of a script is described in docs/testing.md.
    """
    import asyncio

    from quarterdeck.testing.script import Script, loaded

    asyncio.run(_served(loaded(path) if path else Script(), port, record))


async def _served(script: Script, port: int, record: Path | None) -> None:
    import asyncio
    import signal

    from quarterdeck.testing.model import ScriptedModel

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for one in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(one, stopped.set)
    async with ScriptedModel(script, port, _recorder(record)) as served:
        click.echo(served.url)
        await stopped.wait()


def _recorder(path: Path | None) -> Callable[[Seen], None] | None:
    """Without the headers, which hold the key."""
    if path is None:
        return None

    import msgspec

    try:
        path.open("ab").close()  # now, and not when the first request comes
    except OSError as error:
        raise click.BadParameter(f"{path} cannot be written: {error.strerror}.", param_hint="--record") from None

    def write(seen: Seen) -> None:
        line = {name: getattr(seen, name) for name in ("wire", "path", "scenario", "step", "attempt", "end", "body")}
        with path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")

    return write
