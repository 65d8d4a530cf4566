"""`qd db`: looking after the store. `check` and `backup` work while a deck runs; the others need it to be down."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quarterdeck.cli.exits import Exit, echo_json
from quarterdeck.cli.home_check import own_home
from quarterdeck.cli.progress import Progress
from quarterdeck.errors import QuarterdeckError
from quarterdeck.files import locked
from quarterdeck.home import Home

if TYPE_CHECKING:
    from quarterdeck.deck.projections import Difference
    from quarterdeck.log.sqlite.five_states import OldSession
    from quarterdeck.log.sqlite.inspect import Inspection


class DeckRunning(QuarterdeckError):
    """Somebody else owns the store now."""

    code = "deck_running"

    def __init__(self, folder: Path) -> None:
        super().__init__(f"a deck is running on {folder}", "Stop it with `qd down` first.")


class FileExists(QuarterdeckError):
    """A backup never writes over a file."""

    code = "file_exists"

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} exists already", "Name a file that does not exist yet, or move that one away.")


class NoSuchFolder(QuarterdeckError):
    """A backup makes no folders: a name that was mistyped would make one somewhere."""

    code = "no_such_folder"

    def __init__(self, path: Path) -> None:
        super().__init__(f"there is no folder {path}", "Create it, or name a file in a folder that is there.")


class NotWritten(QuarterdeckError):
    """The system refused the copy. Nothing is left of it."""

    code = "not_written"

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(
            f"{path} cannot be written: {error.strerror or error}",
            "Name a file in a folder that you may write, on a disk that has room.",
        )


class BadCopy(QuarterdeckError):
    """The copy does not hold what the store holds. It was removed."""

    code = "bad_copy"

    def __init__(self, what: str) -> None:
        super().__init__(f"the copy is not good: {what}", "Run `qd db check`; then try another disk.")


class FileName(click.Path):
    """An empty one is a mistake (a variable that is not set), and not this folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value:
            self.fail("the name of the file is empty.", param, ctx)
        return super().convert(value, param, ctx)


@click.group()
def db() -> None:
    """Look after the store: check, migrate, back up, import."""


@db.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--repair", "repairing", is_flag=True, help="Write catalogue and views again from the events.")
@click.pass_context
def check(ctx: click.Context, as_json: bool, repairing: bool) -> None:
    """Prove that the catalogue and the views are what the events say.

    Works while a deck is running, and changes nothing without --repair. Ends with 1 when something is wrong.
    """
    found = own_home()
    with _alone(found) if repairing else _together():
        report = _checked(found.store, repairing)
    if as_json:
        echo_json(report, indent=2)
    else:
        click.echo("\n".join(_as_text(report)))
    if report["damages"] or len(report["differences"]) > report["repaired"]:
        ctx.exit(Exit.FAILED)


def _checked(path: Path, repairing: bool) -> dict[str, Any]:
    from quarterdeck.deck import projections
    from quarterdeck.log.sqlite.inspect import Inspection

    look = Inspection(path)
    try:
        look.must_be_current()
        with Progress("checking the file") as progress:
            damages = look.damages(progress.beat)
        with Progress("folding the sessions") as progress:
            differences, events = projections.check(look, progress) if not damages else ([], 0)
        sessions = len(look.session_ids()) if not damages else 0
        version = look.version
    finally:
        look.close()
    repaired = _repaired(path, differences) if repairing else 0
    return {
        "path": str(path),
        "version": version,
        "sessions": sessions,
        "events": events,
        "damages": damages,
        "differences": [{name: getattr(one, name) for name in one.__struct_fields__} for one in differences],
        "repaired": repaired,
    }


def _repaired(path: Path, differences: Sequence[Difference]) -> int:
    """Cures what can be cured, session by session; returns how many differences are gone."""
    from quarterdeck.deck import projections

    curable = [one for one in differences if one.curable]
    sessions = sorted({one.session for one in curable} - {one.session for one in differences if not one.curable})
    with Progress("repairing") as progress:
        for place, session_id in enumerate(sessions, 1):
            projections.repair(path, session_id)
            progress(place, len(sessions))
    return sum(one.session in sessions for one in curable)


