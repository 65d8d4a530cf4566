"""Room for SQLite's write-ahead log, made at once.

It grows by a page or two with every commit, until it has a thousand pages and is begun anew. A file system has to note each
new length, and on ext4 a commit into a log that grows costs two to forty times as much as one into a log that is there
already. SQLite does not look at the length: what follows the last commit may be anything, and mostly is what an earlier
round left.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

#: How many pages the log has when it is begun anew.
PAGES = 1000
#: Each has a head of its own, and the file has one.
ROOM = PAGES * (4096 + 24) + 32
#: With less room than this on the disk it is left as it is.
_SPARE = 256 * 1024 * 1024


def make_room(store: Path) -> None:
    """For the log of this store, which is open, and which only the caller may write to now. Nothing depends on it, so a disk
    that refuses is asked for nothing more."""
    with suppress(OSError):
        handle = os.open(f"{store}-wal", os.O_WRONLY | os.O_CLOEXEC)
        try:
            _fill(handle)
        finally:
            os.close(handle)


def _fill(handle: int) -> None:
    there, disk = os.fstat(handle).st_size, os.fstatvfs(handle)
    if there >= ROOM or disk.f_bavail * disk.f_frsize < _SPARE:
        return
    try:
        # written, not reserved: what is only reserved is noted when it is written
        os.pwrite(handle, bytes(ROOM - there), there)
        os.fsync(handle)
    except OSError:
        os.ftruncate(handle, there)
