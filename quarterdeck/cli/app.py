"""The `qd` command: its table of commands, and how their errors become exit codes."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, NamedTuple

import click

from quarterdeck import __version__
from quarterdeck.cli.exits import Exit, report
from quarterdeck.errors import QuarterdeckError


class Entry(NamedTuple):
    """Where a command is (`module:attribute`), and its help text."""

    where: str
    help: str


# Each help text is repeated here so that `qd --help` imports no command. A test compares it with the command's own.
COMMANDS = {
    "db": Entry("quarterdeck.cli.commands.db:db", "Check, migrate, back up or import into the store."),
    "down": Entry("quarterdeck.cli.commands.down:down", "Stop the server."),
    "machine": Entry("quarterdeck.cli.commands.machine:machine", "Show a state machine's table of transitions."),
    "replay": Entry("quarterdeck.cli.commands.replay:replay", "Replay a recording and show the states over time."),
    "restart": Entry("quarterdeck.cli.commands.down:restart", "Stop the server and start it again in the background."),
    "run": Entry("quarterdeck.cli.commands.run:run", "Start a session and follow it in the terminal."),
    "status": Entry(
        "quarterdeck.cli.commands.status:status", "Show whether and where the server runs, or its settings."
    ),
    "testing": Entry("quarterdeck.cli.commands.testing:testing", "Serve a scripted model for tests."),
    "up": Entry("quarterdeck.cli.commands.up:up", "Start the server and open its page."),
}


class SystemRefused(QuarterdeckError):
    """The operating system refused an operation that no command handles itself."""

    code = "system_refused"

    def __init__(self, error: OSError) -> None:
        where = f"{error.filename}: " if error.filename else ""
        super().__init__(f"{where}{error.strerror or error}", "Check that file or disk, and try again.")


class Placeholder(click.Command):
    """Stands for a command in listings, without importing it."""

    def __init__(self, name: str, entry: Entry) -> None:
        super().__init__(name, help=entry.help)
        self.where = entry.where

    def load(self) -> click.Command:
        module, _, attribute = self.where.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command


class CommandTable(click.Group):
    """A group that imports a command only when it runs."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if isinstance(command, Placeholder):
            command = command.load()
        return name, command, rest

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except QuarterdeckError as error:
            ctx.exit(report(error))
        except BrokenPipeError:
            raise  # click exits quietly: the reader of our output has closed it.
        except OSError as error:
            ctx.exit(report(SystemRefused(error)))
        except (KeyboardInterrupt, click.Abort):
            click.echo(err=True)  # End the line on which the terminal printed "^C".
            ctx.exit(Exit.INTERRUPTED)


@click.group(
    cls=CommandTable,
    commands={name: Placeholder(name, entry) for name, entry in COMMANDS.items()},
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="qd", message="%(prog)s %(version)s")
@click.pass_context
def app(ctx: click.Context) -> None:
    """The command deck for coding agents: start, watch, steer and approve many of them from one place."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        ctx.color = False
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
