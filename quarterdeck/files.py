"""Replace files atomically and take locks on files."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


def write_atomic(path: Path, data: bytes | str, *, mode: int = 0o600, durable: bool = True) -> None:
    """Replace a file. Readers see the old content or the new one, never a part, whatever happens to this process.

    The data is written to a temporary file in the same folder and renamed. If `path` is a symbolic link, the file that it
    points to is replaced, and the link stays.

    Args:
        path: the file; its folder must exist
        data: the new content; a text is encoded as UTF-8
        mode: the permissions of the file, from its first byte on; private by default
        durable: flush the file and its folder to the disk, so the new content also survives a power failure

    Raises:
        OSError: the file can't be written. The old one is unchanged.
    """
    import tempfile  # Importing it takes milliseconds, and most commands of the command line only read.

    target = os.path.realpath(path)
    folder, name = os.path.split(target)
    descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=f".{name}.")
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(data.encode() if isinstance(data, str) else data)
            if durable:
                file.flush()
                os.fsync(descriptor)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
    if durable:
        _sync_folder(folder)


def _sync_folder(folder: str) -> None:
    """Flush a folder to the disk. The rename itself is an entry of the folder, not of the file."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Generator[int]:
    """Hold an exclusive lock (flock) on a file, which is created if necessary. Yields the file's descriptor.

    Use a file that exists only for the lock, not the one that it protects: `write_atomic` replaces that one, and a lock
    would stay with the old file. The lock is released when the block ends or the process exits. If the descriptor was
    passed to a child process, the lock is held until both have closed it.

    Raises:
        BlockingIOError: another process holds the lock and `wait` is False.
        OSError: the file can't be opened.
    """
    import fcntl

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    finally:
        os.close(descriptor)
