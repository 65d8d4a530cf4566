"""The API for programs without an event loop: each method blocks until its answer is there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterator
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from quarterdeck.client.api import AsyncClient, RemoteSession
from quarterdeck.client.blocking_transport import BlockingTransport, iterate_blocking, run_blocking
from quarterdeck.client.sse import EventBlock
from quarterdeck.client.transport import TIMEOUT_S
from quarterdeck.events import Event

P = ParamSpec("P")
T = TypeVar("T")


def _client_method(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Client, P], T]:
    """Return the blocking form of a method, with its signature and docstring."""

    @wraps(method)
    def call(self: Client, *args: P.args, **kwargs: P.kwargs) -> T:
        return run_blocking(method(self.async_client, *args, **kwargs))

    return call


def _session_factory(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, RemoteSession]],
) -> Callable[Concatenate[Client, P], Session]:
    """Return the blocking form of a method that returns a session."""

    @wraps(method)
    def call(self: Client, *args: P.args, **kwargs: P.kwargs) -> Session:
        return Session(run_blocking(method(self.async_client, *args, **kwargs)))

    return call


def _session_method(
    method: Callable[Concatenate[RemoteSession, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Session, P], T]:
    """Return the blocking form of a method, with its signature and docstring."""

    @wraps(method)
    def call(self: Session, *args: P.args, **kwargs: P.kwargs) -> T:
        return run_blocking(method(self.remote, *args, **kwargs))

    return call


class Session:
    """One session on a server. See `RemoteSession` for what each method does and raises."""

    def __init__(self, remote: RemoteSession) -> None:
        #: The same session as coroutines. They run only under `run_blocking`.
        self.remote = remote
        self.id = remote.id

    show = _session_method(RemoteSession.show)
    queue = _session_method(RemoteSession.queue)
    timeline = _session_method(RemoteSession.timeline)
    why = _session_method(RemoteSession.why)
    changes = _session_method(RemoteSession.changes)
    events = _session_method(RemoteSession.events)

    prompt = _session_method(RemoteSession.prompt)
    steer = _session_method(RemoteSession.steer)
    edit_queued = _session_method(RemoteSession.edit_queued)
    drop_queued = _session_method(RemoteSession.drop_queued)
    resend = _session_method(RemoteSession.resend)

    abort = _session_method(RemoteSession.abort)
    approve = _session_method(RemoteSession.approve)
    reject = _session_method(RemoteSession.reject)
    respond = _session_method(RemoteSession.respond)
    retry = _session_method(RemoteSession.retry)
    resume = _session_method(RemoteSession.resume)
    compact = _session_method(RemoteSession.compact)
    bash = _session_method(RemoteSession.bash)
    switch_model = _session_method(RemoteSession.switch_model)
    switch_mode = _session_method(RemoteSession.switch_mode)

    rename = _session_method(RemoteSession.rename)
    mark = _session_method(RemoteSession.mark)
    cancel = _session_method(RemoteSession.cancel)
    archive = _session_method(RemoteSession.archive)
    delete = _session_method(RemoteSession.delete)

    def subscribe(self, since: int = 0, types: Collection[str] | None = None) -> Iterator[Event]:
        """Yield all events after an index, then new ones as they come. Reconnects after a cut."""
        return iterate_blocking(self.remote.subscribe(since, types))

    def blocks(self, since: int = 0) -> Iterator[EventBlock]:
        """Yield the raw blocks of one connection, without reconnecting. Raises `StreamCut` if it fails."""
        return iterate_blocking(self.remote.blocks(since))


class Client:
    """The API of one server: `with Client(url, token) as deck`. Threads may share it.

    `tls_cert` is the file of the one certificate to trust; without it, the system's certificates are used.
    """

    def __init__(self, url: str, token: str, *, timeout_s: float = TIMEOUT_S, tls_cert: str = "") -> None:
        self.url = url.rstrip("/")
        transport = BlockingTransport(self.url, token, timeout_s, tls_cert)
        #: The same API as coroutines. They run only under `run_blocking`.
        self.async_client = AsyncClient(self.url, token, transport=transport)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    close = _client_method(AsyncClient.close)
    list = _client_method(AsyncClient.list)
    attention = _client_method(AsyncClient.attention)
    agents = _client_method(AsyncClient.agents)
    environment = _client_method(AsyncClient.environment)
    check_health = _client_method(AsyncClient.check_health)
    create_login_code = _client_method(AsyncClient.create_login_code)
    create = _session_factory(AsyncClient.create)

    def session(self, session_id: str) -> Session:
        """Return a session by its id. The first request shows whether it exists."""
        return Session(self.async_client.session(session_id))

    def subscribe(self, since: str = "", types: Collection[str] | None = None) -> Iterator[Event]:
        """Yield all events of all sessions after a cursor, then new ones as they come."""
        return iterate_blocking(self.async_client.subscribe(since, types))
