"""The threads of one app-server connection: ours, its sub-agents, and strangers; and where their turns begin and end.

Every initialized connection hears of every thread of the server, so most of what it hears may be about others. Ours is
the one that our own thread/start, thread/resume or thread/fork opened. A thread is a sub-agent when a thread of ours says
so; that may come after the sub-agent's first status. All others (the one that makes up a title, another client's) never
move anything.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from quarterdeck import events as ev
from quarterdeck.harness.base import Object, int_of, list_of, object_of, text_of
from quarterdeck.harness.codex import names
from quarterdeck.harness.codex.session import NOTHING, Counts, Desk, counts_in, difference, remember
from quarterdeck.harness.tracker import AgentPath

#: A status comes with a word on the turn, or the request, that it is about. When that stays away it counts alone.
ALONE_S = 0.5
APPROVAL = "waitingOnApproval"
QUESTION = "waitingOnUserInput"
_FLAGS = (APPROVAL, QUESTION)
#: Threads that Codex starts beside the user's.
_ASIDE = frozenset({"thread_title"})


class Thread(Struct):
    """One thread that is ours or a sub-agent's."""

    id: str
    path: AgentPath
    title: str = ""
    #: the turn that runs, or is about to
    turn: str = ""
    works: bool = False
    broken: bool = False
    #: the message that is being streamed
    message: str = ""
    #: whether a user's message was read in this turn
    prompted: bool = False
    #: whether the model will be asked again, or was, without our being told
    request_due: bool = False
    #: whether a call of the last response did something, so that the turn goes on
    ran: bool = False
    #: whether the turn is being stopped
    stopping: bool = False
    error: Object = field(default_factory=dict[str, object])
    flags: frozenset[str] = frozenset()
    #: calls that wait for an approval before they run
    held: list[str] = field(default_factory=list[str])
    #: commands that live on when the turn is interrupted
    terminals: set[str] = field(default_factory=set[str])
    #: commands that the user typed
    shells: set[str] = field(default_factory=set[str])
    #: the running sum of tokens; None when it began before we looked
    total: Counts | None = NOTHING

    @property
    def waits_for_approval(self) -> bool:
        return APPROVAL in self.flags


