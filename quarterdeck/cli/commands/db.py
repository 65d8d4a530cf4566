"""`qd db`: check, migrate, back up and import into the store.

`check` and `backup` work while a deck runs. The others need it to be stopped.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quarterdeck.cli.exits import Exit, echo_json
from quarterdeck.cli.home_check import check_home
from quarterdeck.cli.progress import Progress
from quarterdeck.errors import QuarterdeckError
from quarterdeck.files import locked
from quarterdeck.home import Home

if TYPE_CHECKING:
    from quarterdeck.deck.projections import Difference
    from quarterdeck.log.sqlite.five_states import OldSession
    from quarterdeck.log.sqlite.inspect import Inspection


class DeckRunning(QuarterdeckError):
    """A running deck owns the store."""

    code = "deck_running"

    def __init__(self, folder: Path) -> None:
        super().__init__(f"a deck is running on {folder}", "Stop it with `qd down` first.")


class FileExists(QuarterdeckError):
    """A backup never overwrites a file."""

    code = "file_exists"

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} already exists", "Name a file that doesn't exist, or move that one away.")


class NoSuchFolder(QuarterdeckError):
    """The folder of a backup is missing. It isn't created, because the path may be mistyped."""

    code = "no_such_folder"

    def __init__(self, path: Path) -> None:
        super().__init__(f"there is no folder {path}", "Create it, or name a file in an existing folder.")


class NotWritten(QuarterdeckError):
    """The backup couldn't be written. The partial file was removed."""

    code = "not_written"

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(
            f"{path} can't be written: {error.strerror or error}",
            "Name a file in a folder that you may write, on a disk with enough space.",
        )


class BadCopy(QuarterdeckError):
    """The copy differs from the store. It was removed."""

    code = "bad_copy"

    def __init__(self, difference: str) -> None:
        super().__init__(f"the copy isn't correct: {difference}", "Run `qd db check`, then try another disk.")


