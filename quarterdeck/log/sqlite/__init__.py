"""Store a log in one SQLite file, in WAL mode with `synchronous=FULL`.

One thread writes and one reads. Appends that arrive while a commit is in progress share the next commit.
"""

from __future__ import annotations

from quarterdeck.log.sqlite.store import SqliteLog

__all__ = ["SqliteLog"]
