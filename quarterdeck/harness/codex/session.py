"""Hold what all sources of one Codex session share: whose session it is, what was recorded already, and which source leads.

Several sources report the same facts. Each fact is recorded once, by whichever source reports it first.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, TypeVar

from quarterdeck import events as ev
from quarterdeck.events import Block, Json, TokenUsage
from quarterdeck.harness.base import BaseTranslator, Object, int_of
from quarterdeck.harness.tracker import AgentPath
from quarterdeck.kernel.view import View

#: For this long after an interrupt only a prompt makes the agent active (seed 003).
SUPPRESSION_S = 0.5
#: Codex sends telemetry once a second, so the last records of a turn may arrive this long after its end.
LATE_S = 1.2

#: Timers that mean nothing once the turn is over.
_TURN_TIMERS = ("idle", "unseen", "quiet", "watchdog", "give_up", "question")

# ----------------------------------------------------------------------------------------------------------------------
# Bounded memory
# ----------------------------------------------------------------------------------------------------------------------

#: How much is remembered to recognise what another source reports again.
_MAX_REMEMBERED = 512

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def remember(memory: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    """Add an entry and drop the oldest beyond the limit: a session may last for weeks."""
    memory[key] = value
    if len(memory) > _MAX_REMEMBERED:
        del memory[next(iter(memory))]


# ----------------------------------------------------------------------------------------------------------------------
# Token counts
# ----------------------------------------------------------------------------------------------------------------------

#: (input, cached, cache write, output) as Codex counts them: cached and written tokens are part of the input.
Counts: TypeAlias = tuple[int, int, int, int]
NO_TOKENS: Counts = (0, 0, 0, 0)

#: Names of the four counts in the app-server, in `exec --json` and in telemetry.
_COUNT_NAMES = (
    ("inputTokens", "cachedInputTokens", "cacheWriteInputTokens", "outputTokens"),
    ("input_tokens", "cached_input_tokens", "cache_write_input_tokens", "output_tokens"),
    ("input_token_count", "cached_token_count", "cache_write_token_count", "output_token_count"),
)


def counts_in(fields: Object) -> Counts:
    """Return token counts under the names of any source."""
    for whole, cached, written, output in _COUNT_NAMES:
        if whole in fields or output in fields:
            return int_of(fields, whole), int_of(fields, cached), int_of(fields, written), int_of(fields, output)
    return NO_TOKENS


def counts_added(total: Counts, before: Counts) -> Counts | None:
    """Return by how much a running total grew, or None if it shrank, which means that another total began."""
    added = (total[0] - before[0], total[1] - before[1], total[2] - before[2], total[3] - before[3])
    return None if min(added) < 0 else added


def exclusive_usage(counts: Counts) -> TokenUsage:
    """Return counts as buckets that exclude each other."""
    whole, cached, written, output = counts
    return TokenUsage(
        input=max(whole - cached - written, 0), output=output, cache_read=cached, cache_write=max(written, 0)
    )


# ----------------------------------------------------------------------------------------------------------------------
# The session
# ----------------------------------------------------------------------------------------------------------------------

#: The agent's own stream that is read: `codex app-server`, `codex exec --json`, or none.
LeadingStream: TypeAlias = Literal["", "app", "exec"]


class CodexSession:
    """State of one session that more than one source needs."""

    def __init__(self, translator: BaseTranslator) -> None:
        self._translator = translator
        self.tracker = translator.tracker
        #: A stream of the agent itself, if there is one, decides everything that it reports.
        self.leading_stream: LeadingStream = ""
        #: Hooks report every request to the model, so they lead and telemetry only adds to them.
        self.hooks_lead = False
        self.hooks_seen = False
        #: Our thread; '' until a source names it. All sources use the same id (thread, session, conversation).
        self.thread_id = ""
        #: Threads that said that they ended.
        self.ended_threads: dict[str, None] = {}
        #: Paths of sub-agents by thread id.
        self.child_paths: dict[str, AgentPath] = {}
        #: The model that answers. It may differ from the configured one if Codex reroutes a request.
        self.model = ""
        self.configured_model = ""
        self.mode: str = ""
        self._thinking = ""
        #: A request to the model is under way, whichever source reported it first.
        self.in_request = False
        #: Until this time only a prompt begins a turn: everything else still belongs to the turn that ended.
        self.suppressed_until = 0.0
        #: When a hook or notify last arrived. A telemetry record that is older than this isn't news.
        self.last_hook_at = 0.0
        self._ended_calls: dict[str, None] = {}
        #: How often each prompt was recorded, and how often each source reported it.
        self._recorded_prompts: dict[str, int] = {}
        self._reported_prompts: dict[tuple[str, str], int] = {}
        self._recorded_texts: dict[str, None] = {}
        self._shown_notices: dict[str, None] = {}
        self._usage_count = 0

    @property
    def now(self) -> float:
        return self._translator.now

    def set_timer(self, name: str, seconds: float) -> None:
        self._translator.set_timer(name, seconds)

    def clear_timers(self, *names: str) -> None:
        for name in names:
            self._translator.clear_timer(name)

    def restore(self, view: View) -> None:
        profile = view.state.profile
        self.thread_id = profile.native_session_id
        self.model = self.configured_model = profile.model
        self.mode, self._thinking = profile.mode, profile.thinking or ""
        self._usage_count = view.index
        for task in view.state.background:
            if task.kind == "subagent":
                self.child_paths[task.id] = (task.id,)

    def restart(self) -> None:
        """Forget the old process. The new one will say which thread it serves."""
        self.thread_id = self.leading_stream = ""
        self.in_request = self.hooks_lead = False
        self.child_paths.clear()
        self._translator.timers.clear()
        self.suppressed_until = self.last_hook_at = 0.0

    def exit(self) -> None:
        """Treat what is still on its way from the old process as old."""
        self.last_hook_at = self.now
        self.suppressed_until = self.now + LATE_S

    def follow(self, stream: LeadingStream) -> None:
        """Let a stream of the agent itself lead, and drop the guesses of weaker sources."""
        if self.leading_stream != stream:
            self.leading_stream = stream
            self._translator.timers.clear()
            self.tracker.set_signal("live")

    # --- whose session

    def bind(self, thread_id: str, model: str = "", version: str = "", capabilities: tuple[str, ...] = ()) -> None:
        """Make this thread ours. Report it ready once, and again when it comes back to life."""
        tracker = self.tracker
        if thread_id == self.thread_id and tracker.is_ready and not tracker.has_exited:
            self.update_settings(model=model)
            return
        self.ended_threads.pop(thread_id, None)
        self.thread_id, self.model = thread_id, model or self.model
        self.configured_model = self.model
        tracker.report_ready(thread_id, model, version, capabilities, resumable=True)

    def agent_path(self, thread_id: str) -> AgentPath | None:
        """Return the path of a thread's events; None for a thread that isn't ours, such as one that makes up a title."""
        return () if thread_id == self.thread_id else self.child_paths.get(thread_id)

    def update_settings(self, mode: str | None = None, thinking: str = "", model: str = "") -> None:
        """Record the settings that changed."""
        new_mode = mode if mode and mode != self.mode else None
        new_thinking = thinking if thinking and thinking != self._thinking else None
        new_model = model if model and model != self.configured_model else None
        if new_mode or new_thinking or new_model:
            self.mode, self._thinking = new_mode or self.mode, new_thinking or self._thinking
            self.model = self.configured_model = new_model or self.configured_model
            self.tracker.emit(ev.SettingChanged(mode=new_mode, thinking=new_thinking, model=new_model))

    # --- recording each fact once

    def start_call(self, call_id: str, name: str, args: Json = None, path: AgentPath = ()) -> None:
        """Record that a call runs, unless another source reported its end already."""
        if call_id not in self._ended_calls:
            self.tracker.start_call(call_id, name, args, path)

    def end_call(self, call_id: str, name: str, ok: bool = True, result: Json = None, path: AgentPath = ()) -> None:
        if call_id not in self._ended_calls:
            remember(self._ended_calls, call_id, None)
            self.tracker.end_call(call_id, ok, result, name, path)

    def block_call(self, call_id: str, name: str, reason: str) -> None:
        if call_id not in self._ended_calls:
            remember(self._ended_calls, call_id, None)
            self.tracker.block_call(call_id, reason, name)

    def record_finished_call(self, call_id: str, name: str, args: Json, ok: bool, result: Json) -> None:
        """Record a call that wasn't seen to run. It changes no state, but an approval of it is answered."""
        if call_id and call_id not in self._ended_calls and call_id not in self.tracker.calls:
            remember(self._ended_calls, call_id, None)
            self.tracker.close_call_approvals(call_id)
            turn_id = self.tracker.turn_id or None
            self.tracker.emit(ev.ToolCall(name=name, call_id=call_id, args=args, turn_id=turn_id))
            self.tracker.emit(ev.ToolExecutionEnd(name=name, call_id=call_id, ok=ok, result=result, turn_id=turn_id))

    def claim_prompt(self, source: str, text: str) -> bool:
        """Note that a source reported a prompt, and return whether it is the first source to do so.

        The same text may be sent several times: a source's n-th report is new if fewer than n were recorded.
        """
        reports = self._reported_prompts.get((source, text), 0) + 1
        remember(self._reported_prompts, (source, text), reports)
        if reports <= self._recorded_prompts.get(text, 0):
            return False
        remember(self._recorded_prompts, text, reports)
        return True

    def record_last_text(self, turn_id: str, text: str) -> None:
        """Record the last text of a turn, from a source that reports no other texts."""
        message_id = f"{turn_id}:last"
        if text and message_id not in self._recorded_texts:
            remember(self._recorded_texts, message_id, None)
            self.tracker.finish_message(message_id, (Block(text=text),))

    def add_notice_once(self, text: str, level: Literal["info", "warning", "error"] = "warning") -> None:
        """Show a notice. Codex repeats its warnings in several ways."""
        if text and text not in self._shown_notices:
            remember(self._shown_notices, text, None)
            self.tracker.add_notice(text, level, "codex")

    def record_usage(
        self, counts: Counts, path: AgentPath = (), billing: Literal["plan", "unknown"] = "unknown"
    ) -> None:
        """Record the tokens of one more message."""
        if counts != NO_TOKENS:
            self._usage_count += 1
            message_id = f"{self.thread_id}:{self._usage_count}"
            self.tracker.record_usage(exclusive_usage(counts), message_id, self.model, billing, path)

    # --- the end of a turn

    def confirm_turn_end(self, suppress_s: float = LATE_S) -> None:
        """Note that the turn is certainly over: late records of it don't begin another one for `suppress_s` seconds.

        Hooks and notify report the end before telemetry brings the last records.
        """
        self.clear_timers(*_TURN_TIMERS)
        self.tracker.set_signal("live")
        self.last_hook_at = self.now
        self.suppressed_until = self.now + suppress_s
