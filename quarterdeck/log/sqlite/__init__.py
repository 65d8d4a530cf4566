"""The log in one SQLite file: WAL, FULL, one writer thread with group commit, one reader thread.

Acknowledged means durable: `append` returns after the commit of its group. Appends of one pass of the event loop, and all
that arrive while a commit is under way, share the next one; a lone append does not wait for company.
"""

from __future__ import annotations

from quarterdeck.log.sqlite.store import SqliteLog

__all__ = ["SqliteLog"]