def _as_text(report: dict[str, Any]) -> Generator[str]:
    for damage in report["damages"]:
        yield f"damaged: {damage}"
    for one in report["differences"]:
        told = f": stored {one['stored']!r}, folded {one['folded']!r}" if one["stored"] or one["folded"] else ""
        yield f"{one['session'] or 'the store'}: {one['what']}{told}"
    if report["damages"]:
        yield "The file is damaged. Restore a backup, or copy what can be read with SQLite's own `.recover`."
        return
    count = len(report["differences"])
    yield (
        f"{report['path']}, version {report['version']}: {report['sessions']} sessions, {report['events']} events, "
        + (f"{count} differences, {report['repaired']} repaired" if count else "all as it should be")
    )
    if count > report["repaired"]:
        yield "`qd db check --repair` writes the catalogue and the views again; what it cannot cure needs a backup."


@db.command()
def migrate() -> None:
    """Bring the store to the version of this release."""
    from quarterdeck.log.sqlite.inspect import migrated

    found = own_home()
    with _alone(found), Progress("migrating") as progress:
        before, after = migrated(found.store, progress)
    if before == after:
        click.echo(f"{found.store} has version {after} already")
    else:
        click.echo(f"{found.store}: version {before} → {after}")


@db.command()
@click.argument("file", type=FileName(path_type=Path))
def backup(file: Path) -> None:
    """Copy the store to FILE while the deck goes on, and check the copy.

    FILE must not exist.
    """
    from quarterdeck.log.sqlite.inspect import Inspection

    if file.exists():
        raise FileExists(file)
    if not file.parent.is_dir():
        raise NoSuchFolder(file.parent)
    look = Inspection(own_home().store)
    try:
        look.must_be_current()
        size = _backed_up(look, file)
    except FileExistsError as error:
        raise FileExists(file) from error
    except OSError as error:
        raise NotWritten(file, error) from error
    finally:
        look.close()
    click.echo(f"{file}: {size:,} bytes, checked")


def _backed_up(look: Inspection, file: Path) -> int:
    """Copied under another name, private from its first byte; it gets its own name only when it is good and on the disk."""
    from tempfile import mkstemp

    descriptor, name = mkstemp(prefix=f"{file.name}.", suffix=".part", dir=file.parent)
    part = Path(name)
    try:
        _copied(look, part)
        os.fsync(descriptor)
        _named(part, file)
        return file.stat().st_size
    finally:
        os.close(descriptor)
        part.unlink(missing_ok=True)


def _copied(look: Inspection, part: Path) -> None:
    from quarterdeck.log.sqlite.inspect import Inspection

    with look.moment():
        counts = look.counts()
        with Progress("copying") as progress:
            look.copy_to(part, progress)
    copy = Inspection(part)
    try:
        with Progress("checking the copy") as progress:
            damages = copy.damages(progress.beat)
        if damages or copy.counts() != counts:
            raise BadCopy(damages[0] if damages else f"it holds {copy.counts()}, the store {counts}")
    finally:
        copy.close()


def _named(part: Path, file: Path) -> None:
    """A link fails if somebody made the file meanwhile. Some disks, such as those of cameras, know no links."""
    try:
        os.link(part, file)
    except FileExistsError:
        raise
    except OSError:
        if file.exists():
            raise FileExistsError from None
        part.rename(file)


@db.command("import")
@click.argument("file", type=FileName(path_type=Path))
@click.option("--table", default="AgentSession", show_default=True, help="The table that holds the sessions.")
def import_(file: Path, table: str) -> None:
    """Bring in the sessions of a five-state table from the SQLite file FILE.

    Completed ones become active, cancelled ones archived. FILE is not changed, and a session that is here already is left
    alone, so it can be done again.
    """
    import asyncio

    from quarterdeck.log.sqlite.five_states import old_sessions

    sessions = old_sessions(file, table)
    found = own_home()
    found.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _alone(found), Progress("importing") as progress:
        added = asyncio.run(_imported(found.store, sessions, progress))
    click.echo(f"{added} sessions imported, {len(sessions) - added} were here already")


async def _imported(store: Path, sessions: list[OldSession], told: Progress) -> int:
    from quarterdeck.deck.importing import imported
    from quarterdeck.log.sqlite import SqliteLog

    log = await SqliteLog.open(store)
    try:
        return await imported(log, sessions, told)
    finally:
        await log.close()


@contextmanager
def _alone(found: Home) -> Generator[None]:
    """Holds the deck's lock: nobody else owns the store meanwhile."""
    if not found.folder.is_dir():
        yield  # there is no store either, and whoever looks for it says so
        return
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(found.lock, wait=False))
        except BlockingIOError:
            raise DeckRunning(found.folder) from None
        yield


@contextmanager
def _together() -> Generator[None]:
    yield
