"""Track the threads of one app-server connection, and where their turns begin and end.

Every initialized connection receives notifications about every thread of the server, so most of them may be about other
threads. Ours is the one that our own thread/start, thread/resume or thread/fork opened. A thread is a sub-agent if a
thread of ours says so, which may come after the sub-agent's first status. All other threads (one that makes up a title,
another client's) never change anything.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from quarterdeck import events as ev
from quarterdeck.harness.base import Object, int_of, list_of, object_of, text_of
from quarterdeck.harness.codex import names
from quarterdeck.harness.codex.session import NO_TOKENS, CodexSession, Counts, counts_added, counts_in, remember
from quarterdeck.harness.tracker import AgentPath

#: A status is accompanied by a message about the turn, or the request, that it is about. If that doesn't arrive within
#: this time, the status alone counts.
STATUS_ALONE_S = 0.5
APPROVAL_FLAG = "waitingOnApproval"
QUESTION_FLAG = "waitingOnUserInput"
_FLAGS = (APPROVAL_FLAG, QUESTION_FLAG)
#: Sources of threads that Codex starts for itself.
_INTERNAL_SOURCES = frozenset({"thread_title"})


class Thread(Struct):
    """One thread that is ours or a sub-agent's."""

    thread_id: str
    path: AgentPath
    title: str = ""
    #: The turn that runs, or is about to.
    turn_id: str = ""
    is_working: bool = False
    #: The status said that the system failed.
    has_system_error: bool = False
    #: Id of the message that is being streamed.
    message_id: str = ""
    #: A user's message was read in this turn.
    has_prompt: bool = False
    #: The model will be asked again, or was without a notification.
    request_due: bool = False
    #: A call of the last response did something, so the turn continues.
    has_run_calls: bool = False
    #: The turn is being stopped.
    is_stopping: bool = False
    error: Object = field(default_factory=dict[str, object])
    flags: frozenset[str] = frozenset()
    #: Calls that wait for an approval before they run.
    held_calls: list[str] = field(default_factory=list[str])
    #: Commands with a terminal. They survive an interrupt of the turn.
    terminals: set[str] = field(default_factory=set[str])
    #: Shell commands that the user typed.
    user_shells: set[str] = field(default_factory=set[str])
    #: Running total of tokens; None if it began before we connected.
    total: Counts | None = NO_TOKENS

    @property
    def waits_for_approval(self) -> bool:
        return APPROVAL_FLAG in self.flags

    def clear_turn(self) -> None:
        """Forget the turn that ended."""
        self.is_working = self.has_system_error = False
        self.turn_id = self.message_id = ""
        self.flags = frozenset()
        self.held_calls.clear()


