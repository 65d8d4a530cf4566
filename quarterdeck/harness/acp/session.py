"""Hold the state that all parts of one ACP translator share.

One translator serves one session: the first that is opened, loaded, resumed or forked on the connection. Messages about
other sessions are known and change nothing.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from quarterdeck.events import Image
from quarterdeck.harness.acp.content import History
from quarterdeck.harness.acp.profile import Profile
from quarterdeck.harness.base import BaseTranslator, Object
from quarterdeck.harness.tracker import AgentPath, EventTracker

#: Id of a JSON-RPC message.
Id: TypeAlias = int | float | str | None
TextKind: TypeAlias = Literal["text", "thinking"]

#: Requests that open our session. All but the first bring its history back.
OPENING_METHODS = ("session/new", "session/load", "session/resume", "session/fork")


class Prompt(Struct):
    """A prompt that the agent hasn't answered yet."""

    #: Id of the request that sent it; None if the request wasn't seen.
    request_id: Id = None
    message_id: str = ""
    text: str = ""
    images: tuple[Image, ...] = ()
    #: We asked the agent to stop it.
    cancelled: bool = False
    #: The agent is working on it. A prompt that was sent during another one waits first.
    started: bool = False


class SentRequest(Struct, frozen=True):
    """A request of ours that the agent hasn't answered yet."""

    request_id: Id
    method: str
    params: Object
    #: The request is about the session that this translator serves.
    is_ours: bool = True


# ----------------------------------------------------------------------------------------------------------------------
# Texts
# ----------------------------------------------------------------------------------------------------------------------


class _TextRun(Struct, frozen=True):
    """Consecutive chunks of one kind and one native message id."""

    kind: TextKind
    native_id: str
    message_id: str
    block: int
    in_turn: bool


class TextStream:
    """Assembles chunks into messages.

    Consecutive chunks of one kind are one message, because some agents give their messages no ids.
    """

    def __init__(self, tracker: EventTracker) -> None:
        self.tracker = tracker
        #: The agent wrote visible text in this turn.
        self.has_spoken = False
        #: A tool was called since the last text.
        self.called_since_text = False
        #: Native id of the last text in this turn.
        self.last_native_id = ""
        self._run: _TextRun | None = None
        self._blocks: dict[str, int] = {}

    def continues(self, kind: TextKind, native_id: str) -> bool:
        """Return whether a chunk belongs to the run that is open."""
        run = self._run
        in_turn = bool(self.tracker.turn_id)
        return run is not None and run.kind == kind and run.native_id == native_id and run.in_turn == in_turn

    def begin(self, kind: TextKind, native_id: str, message_id: str, in_turn: bool) -> None:
        """Start a run. Several runs of one message are its blocks."""
        if kind == "text":
            self.last_native_id, self.called_since_text = native_id, False
        block = self._blocks.get(message_id, 0)
        self._blocks[message_id] = block + 1
        self._run = _TextRun(kind, native_id, message_id, block, in_turn)

    def append(self, text: str) -> None:
        """Add a chunk to the run that is open."""
        run = self._run
        if run is None or not text:
            return
        if not run.in_turn:
            self.tracker.add_text_outside_turn(run.message_id, run.block, text)
        elif run.kind == "thinking":
            self.tracker.add_thinking(run.message_id, run.block, text)
        else:
            self.tracker.add_text(run.message_id, run.block, text)
            self.has_spoken = self.has_spoken or not text.isspace()

    def finish(self) -> None:
        """Complete the open run because something else follows it."""
        run, self._run = self._run, None
        if run is not None:
            self.tracker.finish_message(run.message_id)

    def start_turn(self) -> None:
        self.finish()
        self.has_spoken = self.called_since_text = False
        self.last_native_id = ""
        self._blocks.clear()

    def discard(self) -> None:
        """Forget the open run without completing it: the process exited, and the tracker closes its texts."""
        self._run = None


# ----------------------------------------------------------------------------------------------------------------------
# The session
# ----------------------------------------------------------------------------------------------------------------------


class AcpSession:
    """State of one session: its id, its prompts, and what was sent and not answered."""

    def __init__(self, translator: BaseTranslator, profile: Profile) -> None:
        self._translator = translator
        self.tracker = translator.tracker
        self.profile = profile
        self.texts = TextStream(self.tracker)
        #: The agent's id for the session that this translator serves; '' until it is known.
        self.session_id = ""
        self.model = ""
        #: Prompts that aren't answered yet, oldest first.
        self.prompts: list[Prompt] = []
        #: Requests of ours that aren't answered yet.
        self.sent: dict[Id, SentRequest] = {}
        #: Id of the request that opens our session, until it is answered.
        self.opening_id: Id = None
        #: Sessions that were opened on this connection and aren't ours.
        self.other_sessions: set[str] = set()
        #: The replay of a loaded session, while it lasts.
        self.history: History | None = None
        #: A session was loaded and no prompt was sent since: texts outside a turn are still its replay.
        self.is_loaded = False
        #: The open turn was opened for a question that the agent asked outside of a prompt.
        self.is_side_turn = False
        #: What we send is recorded. Without it, the agent's messages alone must show turns and sessions.
        self.stdin_seen = False
        self.process_exited = False
        self._last_id = 0

    def new_id(self, prefix: str) -> str:
        """Return an id for something that the agent gave none. No earlier process of this session used it."""
        self._last_id += 1
        return f"{prefix}-{self._last_id}"

    def reserve_ids(self, last_id: int) -> None:
        """Don't use ids up to this number: an earlier translator of this session may have used them."""
        self._last_id = last_id

    def set_timer(self, name: str, seconds: float) -> None:
        self._translator.set_timer(name, seconds)

    def clear_timer(self, name: str) -> None:
        self._translator.clear_timer(name)

    def clear_connection(self) -> None:
        """Forget the connection: the process is new or gone, so nothing that was asked will be answered."""
        self.session_id = ""
        self.opening_id = None
        self.history = None
        self.is_loaded = self.is_side_turn = False
        self.prompts.clear()
        self.sent.clear()
        self.other_sessions.clear()
        self.texts.discard()

    # --- prompts

    def waiting_prompt(self) -> Prompt | None:
        """Return the oldest prompt that the agent hasn't started."""
        return next((prompt for prompt in self.prompts if not prompt.started), None)

    @property
    def is_cancelled(self) -> bool:
        """Whether we asked the agent to stop what it does now."""
        return any(prompt.cancelled for prompt in self.prompts)

    # --- whose session

    def claim(self, session_id: object) -> bool:
        """Return whether a session id is ours. If we have none yet, the first id that the agent mentions may become ours."""
        if session_id == self.session_id:
            return bool(session_id)
        # A fork has no id yet while its history is replayed, and if what we send isn't recorded, the first session that
        # the agent mentions is ours.
        may_adopt = self.history is not None or not self.stdin_seen
        if not self.session_id and isinstance(session_id, str) and may_adopt:
            self.session_id = session_id
            return True
        return False

    def agent_path(self, session_id: str) -> AgentPath | None:
        """Return the path of the agent that asks: () for ours, one step for a sub-agent, None for another session.

        A session that no request opened belongs to a sub-agent of ours.
        """
        if self.claim(session_id):
            return ()
        is_unopened = session_id and session_id not in self.other_sessions and self.session_id
        is_opening = any(request.method in OPENING_METHODS for request in self.sent.values())
        return (session_id,) if is_unopened and self.opening_id is None and not is_opening else None