class FileName(click.Path):
    """A path argument. Rejects an empty one: it comes from an unset variable and would mean the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value:
            self.fail("the name of the file is empty.", param, ctx)
        return super().convert(value, param, ctx)


@click.group()
def db() -> None:
    """Check, migrate, back up or import into the store."""


# --- check


@db.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--repair", is_flag=True, help="Rewrite catalogue and views from the events.")
@click.pass_context
def check(ctx: click.Context, as_json: bool, repair: bool) -> None:
    """Verify that the catalogue and the views match the events.

    Works while a deck runs. Changes nothing without --repair. Exits with code 1 if something is wrong.
    """
    home = check_home()
    with _own_store(home) if repair else nullcontext():
        report = _check_store(home.store, repair)
    if as_json:
        echo_json(report, indent=2)
    else:
        click.echo("\n".join(_format(report)))
    if report["damages"] or len(report["differences"]) > report["repaired"]:
        ctx.exit(Exit.FAILED)


def _check_store(path: Path, repair: bool) -> dict[str, Any]:
    from quarterdeck.deck import projections
    from quarterdeck.log.sqlite.inspect import Inspection

    inspection = Inspection(path)
    try:
        inspection.require_current_version()
        with Progress("checking the file") as progress:
            damages = inspection.integrity_errors(progress.beat)
        with Progress("folding the sessions") as progress:
            differences, events = projections.check(inspection, progress) if not damages else ([], 0)
        sessions = len(inspection.session_ids()) if not damages else 0
        version = inspection.version
    finally:
        inspection.close()
    repaired = _repair(path, differences) if repair else 0
    return {
        "path": str(path),
        "version": version,
        "sessions": sessions,
        "events": events,
        "damages": damages,
        "differences": [
            {name: getattr(difference, name) for name in difference.__struct_fields__} for difference in differences
        ],
        "repaired": repaired,
    }


def _repair(path: Path, differences: Sequence[Difference]) -> int:
    """Rewrite the sessions whose differences can all be repaired. Return how many differences are gone."""
    from quarterdeck.deck import projections

    curable = [difference for difference in differences if difference.curable]
    incurable_sessions = {difference.session for difference in differences if not difference.curable}
    sessions = sorted({difference.session for difference in curable} - incurable_sessions)
    with Progress("repairing") as progress:
        for number, session_id in enumerate(sessions, 1):
            projections.repair(path, session_id)
            progress(number, len(sessions))
    return sum(difference.session in sessions for difference in curable)


def _format(report: dict[str, Any]) -> Generator[str]:
    for damage in report["damages"]:
        yield f"damaged: {damage}"
    for difference in report["differences"]:
        stored, folded = difference["stored"], difference["folded"]
        values = f": stored {stored!r}, folded {folded!r}" if stored or folded else ""
        yield f"{difference['session'] or 'the store'}: {difference['what']}{values}"
    if report["damages"]:
        yield "The file is damaged. Restore a backup, or recover what is readable with SQLite's `.recover`."
        return
    count = len(report["differences"])
    result = f"{count} differences, {report['repaired']} repaired" if count else "no differences"
    yield (
        f"{report['path']}, version {report['version']}: {report['sessions']} sessions, {report['events']} events, "
        f"{result}"
    )
    if count > report["repaired"]:
        yield (
            "Run `qd db check --repair` to rewrite the catalogue and the views. "
            "Restore a backup for what can't be repaired."
        )


# --- migrate


@db.command()
def migrate() -> None:
    """Migrate the store to the version of this release."""
    from quarterdeck.log.sqlite.inspect import migrate_store

    home = check_home()
    with _own_store(home), Progress("migrating") as progress:
        before, after = migrate_store(home.store, progress)
    if before == after:
        click.echo(f"{home.store} already has version {after}")
    else:
        click.echo(f"{home.store}: version {before} → {after}")


# --- back up


@db.command()
@click.argument("file", type=FileName(path_type=Path))
def backup(file: Path) -> None:
    """Copy the store to FILE and verify the copy. Works while a deck runs.

    FILE must not exist.
    """
    from quarterdeck.log.sqlite.inspect import Inspection

    if file.exists():
        raise FileExists(file)
    if not file.parent.is_dir():
        raise NoSuchFolder(file.parent)
    inspection = Inspection(check_home().store)
    try:
        inspection.require_current_version()
        size = _back_up(inspection, file)
    except FileExistsError as error:
        raise FileExists(file) from error
    except OSError as error:
        raise NotWritten(file, error) from error
    finally:
        inspection.close()
    click.echo(f"{file}: {size:,} bytes, verified")


def _back_up(inspection: Inspection, file: Path) -> int:
    """Copy to a private temporary file, and rename it only when it is verified and on the disk. Return its size."""
    from tempfile import mkstemp

    descriptor, name = mkstemp(prefix=f"{file.name}.", suffix=".part", dir=file.parent)
    part = Path(name)
    try:
        _copy_and_verify(inspection, part)
        os.fsync(descriptor)
        _rename_to_new(part, file)
        return file.stat().st_size
    finally:
        os.close(descriptor)
        part.unlink(missing_ok=True)


def _copy_and_verify(inspection: Inspection, part: Path) -> None:
    from quarterdeck.log.sqlite.inspect import Inspection

    with inspection.snapshot():
        counts = inspection.counts()
        with Progress("copying") as progress:
            inspection.copy_to(part, progress)
    copy = Inspection(part)
    try:
        with Progress("verifying the copy") as progress:
            damages = copy.integrity_errors(progress.beat)
        if damages or copy.counts() != counts:
            raise BadCopy(damages[0] if damages else f"it has {copy.counts()}, the store has {counts}")
    finally:
        copy.close()


def _rename_to_new(part: Path, file: Path) -> None:
    """Give the file its final name, without overwriting one that was created meanwhile."""
    try:
        os.link(part, file)
    except FileExistsError:
        raise
    except OSError:
        # Some file systems, such as FAT, have no links.
        if file.exists():
            raise FileExistsError from None
        part.rename(file)


# --- import


@db.command("import")
@click.argument("file", type=FileName(path_type=Path))
@click.option("--table", default="AgentSession", show_default=True, help="Table with the sessions.")
def import_(file: Path, table: str) -> None:
    """Import sessions from a SQLite file.

    FILE has a table of sessions with five states and isn't changed. Completed sessions become active, cancelled ones
    archived. Sessions that are already here are left alone, so the import can be repeated.
    """
    import asyncio

    from quarterdeck.log.sqlite.five_states import read_old_sessions

    sessions = read_old_sessions(file, table)
    home = check_home()
    home.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _own_store(home), Progress("importing") as progress:
        added = asyncio.run(_import_sessions(home.store, sessions, progress))
    click.echo(f"{added} sessions imported, {len(sessions) - added} were already here")


async def _import_sessions(store: Path, sessions: list[OldSession], progress: Progress) -> int:
    from quarterdeck.deck.importing import import_sessions
    from quarterdeck.log.sqlite import SqliteLog

    log = await SqliteLog.open(store)
    try:
        return await import_sessions(log, sessions, progress)
    finally:
        await log.close()


@contextmanager
def _own_store(home: Home) -> Generator[None]:
    """Hold the deck's lock, so that no deck opens the store meanwhile.

    Raises:
        DeckRunning: a deck holds it.
    """
    if not home.folder.is_dir():
        yield  # There is no store either. The command's own lookup reports that.
        return
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(home.lock, wait=False))
        except BlockingIOError:
            raise DeckRunning(home.folder) from None
        yield
