"""The server process: open the deck, listen, write `server.json`, and shut down on a signal.

    python -m quarterdeck.server.main OPTIONS

`qd up` starts this process below the keeper (keeper → server → agents) with OPTIONS as a JSON object (`StartOptions`). When
the server is ready, or can't start, it writes one line to a pipe that the starting process reads.

SIGTERM, SIGINT, SIGHUP and the exit of the keeper shut the server down: streams are ended, sessions suspended, agents
stopped, and `server.json` is removed.
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
from quarterdeck.deck.environment import EnvironmentSource, FixedEnvironment
from quarterdeck.deck.login import LoginShell
from quarterdeck.errors import QuarterdeckError
from quarterdeck.harness import registry
from quarterdeck.home import Home, home
from quarterdeck.process.identity import NONCE_VARIABLE, Identity, start_time
from quarterdeck.process.subreaper import take_lifeline
from quarterdeck.server import log_setup
from quarterdeck.server.app import Server
from quarterdeck.server.connection import Runner
from quarterdeck.server.server_file import ServerInfo, remove_server_info, write_server_info
from quarterdeck.server.tokens import Tokens

if TYPE_CHECKING:
    from quarterdeck.server.telemetry import Telemetry

log = logging.getLogger("quarterdeck.server")

#: How long clients may take to close their streams at shutdown, and requests to be answered.
_CLOSE_TIMEOUT_S = 1.0
_SHUTDOWN_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: Exit code if another process owns the home (contract section 1: not allowed now).
_NOT_ALLOWED_NOW = 4


class CannotListen(QuarterdeckError):
    """The address can't be listened on."""

    code = "cannot_listen"

    def __init__(self, settings: ServerSettings, error: OSError) -> None:
        address = f"port {settings.port} of {settings.host}"
        if isinstance(error, PermissionError):
            message, hint = f"you aren't allowed to use {address}", "Choose a port of 1024 or above with --port N."
        elif error.errno == errno.EADDRINUSE:
            message = f"{address} is in use by another program"
            hint = "Choose another port with --port N, or any free one with --port 0."
        else:
            message, hint = f"can't listen on {address}: {error.strerror or error}", "Choose another --host or --port."
        super().__init__(message, hint)


class BadCertificate(QuarterdeckError):
    """The TLS files can't be used."""

    code = "bad_certificate"

    def __init__(self, settings: ServerSettings, error: Exception) -> None:
        problem = error.strerror if isinstance(error, OSError) and error.strerror else error
        super().__init__(
            f"{settings.tls_cert} and {settings.tls_key} can't be used: {problem}",
            "Give the certificate with its chain, and its key, both as PEM without a password.",
        )


class StartOptions(Struct, frozen=True, kw_only=True):
    """What the starting process passes to the server."""

    #: Inherited descriptor of the pipe for the line that the server is ready. -1: none.
    ready: int = -1
    #: Inherited descriptor of the start lock, which is released when the server is ready. -1: none.
    lock: int = -1
    is_background: bool = False
    #: Options of the command line, by the names of their settings.
    options: dict[str, Any] = {}


class Starter:
    """The process that started the server and waits until it is ready."""

    def __init__(self, options: StartOptions) -> None:
        self._ready = options.ready
        self._lock = options.lock
        for descriptor in (options.ready, options.lock):
            if descriptor >= 0:
                os.set_inheritable(descriptor, False)

    def report(self, message: dict[str, Any]) -> None:
        """Send the outcome and release the start lock. Only the first call has an effect."""
        if self._lock >= 0:
            # The starter and the keeper have the same open file, so closing our descriptor wouldn't release the lock.
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
        if self._ready >= 0:
            try:
                os.write(self._ready, msgspec.json.encode(message) + b"\n")
            except BrokenPipeError:
                log.info("the process that started the server has exited")
            os.close(self._ready)
        self._ready = self._lock = -1