class Threads:
    """The registry, and the turns."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.tracker = desk.tracker
        self.by_id: dict[str, Thread] = {}
        #: threads that nobody told us about, and whether they work
        self._strangers: dict[str, bool] = {}
        #: threads that are surely not ours: one that makes up a title, somebody's sub-agent
        self._others: dict[str, None] = {}
        #: requests of ours that will open a thread: until they are answered no other one is taken for ours
        self.opening = 0
        self.billing: Literal["plan", "unknown"] = "unknown"
        self._resets_at: int | None = None
        self._context: tuple[int, int] = (0, 0)
        #: texts for a running turn that it has not read yet
        self.steers: dict[str, str] = {}

    def reset(self) -> None:
        """Another process, another registry."""
        self.by_id.clear()
        self._strangers.clear()
        self._others.clear()
        self.steers.clear()
        self.opening = 0

    def exited(self) -> None:
        """The process is gone; should it live after all, its turns begin anew."""
        for thread in self.by_id.values():
            self._forget(thread)

    # --- whose thread

    def of(self, params: Object) -> Thread | None:
        """The thread that a message is about, if it is ours or a sub-agent's."""
        thread_id = params.get("threadId") or params.get("conversationId")
        if not isinstance(thread_id, str):
            return None
        return self.by_id.get(thread_id) or self._known_before(thread_id)

    def _known_before(self, thread_id: str) -> Thread | None:
        """A thread that a restored view knows."""
        path = self.desk.path_of(thread_id) if thread_id else None
        if path is None:
            return None
        works = thread_id in self.tracker.background if path else bool(self.tracker.turn_id)
        thread = self.by_id[thread_id] = Thread(thread_id, path, total=None, works=works)
        return thread

    def heard(self, params: Object) -> Thread | None:
        """The same, for what only a subscriber hears: with no thread of our own yet, this one is it."""
        thread = self.of(params)
        if thread is not None or self.desk.own or self.opening:
            return thread
        thread_id = text_of(params, "threadId", "conversationId")
        if not thread_id or thread_id in self._others:
            return None
        return self.open_own({"id": thread_id}, fresh=False)

    def open_own(self, found: Object, model: str = "", fresh: bool = True) -> Thread | None:
        """Our thread is open."""
        thread_id = text_of(found, "id")
        if not thread_id:
            return None
        desk = self.desk
        if thread_id != desk.own:
            self.tracker.abort_turn("another thread")
            self.by_id.pop(desk.own, None)
        desk.bind(thread_id, model or text_of(found, "model"), text_of(found, "cliVersion"), ("steer",))
        thread = self.by_id.get(thread_id)
        if thread is None:
            thread = self.by_id[thread_id] = Thread(thread_id, (), total=NOTHING if fresh else None)
        self.named(text_of(found, "name"))
        if self._strangers.pop(thread_id, False):
            self.begins(thread)
        return thread

    def started(self, found: Object) -> None:
        """Any thread of the server was opened."""
        thread_id, parent = text_of(found, "id"), text_of(found, "parentThreadId")
        known = self.by_id.get(parent)
        if known is not None:
            self.child(thread_id, known, text_of(found, "agentNickname", "name", "preview"))
        elif thread_id and thread_id not in self.by_id:
            aside = parent or found.get("ephemeral") is True or text_of(found, "threadSource") in _ASIDE
            if aside:
                remember(self._others, thread_id, None)
            elif not self.desk.own and not self.opening:
                self.open_own(found)

    def child(self, thread_id: str, parent: Thread, title: str) -> None:
        """This thread is a sub-agent of that one."""
        if not thread_id or thread_id in self.by_id:
            return
        path = (*parent.path, thread_id)
        thread = self.by_id[thread_id] = Thread(thread_id, path, title)
        self.desk.children[thread_id] = path
        if self._strangers.pop(thread_id, False):
            self.begins(thread)

    def stranger(self, thread_id: str, works: bool) -> None:
        """A thread that is nobody's yet."""
        if thread_id:
            remember(self._strangers, thread_id, works)

    def named(self, title: str) -> None:
        """Our thread has a title."""
        if title:
            self.tracker.emit(ev.TitleGenerated(title=title))

    # --- turns

    def begins(self, thread: Thread, turn_id: str = "") -> None:
        """A turn of this thread runs; begun twice it is begun once."""
        if not thread.path:
            self._clear("settled", "interrupted")
        thread.turn = turn_id or thread.turn
        if thread.works:
            return
        thread.works, thread.broken, thread.prompted, thread.stopping = True, False, False, False
        thread.error = {}
        if thread.path:
            self.tracker.emit(ev.SubagentStart(child_sid=thread.id, description=thread.title))
            self.tracker.start_background("subagent", thread.id, thread.title)
            return
        self.tracker.start_turn(thread.turn)
        self.requested(thread)

    def requested(self, thread: Thread) -> None:
        """The model is asked. A gate of ours that is open says that it is not."""
        thread.request_due = thread.ran = False
        if not any(not gate.path for gate in self.tracker.gates.values()):
            self.tracker.start_request(self.desk.model)

    def _clear(self, *names_of_timers: str) -> None:
        for name in names_of_timers:
            self.desk.clear_timer(name)

    def ends(self, thread: Thread, turn: Object) -> None:
        """The turn is over, and says how."""
        status = text_of(turn, "status")
        if thread.path:
            self.child_ends(thread, status == "completed")
            return
        self._clear("settled", "flagged", "interrupted")
        error = object_of(turn, "error") or thread.error
        if status == "failed":
            self._fail(error)
        elif status == "interrupted":
            self._interrupt(thread)
        else:
            self.tracker.end_turn()
        self._forget(thread)

    def child_ends(self, thread: Thread, ok: bool) -> None:
        """A sub-agent is done, or waits for its next task."""
        if thread.works:
            self.tracker.close_subagent(thread.path)
            self.tracker.end_background(thread.id, ok, thread.title)
            self.tracker.emit(ev.SubagentEnd(child_sid=thread.id, ok=ok))
        self._forget(thread)

    def _interrupt(self, thread: Thread) -> None:
        """Commands with a terminal go on; everything else that ran is gone."""
        for ref, text in self.steers.items():
            self.tracker.emit(ev.PromptDropped(text=text, message_id=ref))
        self.steers.clear()
        self.tracker.abort_turn("interrupted", keep=thread.terminals)

    def _fail(self, error: Object) -> None:
        kind, message = names.error_kind(error), names.error_text(error)
        if names.error_name(error) == names.CONTEXT_FULL:
            self.tracker.emit(ev.ContextOverflow(reason=message, turn_id=self.tracker.turn_id or None))
        self.tracker.fail_turn(kind, message, self._resets_at if kind == "usage_limit" else None)

    def _forget(self, thread: Thread) -> None:
        thread.works = thread.broken = False
        thread.turn = thread.message = ""
        thread.flags = frozenset()
        thread.held.clear()

    # --- status: what is heard of every thread, also by those who hear nothing else

    def status_changed(self, params: Object) -> None:
        status = object_of(params, "status")
        kind = text_of(status, "type")
        thread = self.of(params)
        if thread is None:
            self.stranger(text_of(params, "threadId"), kind == "active")
        elif kind == "active":
            self.active(thread, status)
        elif kind in ("idle", "systemError"):
            self._settled(thread, kind == "systemError")
        elif kind == "notLoaded" and not thread.path:
            self.tracker.end_session("not loaded")
            self._forget(thread)

    def active(self, thread: Thread, status: Object) -> None:
        """The thread works, or waits for a person."""
        found = list_of(status, "activeFlags")
        thread.flags = frozenset(flag for flag in _FLAGS if flag in found)
        self.begins(thread)
        if thread.path:
            return
        if thread.flags:
            self.desk.set_timer("flagged", ALONE_S)
            return
        self.desk.clear_timer("flagged")
        self.tracker.resolve_approval(f"{APPROVAL}:{thread.id}", "answered_elsewhere")
        self.tracker.answer_question(f"{QUESTION}:{thread.id}", status="answered_elsewhere")

    def _settled(self, thread: Thread, broken: bool) -> None:
        thread.flags = frozenset()
        if thread.works and not thread.path:
            thread.broken = broken
            self.desk.set_timer("settled", ALONE_S)

    def own_thread(self) -> Thread | None:
        return self.by_id.get(self.desk.own)

    def on_settled(self) -> None:
        """The status said that the turn is over, and nothing else did."""
        thread = self.own_thread()
        if thread is not None and thread.works:
            self.ends(thread, {"status": "failed" if thread.broken else "completed"})

    # --- tokens

    def token_usage(self, params: Object) -> None:
        """Sums over the thread; what they grew by is the last message's. A sum of unknown beginning tells its last."""
        thread = self.of(params)
        if thread is None:
            return
        usage = object_of(params, "tokenUsage")
        total, last = counts_in(object_of(usage, "total")), object_of(usage, "last")
        grown = None if thread.total is None else difference(total, thread.total)
        thread.total = total
        used = counts_in(last) if grown is None else grown
        self.desk.count(used, thread.path, self.billing)
        if not thread.path:
            if any(used):
                self._tools_over(thread)
            self._context_usage(int_of(last, "totalTokens"), int_of(usage, "modelContextWindow"))

    def _tools_over(self, thread: Thread) -> None:
        """Tokens are told when the tools of the response are done: a command that still runs was left running behind, and
        where there were tools the model is asked next."""
        if thread.stopping:
            return
        for name in thread.terminals & (self.tracker.calls.keys() - self.tracker.background.keys()):
            thread.ran = True
            self.tracker.move_call_to_background(name)
        if thread.ran:
            self.requested(thread)

    def _context_usage(self, tokens: int, limit: int) -> None:
        if limit > 0 and (tokens, limit) != self._context:
            self._context = (tokens, limit)
            percent = round(100 * tokens / limit, 1)
            self.tracker.emit(ev.ContextUsage(tokens=tokens, limit=limit, percent=percent))

    def rate_limits(self, params: Object) -> None:
        """When a limit that is used up begins anew, and whether a plan pays."""
        limits = object_of(params, "rateLimits")
        if text_of(limits, "planType"):
            self.billing = "plan"
        windows = [object_of(limits, name) for name in ("primary", "secondary")]
        resets = [int_of(one, "resetsAt") for one in windows if int_of(one, "usedPercent") >= 100]
        self._resets_at = max(resets) * 1000 if resets else None
