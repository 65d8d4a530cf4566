"""`qd testing`: serve a scripted model for tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from quarterdeck.testing.model import SeenRequest
    from quarterdeck.testing.script import Script


@click.group()
def testing() -> None:
    """Serve a scripted model for tests."""


@testing.command()
@click.option("--script", "path", type=click.Path(path_type=Path), help="Script of its replies, in TOML or JSON.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default="a free one",
    help="Port to listen on, on this machine only.",
)
@click.option(
    "--record", type=click.Path(path_type=Path), help="Append each request to this file, one JSON object per line."
)
def model(path: Path | None, port: int, record: Path | None) -> None:
    """Serve a scripted model over HTTP.

    Speaks the formats of Anthropic, OpenAI and Gemini. Prints its address and serves until it is interrupted.
    docs/testing.md describes the format of scripts.
    """
    import asyncio

    from quarterdeck.testing.script import Script, load_script

    asyncio.run(_serve(load_script(path) if path else Script(), port, record))


async def _serve(script: Script, port: int, record: Path | None) -> None:
    import asyncio
    import signal

    from quarterdeck.testing.model import ScriptedModel

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stopped.set)
    async with ScriptedModel(script, port, _recorder(record)) as server:
        click.echo(server.url)
        await stopped.wait()


def _recorder(path: Path | None) -> Callable[[SeenRequest], None] | None:
    """Return a function that appends requests to a file, without their headers, which contain the API key."""
    if path is None:
        return None

    import msgspec

    try:
        path.open("ab").close()  # Fail now, not when the first request comes.
    except OSError as error:
        raise click.BadParameter(f"{path} can't be written: {error.strerror}.", param_hint="--record") from None

    def write(seen: SeenRequest) -> None:
        line = {name: getattr(seen, name) for name in ("wire", "path", "scenario", "step", "attempt", "end", "body")}
        with path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")

    return write