class Threads:
    """The known threads by id, and their turns."""

    def __init__(self, session: CodexSession) -> None:
        self.session = session
        self.tracker = session.tracker
        self.by_id: dict[str, Thread] = {}
        #: Number of our unanswered requests that open a thread. Until they are answered no other thread becomes ours.
        self.opening = 0
        #: Texts for the running turn that the agent hasn't read yet, by message id.
        self.steers: dict[str, str] = {}
        #: Threads of unknown owner, and whether they work.
        self._unclaimed: dict[str, bool] = {}
        #: Threads that certainly aren't ours: one that makes up a title, another thread's sub-agent.
        self._foreign: dict[str, None] = {}
        self._billing: Literal["plan", "unknown"] = "unknown"
        self._resets_at: int | None = None
        self._context: tuple[int, int] = (0, 0)

    def reset(self) -> None:
        """Forget all threads: another process serves."""
        self.by_id.clear()
        self._unclaimed.clear()
        self._foreign.clear()
        self.steers.clear()
        self.opening = 0

    def exit(self) -> None:
        """Forget all turns: the process exited. If it turns out to be alive, its turns begin anew."""
        for thread in self.by_id.values():
            thread.clear_turn()

    # --- whose thread

    def find(self, params: Object) -> Thread | None:
        """Return the thread that a message is about, if it is ours or a sub-agent's."""
        thread_id = params.get("threadId") or params.get("conversationId")
        if not isinstance(thread_id, str):
            return None
        return self.by_id.get(thread_id) or self._restore(thread_id)

    def _restore(self, thread_id: str) -> Thread | None:
        """Return a thread that is known from before a restart."""
        path = self.session.agent_path(thread_id) if thread_id else None
        if path is None:
            return None
        is_working = thread_id in self.tracker.background if path else bool(self.tracker.turn_id)
        thread = self.by_id[thread_id] = Thread(thread_id, path, total=None, is_working=is_working)
        return thread

    def find_or_adopt(self, params: Object) -> Thread | None:
        """Return the thread of a message that only subscribers receive. If we have no thread yet, it becomes ours."""
        thread = self.find(params)
        if thread is not None or self.session.thread_id or self.opening:
            return thread
        thread_id = text_of(params, "threadId", "conversationId")
        if not thread_id or thread_id in self._foreign:
            return None
        return self.open_own({"id": thread_id}, is_new=False)

    def own(self) -> Thread | None:
        """Return our thread."""
        return self.by_id.get(self.session.thread_id)

    def open_own(self, fields: Object, model: str = "", is_new: bool = True) -> Thread | None:
        """Make the thread with these fields ours."""
        thread_id = text_of(fields, "id")
        if not thread_id:
            return None
        session = self.session
        if thread_id != session.thread_id:
            self.tracker.abort_turn("another thread")
            self.by_id.pop(session.thread_id, None)
        session.bind(thread_id, model or text_of(fields, "model"), text_of(fields, "cliVersion"), ("steer",))
        thread = self.by_id.get(thread_id)
        if thread is None:
            thread = self.by_id[thread_id] = Thread(thread_id, (), total=NO_TOKENS if is_new else None)
        self.record_title(text_of(fields, "name"))
        if self._unclaimed.pop(thread_id, False):
            self.start_turn(thread)
        return thread

    def read_started(self, fields: Object) -> None:
        """Read that any thread of the server was opened."""
        thread_id, parent_id = text_of(fields, "id"), text_of(fields, "parentThreadId")
        parent = self.by_id.get(parent_id)
        if parent is not None:
            self.add_child(thread_id, parent, text_of(fields, "agentNickname", "name", "preview"))
        elif thread_id and thread_id not in self.by_id:
            is_internal = fields.get("ephemeral") is True or text_of(fields, "threadSource") in _INTERNAL_SOURCES
            if parent_id or is_internal:
                remember(self._foreign, thread_id, None)
            elif not self.session.thread_id and not self.opening:
                self.open_own(fields)

    def add_child(self, thread_id: str, parent: Thread, title: str) -> None:
        """Make a thread a sub-agent of another one."""
        if not thread_id or thread_id in self.by_id:
            return
        path = (*parent.path, thread_id)
        thread = self.by_id[thread_id] = Thread(thread_id, path, title)
        self.session.child_paths[thread_id] = path
        if self._unclaimed.pop(thread_id, False):
            self.start_turn(thread)

    def record_title(self, title: str) -> None:
        """Record the title of our thread."""
        if title:
            self.tracker.emit(ev.TitleGenerated(title=title))

    # --- turns

    def start_turn(self, thread: Thread, turn_id: str = "") -> None:
        """Record that a turn of this thread runs. Several messages may say so."""
        if not thread.path:
            self.session.clear_timers("settled", "interrupted")
        thread.turn_id = turn_id or thread.turn_id
        if thread.is_working:
            return
        thread.is_working = True
        thread.has_system_error = thread.has_prompt = thread.is_stopping = False
        thread.error = {}
        if thread.path:
            self.tracker.emit(ev.SubagentStart(child_sid=thread.thread_id, description=thread.title))
            self.tracker.start_background("subagent", thread.thread_id, thread.title)
            return
        self.tracker.start_turn(thread.turn_id)
        self.start_request(thread)

    def start_request(self, thread: Thread) -> None:
        """Record a request to the model, unless an open gate of ours shows that there is none."""
        thread.request_due = thread.has_run_calls = False
        if not self.tracker.is_waiting_for_person():
            self.tracker.start_request(self.session.model)

    def end_turn(self, thread: Thread, turn: Object) -> None:
        """End a turn with the status that Codex reports."""
        status = text_of(turn, "status")
        if thread.path:
            self.end_child(thread, status == "completed")
            return
        self.session.clear_timers("settled", "flagged", "interrupted")
        if status == "failed":
            self._fail_turn(object_of(turn, "error") or thread.error)
        elif status == "interrupted":
            self._interrupt_turn(thread)
        else:
            self.tracker.end_turn()
        thread.clear_turn()

    def end_child(self, thread: Thread, ok: bool) -> None:
        """End the task of a sub-agent. It may get another one later."""
        if thread.is_working:
            self.tracker.close_subagent(thread.path)
            self.tracker.end_background(thread.thread_id, ok, thread.title)
            self.tracker.emit(ev.SubagentEnd(child_sid=thread.thread_id, ok=ok))
        thread.clear_turn()

    def _interrupt_turn(self, thread: Thread) -> None:
        """Abort the turn. Commands with a terminal continue; everything else that ran is gone."""
        for message_id, text in self.steers.items():
            self.tracker.emit(ev.PromptDropped(text=text, message_id=message_id))
        self.steers.clear()
        self.tracker.abort_turn("interrupted", keep=thread.terminals)

    def _fail_turn(self, error: Object) -> None:
        kind, message = names.error_kind(error), names.error_text(error)
        if names.error_name(error) == names.CONTEXT_FULL:
            self.tracker.emit(ev.ContextOverflow(reason=message, turn_id=self.tracker.turn_id or None))
        self.tracker.fail_turn(kind, message, self._resets_at if kind == "usage_limit" else None)

    # --- status, which also connections receive that aren't subscribed to the thread

    def read_status(self, params: Object) -> None:
        status = object_of(params, "status")
        kind = text_of(status, "type")
        thread = self.find(params)
        if thread is None:
            thread_id = text_of(params, "threadId")
            if thread_id:
                remember(self._unclaimed, thread_id, kind == "active")
        elif kind == "active":
            self.read_active(thread, status)
        elif kind in ("idle", "systemError"):
            thread.flags = frozenset()
            if thread.is_working and not thread.path:
                thread.has_system_error = kind == "systemError"
                self.session.set_timer("settled", STATUS_ALONE_S)
        elif kind == "notLoaded" and not thread.path:
            self.tracker.end_session("not loaded")
            thread.clear_turn()

    def read_active(self, thread: Thread, status: Object) -> None:
        """Read that a thread works, or waits for the user."""
        flags = list_of(status, "activeFlags")
        thread.flags = frozenset(flag for flag in _FLAGS if flag in flags)
        self.start_turn(thread)
        if thread.path:
            return
        if thread.flags:
            self.session.set_timer("flagged", STATUS_ALONE_S)
            return
        self.session.clear_timers("flagged")
        self.tracker.resolve_approval(f"{APPROVAL_FLAG}:{thread.thread_id}", "answered_elsewhere")
        self.tracker.answer_question(f"{QUESTION_FLAG}:{thread.thread_id}", status="answered_elsewhere")

    def on_settled(self) -> None:
        """End the turn because the status said that it is over, and no message about the turn followed."""
        thread = self.own()
        if thread is not None and thread.is_working:
            self.end_turn(thread, {"status": "failed" if thread.has_system_error else "completed"})

    # --- tokens

    def read_token_usage(self, params: Object) -> None:
        """Read token counts, which are totals of the thread: their growth is the usage of the last message.

        If the total began before we connected, the reported last message counts instead.
        """
        thread = self.find(params)
        if thread is None:
            return
        usage = object_of(params, "tokenUsage")
        total, last = counts_in(object_of(usage, "total")), object_of(usage, "last")
        added = None if thread.total is None else counts_added(total, thread.total)
        thread.total = total
        used = counts_in(last) if added is None else added
        self.session.record_usage(used, thread.path, self._billing)
        if not thread.path:
            if any(used):
                self._end_tools(thread)
            self._record_context(int_of(last, "totalTokens"), int_of(usage, "modelContextWindow"))

    def _end_tools(self, thread: Thread) -> None:
        """Note that the tools of the response are done, because only then are its tokens reported.

        A command that still runs was left running in the background, and if there were tools the model is asked next.
        """
        if thread.is_stopping:
            return
        for call_id in thread.terminals & (self.tracker.calls.keys() - self.tracker.background.keys()):
            thread.has_run_calls = True
            self.tracker.move_call_to_background(call_id)
        if thread.has_run_calls:
            self.start_request(thread)

    def _record_context(self, tokens: int, limit: int) -> None:
        if limit > 0 and (tokens, limit) != self._context:
            self._context = (tokens, limit)
            percent = round(100 * tokens / limit, 1)
            self.tracker.emit(ev.ContextUsage(tokens=tokens, limit=limit, percent=percent))

    def read_rate_limits(self, params: Object) -> None:
        """Remember when an exhausted limit resets, and whether a plan pays."""
        limits = object_of(params, "rateLimits")
        if text_of(limits, "planType"):
            self._billing = "plan"
        windows = [object_of(limits, name) for name in ("primary", "secondary")]
        resets = [int_of(window, "resetsAt") for window in windows if int_of(window, "usedPercent") >= 100]
        self._resets_at = max(resets) * 1000 if resets else None