class ServerProcess:
    """The server from its start to its exit."""

    def __init__(
        self, files: Home, config: Config, options: StartOptions, lifeline_fd: int | None, keeper: Identity | None
    ) -> None:
        self._files = files
        self._settings = config.server
        self._deck_settings = config.deck
        self._options = options
        self._lifeline_fd = lifeline_fd
        self._keeper = keeper
        self._stop = asyncio.Event()
        self._stop_reason = ""

    async def run(self, starter: Starter) -> None:
        """Serve until a signal comes or the keeper exits.

        Raises:
            QuarterdeckError: the server can't start.
        """
        self._watch_signals()
        tls = _tls_context(self._settings)
        environment = _agent_environment(self._settings)
        deck = await Deck.open(self._files.folder, settings=self._deck_settings, environment=environment)
        telemetry = None
        # Run the login shell now, so that the first agent needn't wait for it.
        refresh = asyncio.create_task(environment.refresh())
        try:
            telemetry = await self._start_telemetry(deck)
            await self._serve(deck, tls, starter)
        finally:
            try:
                if telemetry is not None:
                    await telemetry.close()
                await deck.close()
                await asyncio.wait({refresh})
            finally:
                # Remove it last: a command that starts the next server waits for it, and would otherwise find the home
                # still in use.
                remove_server_info(self._files, os.getpid())

    async def _start_telemetry(self, deck: Deck) -> Telemetry | None:
        if not self._settings.otel_endpoint:
            return None
        # Here, because it imports much that most servers don't need.
        from quarterdeck.server.telemetry import start_telemetry

        return await start_telemetry(deck, self._settings.otel_endpoint, self._settings.otel_contents)

    async def _serve(self, deck: Deck, tls: ssl.SSLContext | None, starter: Starter) -> None:
        tokens = Tokens(deck.home)
        tokens.owner()
        server = Server(deck, tokens, _allowed_hosts(self._settings), is_secure=self._settings.is_secure)
        runner = Runner(server.app, shutdown_timeout=_CLOSE_TIMEOUT_S)
        await runner.setup()
        try:
            port = await _listen(runner, self._settings, tls)
            freeze_memory()
            info = self._server_info(port)
            if not self._stop.is_set():
                write_server_info(self._files, info)
                log.info("serving", extra={"address": info.address, "pid": info.pid, "version": info.version})
                starter.report({"address": info.address})
            await self._stop.wait()
            log.info("shutting down: %s", self._stop_reason)
            write_server_info(self._files, info._replace(stopping=True))
            for site in list(runner.sites):
                await site.stop()
            await server.close_streams(_CLOSE_TIMEOUT_S)
        finally:
            await runner.cleanup()

    def _server_info(self, port: int) -> ServerInfo:
        keeper = self._keeper or Identity(0, 0, "")
        # With port 0, pass the chosen port to a restart, so that clients find the server again.
        options = self._options.options if self._settings.port else {**self._options.options, "port": port}
        return ServerInfo(
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

    # --- Shutdown

    def _watch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in _SHUTDOWN_SIGNALS:
            # A signal that was ignored at the start (nohup) stays ignored.
            if signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, self._shut_down, signal.Signals(number).name)
        if self._lifeline_fd is not None:
            loop.add_reader(self._lifeline_fd, self._on_keeper_exit)

    def _on_keeper_exit(self) -> None:
        assert self._lifeline_fd is not None
        asyncio.get_running_loop().remove_reader(self._lifeline_fd)
        self._shut_down("the keeper has exited")

    def _shut_down(self, reason: str) -> None:
        self._stop_reason = self._stop_reason or reason
        self._stop.set()


def freeze_memory() -> None:
    """Exclude all current objects from garbage collection.

    They live until the server exits, and looking at them in every collection would delay requests.
    """
    gc.collect()
    gc.freeze()


def _agent_environment(settings: ServerSettings) -> EnvironmentSource:
    return FixedEnvironment(os.environ, "server") if settings.environment == "server" else LoginShell(os.environ)


def _allowed_hosts(settings: ServerSettings) -> frozenset[str]:
    # The address we listen on is a safe name: a foreign page can't have it as its origin.
    own = () if settings.is_everywhere else (settings.host,)
    return frozenset((*settings.allow_host, *own))


def _address(settings: ServerSettings, port: int) -> str:
    scheme = "https" if settings.is_secure else "http"
    host = "127.0.0.1" if settings.is_everywhere else settings.host
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _tls_context(settings: ServerSettings) -> ssl.SSLContext | None:
    if not settings.is_secure:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # Give an empty password: OpenSSL would otherwise ask for one on the terminal.
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password="")
    except (OSError, ValueError) as error:
        raise BadCertificate(settings, error) from None
    return context


async def _listen(runner: web.AppRunner, settings: ServerSettings, tls: ssl.SSLContext | None) -> int:
    """Start to listen, and return the port."""
    try:
        await web.TCPSite(runner, settings.host, settings.port, ssl_context=tls).start()
    except OSError as error:
        raise CannotListen(settings, error) from None
    return int(runner.addresses[0][1])


# --- The process


def main(arguments: Sequence[str]) -> int:
    """Run a server and return its exit code."""
    options = msgspec.json.decode(arguments[0] if arguments else "{}", type=StartOptions)
    lifeline_fd = take_lifeline()
    keeper = _find_keeper(lifeline_fd)
    # If a shell of an agent started us, don't let the deck kill us together with that agent.
    os.environ.pop(NONCE_VARIABLE, None)
    starter = Starter(options)
    files = home()
    files.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    logs = log_setup.configure(files.folder, to_terminal=not options.is_background)
    try:
        config = read_config(files.config, os.environ, options.options, agents=registry.known_agents)
        for warning in config.warnings:
            log.warning("%s", warning)
        uvloop.run(ServerProcess(files, config, options, lifeline_fd, keeper).run(starter))
    except QuarterdeckError as error:
        _show_error(error, options)
        starter.report(error.as_json())
        return _NOT_ALLOWED_NOW if error.code == "home_in_use" else 1
    except Exception as error:
        log.exception("the server crashed")
        starter.report(_crash_report(error, files))
        return 1
    finally:
        logs.close()
    return 0


def _find_keeper(lifeline_fd: int | None) -> Identity | None:
    """Return our parent if it is the keeper."""
    if lifeline_fd is None:
        return None
    parent = os.getppid()
    started_at = start_time(parent)
    # Check the lifeline after asking for the parent: if the keeper has exited, our parent is the process that adopted us.
    has_exited = bool(select.select([lifeline_fd], [], [], 0)[0])
    return None if has_exited or started_at is None else Identity(parent, started_at, "")


def _show_error(error: QuarterdeckError, options: StartOptions) -> None:
    """Log the error in the background, where the starting process shows it. On a terminal, print it."""
    if options.is_background:
        log.error("%s", error.message, extra={"code": error.code, "hint": error.hint})
    else:
        sys.stderr.write(f"error: {error.message}\n{error.hint}\n")


def _crash_report(error: Exception, files: Home) -> dict[str, Any]:
    message = f"the server crashed: {type(error).__name__}: {error}"
    return {"error": {"code": "internal", "message": message, "hint": f"Report the bug, with {files.log}."}}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
