"""Provide a SQLite file system that can fail on demand, or tear a write in two."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import apsw

Reach = Callable[..., None]


class Disk(apsw.VFS):
    """The default file system of every connection that is opened after its creation."""

    def __init__(self, reach: Reach = lambda *_: None) -> None:
        self.reach = reach
        #: While set, every write to the write-ahead log raises this error.
        self.trouble: type[apsw.Error] | None = None
        self.base = apsw.vfs_names()[0]
        super().__init__("crash", self.base, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return _File(self, name, flags)


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        path = name.filename() if hasattr(name, "filename") else str(name)
        self._is_wal = path.endswith("-wal")
        self._path = path
        super().__init__(disk.base, name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        if self._is_wal and self._disk.trouble is not None:
            raise self._disk.trouble("as told")
        if self._is_wal:
            self._tear(data, offset)
        super().xWrite(data, offset)

    def _tear(self, data: bytes, offset: int) -> None:
        """Write only the first half to the disk if the process is killed at this point."""

        def half() -> None:
            with open(self._path, "r+b", buffering=0) as file:
                os.pwrite(file.fileno(), bytes(data)[: len(data) // 2], offset)

        self._disk.reach("wal_torn", half)

    def xSync(self, flags: int) -> None:  # noqa: N802
        if self._is_wal:
            self._disk.reach("wal_written")
        super().xSync(flags)
        if self._is_wal:
            self._disk.reach("wal_synced")
