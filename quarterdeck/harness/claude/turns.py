"""End Claude Code's turns, and tell one turn from the next.

A turn is closed by the source that knows best. Where stream-json is read that is the `result` line, because a Stop hook
only asks whether the agent may stop. Where hooks are all there is, Stop closes the turn; and since no hook reports an
interrupt, the next prompt with another prompt_id shows that the turn before it is over.
"""

from __future__ import annotations

from quarterdeck.events import FailureKind
from quarterdeck.harness.claude.calls import Calls
from quarterdeck.harness.claude.session import ClaudeSession, Prompts
from quarterdeck.harness.claude.subagents import Subagents


class Turns:
    """The ends of one session's turns."""

    def __init__(self, session: ClaudeSession, prompts: Prompts, calls: Calls, subagents: Subagents) -> None:
        self.session = session
        self.tracker = session.tracker
        self.prompts = prompts
        self.calls = calls
        self.subagents = subagents

    def finish(self) -> None:
        """Complete the turn. Claude Code waits for its calls, so calls without a reported end have ended well."""
        self._close_work(ok=True)
        self.tracker.end_turn("completed")

    def fail(self, kind: FailureKind, message: str = "", resets_at: int | None = None) -> None:
        self.prompts.release_held()
        self._close_work(ok=False)
        self.prompts.is_limited = kind == "usage_limit"
        self.tracker.fail_turn(kind, message, resets_at)

    def interrupt(self) -> None:
        self._close_work(ok=None)
        self.tracker.abort_turn("interrupted")

    def defer(self) -> None:
        """Leave the turn unfinished because a call was deferred. It continues when the session is resumed."""
        for call_id in [call_id for call_id, call in self.tracker.calls.items() if not call.path]:
            del self.tracker.calls[call_id]
        self._close_work(ok=None)
        self.tracker.leave_turn_unfinished()

    def finish_before_result(self) -> None:
        """Complete the turn although its result is still to come. That result will then end nothing."""
        self.session.results_owed += 1
        self.session.results_owed_since = self.session.now
        self.finish()

    def reopen(self) -> None:
        """Continue the turn that was closed at its Stop hook: another hook kept the agent from stopping."""
        if self.session.turn_is_open:
            return
        prompt_id = self.session.prompt_id
        self.session.results_owed = max(0, self.session.results_owed - 1)
        self.prompts.ensure_turn()
        self.session.prompt_id = prompt_id

    def is_other_turn(self, prompt_id: str) -> bool:
        """Return whether a prompt belongs to another turn than the open one. One id serves a turn and its steering."""
        open_id = self.session.prompt_id
        return bool(self.session.turn_is_open and prompt_id and open_id and prompt_id != open_id)

    def close_previous(self) -> None:
        """Close the open turn because another one starts, although its end wasn't reported."""
        if self.session.has_stream:
            # In text mode the results of all turns are printed together, after the last one.
            self.finish_before_result()
        else:
            self.interrupt()

    def start_compaction(self, trigger: str) -> None:
        if not self.session.turn_is_open:
            self.session.report_ready()
            self.session.reset_turn()
        self.tracker.start_compaction("manual" if trigger == "manual" else "auto" if trigger == "auto" else None)

    def is_busy(self) -> bool:
        """Return whether the main agent runs a call, writes a message or waits for a person."""
        tracker = self.tracker
        return tracker.has_running_calls() or bool(tracker.messages.unfinished(())) or bool(tracker.gates)

    def _close_work(self, ok: bool | None) -> None:
        """Close what a turn can't leave behind: calls and sub-agents that don't run in the background.

        `ok` is the result of calls whose end wasn't reported. None leaves such calls to the tracker.
        """
        self.calls.mark_main_ended()
        self.prompts.forget_sent_prompts()
        if ok is not None:
            for call_id, call in list(self.tracker.calls.items()):
                if call.running and not call.path:
                    self.tracker.end_call(call_id, ok)
        self.subagents.end_with_turn(ok is not False)
