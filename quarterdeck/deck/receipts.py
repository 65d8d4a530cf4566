"""Run each command with a `client_id` once, and give repetitions the same result.

The receipt of a command is an event in the same append as everything the command causes, so either both are durable or
neither is. Receipts of a session are read from the log when the first keyed command arrives, then kept in memory.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable

import msgspec

from quarterdeck.errors import QuarterdeckError
from quarterdeck.events import CommandReceipt, Json
from quarterdeck.kernel import commands as cmd
from quarterdeck.kernel.command_results import CommandResult
from quarterdeck.log.base import Log, read_pages

#: Commands whose fingerprint doesn't include their type. Receipts in existing logs were written this way.
_UNTYPED = (cmd.EditQueued, cmd.DropQueued, cmd.Resend, cmd.Mark, cmd.RemoveRule)


class IdempotencyMismatch(QuarterdeckError):
    """The key was used before, for a different command. Nothing was done."""

    code = "idempotency_mismatch"

    def __init__(self, client_id: str, command: str) -> None:
        super().__init__(
            f"client_id {client_id} was already used for another {command}", "Use a new client_id for a new command."
        )


def fingerprint(command: cmd.Command) -> str:
    """Return a hash that is the same for commands with the same content. The `client_id` isn't part of it."""
    fields = msgspec.to_builtins(command)
    del fields["client_id"]
    if not isinstance(command, _UNTYPED):
        fields["type"] = command.command_name
    return fingerprint_body(command.command_name, fields)


def fingerprint_body(command_name: str, body: Json) -> str:
    """Return the hash of a command's name and content."""
    encoded = msgspec.json.encode([command_name, body], order="deterministic")
    return hashlib.sha256(encoded).hexdigest()[:32]


class Receipts:
    """The receipts of one session."""

    def __init__(self, log: Log, session_id: str, *, is_new: bool) -> None:
        self._log = log
        self._session_id = session_id
        #: Durable receipts by key, or None if the log wasn't read yet. A new session has none.
        self._durable: dict[str, CommandReceipt] | None = {} if is_new else None
        #: Fingerprint and result of the commands that are running now, by key.
        self._running: dict[str, tuple[str, asyncio.Future[CommandResult]]] = {}

    async def run_once(
        self, command: cmd.Command, command_fingerprint: str, work: Callable[[], Awaitable[CommandResult]]
    ) -> CommandResult:
        """Return the result of a keyed command: the stored one, or what `work` returns.

        Raises:
            IdempotencyMismatch: the key was used for another command.
            QuarterdeckError: what `work` raised. Nothing is stored then, so the caller may try again.
        """
        client_id = command.client_id
        if self._durable is None:
            receipts = await self._read_log()
            # Another command may have read the log in the meantime and added its own receipt. Don't overwrite that.
            if self._durable is None:
                self._durable = receipts
        receipt = self._durable.get(client_id)
        if receipt is not None:
            _check_same(receipt.fingerprint, command_fingerprint, command)
            return msgspec.convert(receipt.answer, command.result_type)
        if client_id in self._running:
            running_fingerprint, result = self._running[client_id]
            _check_same(running_fingerprint, command_fingerprint, command)
            return msgspec.convert(msgspec.to_builtins(await asyncio.shield(result)), command.result_type)
        return await self._run_first(client_id, command_fingerprint, work)

    async def _run_first(
        self, client_id: str, command_fingerprint: str, work: Callable[[], Awaitable[CommandResult]]
    ) -> CommandResult:
        future: asyncio.Future[CommandResult] = asyncio.get_running_loop().create_future()
        self._running[client_id] = (command_fingerprint, future)
        try:
            result = await work()
            future.set_result(result)
            return result
        except BaseException as error:
            future.set_exception(error if isinstance(error, QuarterdeckError) else asyncio.CancelledError())
            # Retrieve the exception so asyncio doesn't log it if no repetition is waiting.
            future.exception()
            raise
        finally:
            del self._running[client_id]

    def create(self, command: cmd.Command, result: CommandResult) -> CommandReceipt:
        """Create the receipt of a command that is running now, to be committed with its events."""
        command_fingerprint, _ = self._running[command.client_id]
        return CommandReceipt(
            client_id=command.client_id,
            command=command.command_name,
            fingerprint=command_fingerprint,
            answer=msgspec.to_builtins(result),
        )

    def add(self, receipt: CommandReceipt) -> None:
        """Remember a receipt that is durable now."""
        if self._durable is not None:
            self._durable[receipt.client_id] = receipt

    async def _read_log(self) -> dict[str, CommandReceipt]:
        receipts: dict[str, CommandReceipt] = {}
        async for events in read_pages(self._log, self._session_id, types=("command_receipt",)):
            bodies = [event.body for event in events]
            receipts |= {body.client_id: body for body in bodies if isinstance(body, CommandReceipt)}
        return receipts


def _check_same(known: str, current: str, command: cmd.Command) -> None:
    if known != current:
        raise IdempotencyMismatch(command.client_id, command.command_name)
