"""The server process: opens the deck, listens, says where it is, and leaves nothing when it is told to go.

    python -m quarterdeck.server.main ORDERS

`qd up` starts it below the keeper (keeper → server → agents), and ORDERS is a JSON object (`Orders`). When it is ready, or
cannot be, it writes one line to a pipe that whoever started it reads. SIGTERM, SIGINT, SIGHUP and the death of its keeper
mean the same: streams are told that it is the end, sessions are suspended, agents ended, and server.json removed.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import gc
import logging
import os
import select
import signal
import ssl
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import uvloop
from aiohttp import web
from msgspec import Struct

from quarterdeck import __version__
from quarterdeck.config import Config, ServerSettings, read_config
from quarterdeck.deck.deck import Deck
from quarterdeck.deck.environment import Fixed, Surroundings
from quarterdeck.deck.login import LoginShell
from quarterdeck.errors import QuarterdeckError
from quarterdeck.harness import registry
from quarterdeck.home import Home, home
from quarterdeck.process.identity import NONCE_VARIABLE, Identity, start_time
from quarterdeck.process.subreaper import take_lifeline
from quarterdeck.server import log_setup, server_file
from quarterdeck.server.app import Server
from quarterdeck.server.connection import Runner
from quarterdeck.server.guard import Guard
from quarterdeck.server.server_file import Beacon
from quarterdeck.server.tokens import Tokens

if TYPE_CHECKING:
    from quarterdeck.server.telemetry import Telemetry

log = logging.getLogger("quarterdeck.server")

#: How long clients that are told of the end may take to close their side, and requests under way to be answered.
_GOODBYE_S = 1.0
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: What a process ends with when something else already owns the home (contract section 1: not allowed now).
_NOT_ALLOWED_NOW = 4


class CannotListen(QuarterdeckError):
    """The address cannot be had."""

    code = "cannot_listen"

    def __init__(self, settings: ServerSettings, error: OSError) -> None:
        where = f"port {settings.port} of {settings.host}"
        if isinstance(error, PermissionError):
            what, hint = f"{where} is not yours to use", "Ports below 1024 are the administrator's: choose another."
        elif error.errno == errno.EADDRINUSE:
            what = f"{where} is used by another program"
            hint = "Choose another with --port N, or --port 0 for any that is free."
        else:
            what, hint = f"cannot listen on {where}: {error.strerror or error}", "Choose another --host or --port."
        super().__init__(what, hint)


class BadCertificate(QuarterdeckError):
    """The files for TLS cannot be used."""

    code = "bad_certificate"

    def __init__(self, settings: ServerSettings, error: Exception) -> None:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        super().__init__(
            f"{settings.tls_cert} and {settings.tls_key} cannot be used: {why}",
            "Give the certificate with its chain, and its key, both in PEM and without a password.",
        )


class Orders(Struct, frozen=True, kw_only=True):
    """`ready` and `lock` are descriptors that were handed down; `options` those of the command line."""

    ready: int = -1
    lock: int = -1
    is_background: bool = False
    options: dict[str, Any] = {}


class Starter:
    """Whoever waits for us to be ready, if anybody does. Told once."""

    def __init__(self, orders: Orders) -> None:
        self._ready = orders.ready
        self._lock = orders.lock
        for descriptor in (orders.ready, orders.lock):
            if descriptor >= 0:
                os.set_inheritable(descriptor, False)

    def tell(self, words: dict[str, Any]) -> None:
        """The lock is of a file that the starter and our keeper hold open too; unlocked here, it is for all of them."""
        if self._lock >= 0:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
        if self._ready >= 0:
            try:
                os.write(self._ready, msgspec.json.encode(words) + b"\n")
            except BrokenPipeError:
                log.info("whoever started the server has left")
            os.close(self._ready)
        self._ready = self._lock = -1


class Process:
    """One server from its first to its last moment."""

    def __init__(self, place: Home, config: Config, orders: Orders, line: int | None, keeper: Identity | None) -> None:
        self._place = place
        self._settings = config.server
        self._deck_settings = config.deck
        self._orders = orders
        self._line = line
        self._keeper = keeper
        self._stop = asyncio.Event()
        self._why = ""

    async def run(self, starter: Starter) -> None:
        """Until it is told to go. QuarterdeckError when it cannot begin."""
        self._hear_of_the_end()
        secure = _secure(self._settings)
        usual = _surroundings(self._settings)
        deck = await Deck.open(self._place.folder, settings=self._deck_settings, environment=usual)
        told = None
        asking = asyncio.create_task(usual.refresh())  # now, so that the first agent does not wait for it
        try:
            told = await self._telemetry(deck)
            await self._behind_doors(deck, secure, starter)
        finally:
            try:
                if told is not None:
                    await told.close()
                await deck.close()
                await asyncio.wait({asking})
            finally:
                # last, so that whoever starts the next one waits for us and is not refused the home
                server_file.remove(self._place, os.getpid())

    async def _telemetry(self, deck: Deck) -> Telemetry | None:
        """Only where it is wanted: it brings much along."""
        if not self._settings.otel_endpoint:
            return None
        from quarterdeck.server.telemetry import begin

        return await begin(deck, self._settings.otel_endpoint, self._settings.otel_contents)

    async def _behind_doors(self, deck: Deck, secure: ssl.SSLContext | None, starter: Starter) -> None:
        tokens = Tokens(deck.home)
        tokens.owner()
        server = Server(deck, tokens, Guard(_names(self._settings)), is_secure=self._settings.is_secure)
        runner = Runner(server.app, server.shortcut, shutdown_timeout=_GOODBYE_S)
        await runner.setup()
        try:
            await self._serve(server, runner, secure, starter)
        finally:
            await runner.cleanup()

    async def _serve(self, server: Server, runner: web.AppRunner, secure: ssl.SSLContext | None, to: Starter) -> None:
        port = await _listening(runner, self._settings, secure)
        settle_memory()
        light = self._beacon(port)
        if not self._stop.is_set():
            server_file.write(self._place, light)
            log.info("serving", extra={"address": light.address, "pid": light.pid, "version": light.version})
            for handler in logging.getLogger().handlers:
                handler.flush()  # whoever started us may look there first
            to.tell({"address": light.address})
        await self._stop.wait()
        log.info("leaving: %s", self._why)
        server_file.write(self._place, light._replace(stopping=True))
        for site in list(runner.sites):
            await site.stop()
        await server.goodbye(_GOODBYE_S)

    def _beacon(self, port: int) -> Beacon:
        keeper = self._keeper or Identity(0, 0, "")
        # a restart is to be found where this one was
        options = {**self._orders.options, "port": port} if not self._settings.port else self._orders.options
        return Beacon(
            pid=os.getpid(),
            started=start_time(os.getpid()) or 0,
            keeper_pid=keeper.pid,
            keeper_started=keeper.started_at,
            address=_address(self._settings, port),
            version=__version__,
            since=int(time.time() * 1000),
            options=options,
            tls_cert=self._settings.tls_cert,
            leaves_within=self._deck_settings.shutdown_within + 10.0,
        )

    def _hear_of_the_end(self) -> None:
        loop = asyncio.get_running_loop()
        for number in _STOPS:
            if signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, self._leave, signal.Signals(number).name)
        if self._line is not None:
            loop.add_reader(self._line, self._keeper_died)

    def _keeper_died(self) -> None:
        assert self._line is not None
        asyncio.get_running_loop().remove_reader(self._line)
        self._leave("the keeper is gone")

    def _leave(self, why: str) -> None:
        self._why = self._why or why
        self._stop.set()


def settle_memory() -> None:
    """What is here now stays until the end: the collector need not look at it again and again while others wait."""
    gc.collect()
    gc.freeze()


def _surroundings(settings: ServerSettings) -> Surroundings:
    return Fixed(os.environ, "server") if settings.environment == "server" else LoginShell(os.environ)


def _names(settings: ServerSettings) -> frozenset[str]:
    """An address of ours is a good name, too: nobody can make a foreign page come from it."""
    own = () if settings.is_everywhere else (settings.host,)
    return frozenset((*settings.allow_host, *own))


def _address(settings: ServerSettings, port: int) -> str:
    scheme = "https" if settings.is_secure else "http"
    host = "127.0.0.1" if settings.is_everywhere else settings.host
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _secure(settings: ServerSettings) -> ssl.SSLContext | None:
    if not settings.is_secure:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # a password would be asked for on the terminal, where in the background nobody is
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password="")
    except (OSError, ValueError) as error:
        raise BadCertificate(settings, error) from None
    return context


async def _listening(runner: web.AppRunner, settings: ServerSettings, secure: ssl.SSLContext | None) -> int:
    try:
        await web.TCPSite(runner, settings.host, settings.port, ssl_context=secure).start()
    except OSError as error:
        raise CannotListen(settings, error) from None
    return int(runner.addresses[0][1])


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    orders = msgspec.json.decode(arguments[0] if arguments else "{}", type=Orders)
    line = take_lifeline()
    keeper = _keeper(line)
    os.environ.pop(NONCE_VARIABLE, None)  # an agent's shell may have started us, and we are not to end with that agent
    starter = Starter(orders)
    place = home()
    place.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    book = log_setup.configure(place.folder, to_terminal=not orders.is_background)
    try:
        config = read_config(place.config, os.environ, orders.options, agents=registry.known)
        for warning in config.warnings:
            log.warning("%s", warning)
        uvloop.run(Process(place, config, orders, line, keeper).run(starter))
    except QuarterdeckError as error:
        _say(error, orders)
        starter.tell(error.as_json())
        return _NOT_ALLOWED_NOW if error.code == "home_in_use" else 1
    except Exception as error:
        log.exception("the server broke down")
        starter.tell(_broken(error, place))
        return 1
    finally:
        book.close()
    return 0


def _keeper(line: int | None) -> Identity | None:
    """Our parent, if it still lives after we asked who it is: else we would name whoever adopted us."""
    if line is None:
        return None
    parent = os.getppid()
    started = start_time(parent)
    is_gone = bool(select.select([line], [], [], 0)[0])
    return None if is_gone or started is None else Identity(parent, started, "")


def _say(error: QuarterdeckError, orders: Orders) -> None:
    """In the background whoever started us shows it; here nobody else would, and a person reads it."""
    if orders.is_background:
        log.error("%s", error.message, extra={"code": error.code, "hint": error.hint})
    else:
        sys.stderr.write(f"error: {error.message}\n{error.hint}\n")


def _broken(error: Exception, place: Home) -> dict[str, Any]:
    message = f"the server broke down: {type(error).__name__}: {error}"
    return {"error": {"code": "internal", "message": message, "hint": f"Please report it, with {place.log}."}}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
