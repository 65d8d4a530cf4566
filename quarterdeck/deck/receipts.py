"""The answers that commands got, by the caller's own key: the same key and body get the same answer, for ever.

The truth is the log: the receipt is an event in the same append as what the command caused. What this process answered,
or once looked up, is remembered beside it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import CommandReceipt, Json
from quarterdeck.kernel.command_results import Answer
from quarterdeck.log.base import PAGE, Log

A = TypeVar("A", bound=Answer)


class IdempotencyMismatch(QuarterdeckError):
    """The key was used before, for something else. Nothing was done."""

    code = "idempotency_mismatch"

    def __init__(self, client_id: str, command: str) -> None:
        super().__init__(
            f"client_id {client_id} was already used for another {command}", "Use a new client_id for a new command."
        )


def fingerprint(name: str, body: Json) -> str:
    """The same command with the same content has the same one."""
    encoded = msgspec.json.encode([name, msgspec.to_builtins(body)], order="deterministic")
    return hashlib.sha256(encoded).hexdigest()[:32]


class Receipts:
    """The keys of one session. A new one has none yet; of all others the log knows."""

    def __init__(self, log: Log, session_id: str, *, is_new: bool) -> None:
        self._log = log
        self._session_id = session_id
        self._known: dict[str, CommandReceipt] | None = {} if is_new else None
        self._under_way: dict[str, tuple[str, asyncio.Future[Answer]]] = {}

    async def once(
        self, client_id: str, name: str, body: Json, kind: type[A], work: Callable[[str], Awaitable[A]]
    ) -> A:
        """The answer of this command: the one it got already, or what `work` gives, which is handed the fingerprint."""
        print_ = fingerprint(name, body)
        if self._known is None:
            found = await self._from_log()
            # whoever read at the same time and was first may have added to it already
            self._known = found if self._known is None else self._known
        known = self._known.get(client_id)
        if known is not None:
            _same(known.fingerprint, print_, client_id, name)
            return msgspec.convert(known.answer, kind)
        if client_id in self._under_way:
            other, answer = self._under_way[client_id]
            _same(other, print_, client_id, name)
            return msgspec.convert(msgspec.to_builtins(await asyncio.shield(answer)), kind)
        return await self._first(client_id, print_, work)

    async def _first(self, client_id: str, print_: str, work: Callable[[str], Awaitable[A]]) -> A:
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._under_way[client_id] = (print_, done)
        try:
            answer = await work(print_)
            done.set_result(answer)
            return answer
        except BaseException as error:
            done.set_exception(error if isinstance(error, QuarterdeckError) else asyncio.CancelledError())
            done.exception()
            raise
        finally:
            del self._under_way[client_id]

    def remember(self, receipt: CommandReceipt) -> None:
        """This one is durable now."""
        if self._known is not None:
            self._known[receipt.client_id] = receipt

    async def _from_log(self) -> dict[str, CommandReceipt]:
        found: dict[str, CommandReceipt] = {}
        since = 0
        while events := await self._log.read(self._session_id, since, PAGE, ("command_receipt",)):
            since = events[-1].index
            found |= {one.body.client_id: one.body for one in events if isinstance(one.body, CommandReceipt)}
        return found


def _same(known: str, now: str, client_id: str, name: str) -> None:
    if known != now:
        raise IdempotencyMismatch(client_id, name)
