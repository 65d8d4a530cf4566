"""One JSON-RPC connection: what we sent and the agent asked, each in a table of its own, because ids of the two overlap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias, cast

from msgspec import Struct

from quarterdeck.events import Json, Option
from quarterdeck.harness.acp.history import REPLAYED, History
from quarterdeck.harness.acp.outcome import error_text
from quarterdeck.harness.acp.profile import Profile
from quarterdeck.harness.base import BaseTranslator, Object, is_object, object_of, text_of
from quarterdeck.harness.tracker import AgentPath

Id: TypeAlias = int | float | str | None

#: A replay that the agent does not end by a sign of its own has ended when nothing came for this long.
QUIET_S = 0.25


class Sent(Struct, frozen=True):
    """A request of ours that is not answered yet. `mine`: it is about the session that this translator serves."""

    key: Id
    method: str
    params: Object
    mine: bool = True


class Asked(Struct, frozen=True):
    """A request of the agent that we have not answered yet."""

    kind: str
    ref: str = ""
    call_id: str = ""
    options: tuple[Option, ...] = ()
    path: AgentPath = ()
    terminal: str = ""


#: What else an agent may ask of its client; it says nothing about the state.
_OTHER_REQUESTS = frozenset(
    {
        "fs/read_text_file",
        "fs/write_text_file",
        "terminal/create",
        "terminal/wait_for_exit",
        "terminal/kill",
        "terminal/release",
        "mcp/connect",
        "mcp/message",
        "mcp/disconnect",
    }
)


class Connection(BaseTranslator):
    """Reads both directions and finds the reader of each message. The tables are filled by the class that has them all.

    `sends`: what we send, by method. `answers`: what the agent answers to it. `requests`: what the agent asks or tells.
    `replies`: what we answer to that. `updates`: the kinds of session/update.
    """

    sends: ClassVar[dict[str, Callable[[Any, Object, Id], bool]]]
    answers: ClassVar[dict[str, Callable[[Any, Sent, Object, Object | None], None]]]
    requests: ClassVar[dict[str, Callable[[Any, Object, Id], bool]]]
    replies: ClassVar[dict[str, Callable[[Any, Asked, Object, Object | None], None]]]
    updates: ClassVar[dict[str, Callable[[Any, Object], None]]]

    def __init__(self, profile: Profile) -> None:
        BaseTranslator.__init__(self)
        self.profile = profile
        self.session = ""
        self.history: History | None = None
        self.stdin_seen = False
        self.sent: dict[Id, Sent] = {}
        self.asked: dict[Id, Asked] = {}

    # --- what we send

    def read_stdin(self, data: Json) -> bool:
        """What we sent, we know."""
        self.stdin_seen = True
        if is_object(data):
            self._send(data)
        else:
            for found in _batch(data):
                self._send(found)
        return True

    def _send(self, found: Object) -> None:
        method, key = found.get("method"), key_of(found)
        if not isinstance(method, str):
            asked = self.asked.pop(key, None)
            if asked is not None and asked.kind in self.replies:
                self.replies[asked.kind](self, asked, object_of(found, "result"), _error_of(found))
            return
        send, params = self.sends.get(method), object_of(found, "params")
        mine = send(self, params, key) if send is not None else params.get("sessionId") in (None, self.session)
        if key is not None:
            self.sent[key] = Sent(key, method, params, mine)

    # --- what the agent sends

    def read_stdout(self, data: Json) -> bool:
        if is_object(data):
            return self._read(data)
        if isinstance(data, list):
            known = [self._read(one) for one in _batch(cast(Json, data))]
            return all(known)
        # a line that is no JSON was meant for people
        return isinstance(data, str)

    def _read(self, found: Object) -> bool:
        method = found.get("method")
        if method == "session/update":
            params: Any = found.get("params")
            return is_object(params) and self.read_update(params)
        if isinstance(method, str):
            reader = self.requests.get(method)
            if reader is not None:
                return reader(self, object_of(found, "params"), key_of(found))
            # underscores begin extensions of one agent, dollars what an implementation may ignore
            return method in _OTHER_REQUESTS or method.startswith(("_", "$/"))
        if "result" in found or "error" in found:
            self._answer(key_of(found), object_of(found, "result"), _error_of(found) if "error" in found else None)
            return True
        return "raw" in found

    def _answer(self, key: Id, result: Object, error: Object | None) -> None:
        sent = self.sent.pop(key, None) if key is not None else None
        if sent is None:
            self.stray(result, error)
            return
        reader = self.answers.get(sent.method)
        if reader is not None:
            reader(self, sent, result, error)
        elif error is not None and sent.mine and sent.method != "session/list":
            self.refused(sent, error)

    def stray(self, result: Object, error: Object | None) -> None:
        """An answer to nothing that we know of. An error without an id is told, and is not the end of anything."""
        if error is not None:
            self.tracker.add_notice(error_text(error), "error", "agent")

    def refused(self, sent: Sent, error: Object) -> None:
        """A command of ours was refused."""
        raise NotImplementedError

    def read_update(self, params: Object) -> bool:
        update: Any = params.get("update")
        kind = update.get("sessionUpdate") if is_object(update) else None
        if not isinstance(kind, str):
            return False
        reader = self.updates.get(kind)
        if reader is None:
            return kind.startswith("_")
        session = params.get("sessionId")
        if (not session or session != self.session) and not self.is_mine(params):
            return True
        if self.history is None or kind not in REPLAYED or not self._replayed(self.history, kind, update):
            reader(self, update)
        return True

    def is_mine(self, params: Object) -> bool:
        """Whether a message is about the session that this translator serves."""
        return params.get("sessionId") == self.session

    def _replayed(self, history: History, kind: str, update: Object) -> bool:
        """Whether this is history. After the answer a call that is still open can only be new."""
        is_new = history.answered and kind == "tool_call" and text_of(update, "status") in ("pending", "in_progress")
        if is_new and self.profile.replay == "after":
            self.finish_loading()
            return False
        history.add(kind, update)
        if history.answered:
            self.set_timer("replay", QUIET_S)
        return True

    def finish_loading(self) -> None:
        """The replay is through."""
        raise NotImplementedError

    def forget_connection(self) -> None:
        """The process is another one, or gone: nothing that was asked will be answered."""
        self.session = ""
        self.history = None
        self.sent.clear()
        self.asked.clear()


def key_of(found: Object) -> Id:
    """The id of a message; None when it has none that could name anything."""
    key: Any = found.get("id")
    if type(key) is int or isinstance(key, str):  # a flag is a number in Python, and no id
        return key
    return key if isinstance(key, float) else None


def _error_of(found: Object) -> Object | None:
    if "error" not in found or found["error"] is None:
        return None
    return object_of(found, "error")


def _batch(data: Json) -> list[Object]:
    """The messages of a batch."""
    return [one for one in cast("list[Any]", data) if is_object(one)] if isinstance(data, list) else []
