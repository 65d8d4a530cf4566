"""Read OTLP log records of a Codex that the user started: seed 003's rules, and what they can't know.

003's diagram is `CODEX` in kernel/activity.py. The records that move it:

    codex.conversation_starts            the session exists
    codex.user_prompt                    thinking
    codex.tool_decision                  tool_use (approved), waiting_for_permission (ask_user)
    codex.tool_result                    the call ended; the state stays, tools linger until the model answers again
    response.created                     thinking; over a WebSocket codex.websocket_request takes its place
    response.completed with tokens       thinking: idle, 200 ms later, if none of the above arrives before
                                         tool_use: one of several, not the end

Only a record that has tokens is a completion: every HTTP response also produces a bare one, and a broken stream one with an
error. If the record that the model answers again was lost, tool_use would last forever: if all calls are answered and
nothing arrives for 5 s, the model counts as asked again (`watchdog`).

The records never say that the user is asked, that a turn was interrupted, or that Codex gave up. The completion before an
approval looks like the last one of a turn, and there 003's rule would show an idle agent that waits for the user. So
`signal` says how reliable the state is:

- Over HTTP each event of the stream is a record, so we know whether the response has calls. If it has, the turn
  continues: the state stays thinking, and after the debounce the signal is stale, because the call may wait for the user.
- A completion without calls is the end, and idle follows with a live signal; unless the context was full before it,
  because then it may have been a compaction.
- Over a WebSocket only the completion is seen. Idle follows, with a stale signal: it may be the end or a wait. `notify` or
  a Stop hook confirms an end, and then the signal is live.
- In an open turn with no record for 5 s the signal is stale: a tool may run, or the turn may be interrupted.
- A request that failed and wasn't repeated for some seconds was the last one: the turn failed.

Records arrive up to a second late. A record that is older than the last hook or notify isn't news: it doesn't move the
state, although what it says about a call or tokens still counts. If hooks report every request to the model they lead, and
all records are read like that. Everything is assigned by conversation: sub-agents and title threads have their own, and
never move the state.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeAlias

from msgspec import Struct

from quarterdeck import events as ev
from quarterdeck.events import FailureKind, Json
from quarterdeck.harness.base import Object, int_of, object_of, text_of
from quarterdeck.harness.codex import names
from quarterdeck.harness.codex.hooks import GIVE_UP_S, Hooks
from quarterdeck.harness.codex.session import NO_TOKENS, CodexSession, Counts, counts_in, remember
from quarterdeck.harness.failures import failure_kind
from quarterdeck.harness.lines import object_in
from quarterdeck.kernel.activity import WAITING

IDLE_S = 0.2
WATCHDOG_S = 5.0
QUIET_S = 5.0
#: A notify that arrives before the last records of its turn counts for this long.
CREDIT_S = 2.0

#: Records that say nothing about the state. They are listed so that only new ones count as unknown.
IGNORED_RECORDS = frozenset(
    {
        "codex.sandbox_outcome",
        "codex.startup_phase",
        "codex.turn_ttft",
        "codex.websocket_connect",
        "codex.websocket_event",
    }
)

# ----------------------------------------------------------------------------------------------------------------------
# What one record says
# ----------------------------------------------------------------------------------------------------------------------

#: Failures that Codex doesn't retry, by kind and by words in their message.
_FINAL_KINDS = frozenset({"auth", "usage_limit", "payment", "invalid_model"})
_FINAL_WORDS = ("context window", "context_length_exceeded")
#: What stands before the exit code at the head of a command's output.
_EXIT_CODE_LABELS = ("Process exited with code ", "Exit code: ")


class Failure(Struct, frozen=True):
    """A request that failed."""

    kind: FailureKind
    message: str
    resets_at: int | None = None

    @property
    def is_final(self) -> bool:
        return self.kind in _FINAL_KINDS or any(word in self.message.lower() for word in _FINAL_WORDS)


def _error_in(record: Object) -> str:
    return text_of(record, "error.message", "error", "message")


def _has_tokens(record: Object) -> bool:
    """Return whether the record is a completion: it has token counts, and not only zeros."""
    return int_of(record, "input_token_count") > 0 or int_of(record, "output_token_count") > 0


def _created_at(record: Object) -> float | None:
    """Return when the record was created, in seconds since the epoch. OTLP's own time fields aren't usable."""
    timestamp = record.get("event.timestamp")
    if not isinstance(timestamp, str):
        return None
    try:
        time = datetime.fromisoformat(timestamp)
        return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _tool_in(record: Object) -> str:
    server, tool = text_of(record, "mcp_server"), text_of(record, "tool_name")
    if server and not tool.startswith("mcp__"):
        return names.mcp_name(server, tool)
    return tool or "tool"


def _arguments_in(record: Object) -> Json:
    """Return the arguments of a call: JSON, or the text of a tool that takes one."""
    text = text_of(record, "arguments")
    return (object_in(text) if text[:1] == "{" else None) or text


def _exit_code_in(output: str) -> int:
    """Return the exit code at the head of the output, else 0. Telemetry counts a command that failed as a success."""
    head = output[:300]
    for label in _EXIT_CODE_LABELS:
        _, separator, rest = head.partition(label)
        if separator:
            return int_of({"code": rest.split("\n", 1)[0].strip()}, "code")
    return 0


def _api_error_in(message: str) -> Object:
    """Return the API's error that a message contains as JSON, else {}."""
    start = message.find("{")
    error = object_in(message[start:]) if start >= 0 else None
    if error is None:
        return {}
    return object_of(error, "response", "error") or object_of(error, "error") or error


def _failure_in(record: Object, message: str, status: int) -> Failure:
    """Describe a failed request. An error of the API is passed on as JSON; show its message, and read its reset time."""
    error = _api_error_in(message)
    resets_at, resets_in = int_of(error, "resets_at"), int_of(error, "resets_in_seconds")
    created_at = _created_at(record)
    resets_at_ms: int | None = None
    if resets_at > 0:
        resets_at_ms = resets_at * 1000
    elif resets_in > 0 and created_at is not None:
        resets_at_ms = int((created_at + resets_in) * 1000)
    return Failure(failure_kind(message, status), text_of(error, "message") or message, resets_at_ms)


# ----------------------------------------------------------------------------------------------------------------------
# What records mean
# ----------------------------------------------------------------------------------------------------------------------

_RecordReader: TypeAlias = Callable[[Object], None]

#: Kinds of stream events that show one more call in the response.
_CALL_KINDS = frozenset({"response.function_call_arguments.done", "response.custom_tool_call_input.done"})
_REDACTED = "[REDACTED]"


class Telemetry:
    """Reads records, with one reader for each name."""

    def __init__(self, session: CodexSession, hooks: Hooks) -> None:
        self.session = session
        self.hooks = hooks
        self.tracker = session.tracker
        #: Number of calls in the response under way; None if its stream isn't seen.
        self._response_calls: int | None = None
        #: A response completed while tools were in use.
        self._completed_in_tools = False
        #: The end of the turn is certain.
        self._end_is_certain = False
        #: The last end was guessed, and nothing has confirmed it yet.
        self._end_is_unconfirmed = False
        #: Until this time a notify that came early confirms the end of the turn.
        self._credit_until = 0.0
        #: Tokens at which Codex compacts; 0 if unknown.
        self._compaction_limit = 0
        #: The context was full after the last response, so the next one may be a compaction.
        self._may_compact = False
        self._has_started = False
        #: The records' clock minus ours, as far as it is known.
        self._clock_offset = float("-inf")
        #: Token counts of the last response by conversation.
        self._tokens: dict[str, Counts] = {}
        self._failure: Failure | None = None
        self._readers: dict[str, _RecordReader] = {
            "codex.conversation_starts": self._read_conversation_start,
            "codex.user_prompt": self._read_prompt,
            "codex.api_request": self._read_api_request,
            "codex.websocket_request": self._read_websocket_request,
            "codex.sse_event": self._read_sse_event,
            "codex.tool_decision": self._read_decision,
            "codex.tool_result": self._read_result,
        }
        self._stream_readers: dict[str, _RecordReader] = {
            "response.created": self._read_response_created,
            "response.completed": self._read_response_completed,
            "response.failed": self._read_response_broken,
            "response.incomplete": self._read_response_broken,
        }

    def reset(self) -> None:
        """Forget everything: another process runs."""
        self._clear_turn()
        self._failure = None
        self._tokens.clear()
        self._compaction_limit = 0

    def restore(self) -> None:
        """Continue in the middle of a session that has started."""
        self._has_started = bool(self.session.thread_id)

    def _clear_turn(self) -> None:
        self._response_calls = None
        self._completed_in_tools = self._end_is_certain = False

    # --- reading

    def read(self, data: Json) -> bool:
        record = object_of(data, "attributes")
        name, conversation = record.get("event.name"), record.get("conversation.id")
        if not isinstance(name, str):
            # Two kinds of record belong to no conversation and have no attributes.
            return name is None
        if name == "codex.agent_communication":
            self._read_agent_communication(record)
            return True
        reader = self._readers.get(name)
        if reader is not None and isinstance(conversation, str) and conversation:
            self._read_record(reader, record, conversation)
        return reader is not None or name in IGNORED_RECORDS

    def _read_record(self, reader: _RecordReader, record: Object, conversation: str) -> None:
        session = self.session
        if session.leading_stream:
            if conversation == session.thread_id:
                self._add_to_stream(record)
            return
        if conversation != (session.thread_id or conversation):
            # Count a sub-agent's tokens. Other threads aren't ours.
            if conversation in session.child_paths and _has_tokens(record):
                self._record_usage(record, conversation)
            return
        created_at = _created_at(record)
        if created_at is not None:
            # The clock of the records is only known through them: a record is never created after it arrived.
            self._clock_offset = max(self._clock_offset, created_at - session.now)
        # A record that was created before the last hook or notify arrived isn't news.
        is_old = created_at is not None and created_at - self._clock_offset <= session.last_hook_at
        if is_old and (self.tracker.has_exited or conversation in session.ended_threads):
            return
        if not session.thread_id:
            self._bind(record)
        if is_old or session.hooks_lead:
            self._add_to_hooks(record)
            return
        reader(record)
        if self.tracker.turn_id:
            session.set_timer("quiet", QUIET_S)

    def _add_to_hooks(self, record: Object) -> None:
        """Read a record that isn't news, or that hooks report: its calls, tokens and session still count."""
        name = record.get("event.name")
        if name == "codex.conversation_starts":
            if not self.tracker.turn_id:
                self._end_old_process()
            self._bind(record)
        elif name == "codex.tool_decision":
            self._apply_decision(record)
        elif name == "codex.tool_result":
            self._end_call(record)
        elif name == "codex.user_prompt" and self.tracker.turn_id:
            self._record_prompt(record)
        elif _has_tokens(record):
            self._record_usage(record, self.session.thread_id)

    def _add_to_stream(self, record: Object) -> None:
        """Add what a stream of the agent itself never reports: calls without an item, the prompt of `codex exec`."""
        name = record.get("event.name")
        if name == "codex.tool_result" and self.session.leading_stream == "app":
            self._end_call(record)
        elif name == "codex.user_prompt" and self.session.leading_stream == "exec" and self.tracker.turn_id:
            self._record_prompt(record)

    # --- the session and its prompts

    def _read_conversation_start(self, record: Object) -> None:
        self._end_old_process()
        self._bind(record)

    def _end_old_process(self) -> None:
        """End what an earlier process had open: another one resumes the session."""
        if self._has_started:
            for call_id, call in list(self.tracker.calls.items()):
                self.session.end_call(call_id, call.name, False, "the process was restarted", call.path)
            self.tracker.abort_turn("restarted")

    def _bind(self, record: Object) -> None:
        session = self.session
        self._has_started = self._has_started or record.get("event.name") == "codex.conversation_starts"
        session.bind(text_of(record, "conversation.id"), text_of(record, "model"), text_of(record, "app.version"))
        session.update_settings(
            mode=names.mode_of(record.get("approval_policy"), record.get("sandbox_policy")),
            thinking=text_of(record, "reasoning_effort"),
        )
        self._compaction_limit = int_of(record, "auto_compact_token_limit") or self._compaction_limit

    def _read_prompt(self, record: Object) -> None:
        """Read a prompt, or a text for the running turn that the model reads now: then no call runs any more."""
        self._cancel_end()
        self.tracker.set_signal("live")
        self.session.suppressed_until = 0.0
        failure = self._failure
        if failure is not None and failure.kind == "usage_limit" and not self.tracker.turn_id:
            self._fail_at_once(record, failure)
            return
        if any(call.running and not call.path for call in self.tracker.calls.values()):
            # A text for the running turn is read between calls, so this one begins the next turn.
            self.tracker.abort_turn("interrupted")
        self.tracker.start_turn()
        self._record_prompt(record)
        self.session.in_request = False
        self._start_request()

    def _record_prompt(self, record: Object) -> None:
        text = self._new_prompt(record)
        if text:
            self.tracker.record_prompt(text)

    def _new_prompt(self, record: Object) -> str:
        """Return the prompt, or '' if another source reported it already. Codex may redact its text."""
        text = text_of(record, "prompt")
        if text == _REDACTED:
            if self.session.hooks_seen or self.session.leading_stream:
                return ""
            text = f"(a prompt of {int_of(record, 'prompt_length')} characters)"
        return text if self.session.claim_prompt("otlp", text) else ""

    def _fail_at_once(self, record: Object, failure: Failure) -> None:
        """Fail a prompt while the usage limit lasts, without a turn and a flash of activity (U-082)."""
        text = self._new_prompt(record)
        if text:
            self.tracker.emit(ev.PromptReceived(text=text))
        self.tracker.emit(ev.TurnFailed(kind=failure.kind, message=failure.message, resets_at=failure.resets_at))

    # --- requests and responses

    def _start_request(self) -> None:
        """Record a request to the model. Calls whose result was lost are over."""
        self._response_calls, self._completed_in_tools = None, False
        for call_id, call in list(self.tracker.calls.items()):
            if not call.path and call_id not in self.tracker.background:
                self.session.end_call(call_id, call.name)
        if not self.session.in_request or self.tracker.tools_linger:
            self.session.in_request = True
            self.tracker.start_request(self.session.model)

    def _read_response_created(self, _record: Object) -> None:
        if self._is_suppressed():
            return
        self._cancel_end()
        self.tracker.set_signal("live")
        self._start_request()
        self._response_calls = 0

    def _read_websocket_request(self, _record: Object) -> None:
        """Read that a request was sent. One before any prompt only warms up the connection."""
        if self.tracker.turn_id and not self._is_suppressed():
            self._cancel_end()
            self.tracker.set_signal("live")
            self._start_request()

    def _read_api_request(self, record: Object) -> None:
        """Read the status of a response. An error status fails the attempt."""
        status, message = int_of(record, "http.response.status_code"), text_of(record, "error.message")
        if self.tracker.turn_id and (status >= 400 or (message and not status)):
            self._fail_request(record, message or f"http {status}", status)

    def _read_sse_event(self, record: Object) -> None:
        kind = text_of(record, "event.kind")
        reader = self._stream_readers.get(kind)
        if reader is not None:
            reader(record)
        elif kind in _CALL_KINDS and self._response_calls is not None:
            self._response_calls += 1

    def _read_response_completed(self, record: Object) -> None:
        if _has_tokens(record):
            self._complete_response(record)
        elif _error_in(record):
            self._read_response_broken(record)
        elif "input_token_count" in record and self._failure is not None and self.tracker.turn_id:
            # No tokens were used, so what failed before still fails.
            self.session.set_timer("give_up", GIVE_UP_S)

    def _complete_response(self, record: Object) -> None:
        if not self.tracker.turn_id:
            if self._is_suppressed():
                self._record_usage(record, self.session.thread_id)
            return
        self._record_usage(record, self.session.thread_id)
        self._failure, self.session.in_request = None, False
        self.session.clear_timers("give_up")
        self.tracker.set_signal("live")
        counts = counts_in(record)
        may_be_compaction = self._may_compact
        self._may_compact = 0 < self._compaction_limit <= counts[0] + counts[3]
        calls, self._response_calls = self._response_calls, None
        if self.tracker.tools_linger or self.tracker.has_running_calls():
            self._completed_in_tools = True
        elif calls:
            self.session.set_timer("unseen", IDLE_S)
        elif not self.tracker.gates:
            self._end_turn_soon(is_certain=calls is not None and not may_be_compaction)

    def _read_response_broken(self, record: Object) -> None:
        """Read a stream that ended with an error."""
        if self.tracker.turn_id:
            self._fail_request(record, _error_in(record) or "the response was not completed", 0)

    # --- failures

    def _fail_request(self, record: Object, message: str, status: int) -> None:
        """Fail the turn if the failure is final. Else record a retry, and fail the turn if none follows."""
        self.session.in_request = False
        failure = self._failure = _failure_in(record, message, status)
        self._cancel_end()
        if failure.is_final:
            self._fail_turn(failure)
            return
        attempt = int_of(record, "attempt") + 1
        self.tracker.emit(ev.Retry(attempt=attempt, reason=failure.message, turn_id=self.tracker.turn_id or None))
        self.session.set_timer("give_up", GIVE_UP_S)

    def _fail_turn(self, failure: Failure) -> None:
        self.tracker.fail_turn(failure.kind, failure.message, failure.resets_at)
        self._clear_turn()
        self.session.confirm_turn_end(0.0)

    def on_give_up(self) -> None:
        """Fail the turn because the failed request wasn't repeated."""
        if self._failure is not None and self.tracker.turn_id:
            self._fail_turn(self._failure)

    # --- calls

    def _read_decision(self, record: Object) -> None:
        """Read how a call was decided. `ask_user` is 003's; Codex reports a decision only after it was made."""
        decision = text_of(record, "decision")
        call_id, tool = text_of(record, "call_id"), _tool_in(record)
        if self._is_suppressed():
            return
        self._cancel_end()
        self.tracker.set_signal("live")
        if decision == "ask_user":
            self.tracker.open_approval(call_id, tool, call_id=call_id)
        elif decision.startswith("approved"):
            self.tracker.start_turn()
            self.tracker.tools_linger = True
            self._apply_decision(record)
            self.session.start_call(call_id, tool)
        elif self.tracker.activity == WAITING:
            self.tracker.tools_linger = True
            self._apply_decision(record)
        elif self.tracker.turn_id and call_id not in self.tracker.calls:
            self.tracker.open_call(call_id, tool)

    def _apply_decision(self, record: Object) -> None:
        """Close the approval that this decision answers, if one is open.

        After a refusal the failed end of the call follows at once. Until then the state is tool_use (003).
        """
        call_id, decision = text_of(record, "call_id"), text_of(record, "decision")
        by = "user" if text_of(record, "source") == "User" else "rule"
        if not self.hooks.apply_decision(call_id, decision.startswith("approved"), decision, by):
            status = names.decision_in(decision)[1].status
            self.tracker.resolve_approval(call_id, status, by, reason=decision)

    def _read_result(self, record: Object) -> None:
        """Read the end of a call. The state stays, and the turn continues, because the model is asked again."""
        self.session.clear_timers("idle", "unseen")
        if self.tracker.turn_id:
            self.tracker.set_signal("live")
        self._end_call(record)
        if self.tracker.tools_linger and not self.tracker.has_running_calls():
            self.session.set_timer("watchdog", WATCHDOG_S)

    def _end_call(self, record: Object) -> None:
        call_id, tool, output = text_of(record, "call_id"), _tool_in(record), text_of(record, "output")
        ok = text_of(record, "success") != "false" and _exit_code_in(output) == 0
        if call_id in self.tracker.calls and not self.session.leading_stream:
            self.session.end_call(call_id, tool, ok, output)
        else:
            self.session.record_finished_call(call_id, tool, _arguments_in(record), ok, output)

    # --- sub-agents

    def _read_agent_communication(self, record: Object) -> None:
        """Read a message between agents: a task makes a sub-agent work, its result is its end."""
        sender_id, receiver_id = text_of(record, "sender_thread_id"), text_of(record, "receiver_thread_id")
        session = self.session
        if session.leading_stream or not sender_id or not receiver_id:
            return
        if text_of(record, "kind") == "result":
            self.tracker.end_background(sender_id, True)
        elif sender_id == session.thread_id and receiver_id not in self.tracker.background:
            remember(session.child_paths, receiver_id, (receiver_id,))
            self.tracker.emit(ev.SubagentStart(child_sid=receiver_id, description=text_of(record, "content")[:60]))
            self.tracker.start_background("subagent", receiver_id)

    # --- the end of a turn

    def _is_suppressed(self) -> bool:
        """Return whether a record still belongs to the turn that was just interrupted (3-075)."""
        return self.session.now < self.session.suppressed_until and not self.tracker.turn_id

    def _cancel_end(self) -> None:
        """Cancel the timers that would end the turn: it continues."""
        self.session.clear_timers("idle", "unseen", "watchdog")

    def _end_turn_soon(self, is_certain: bool) -> None:
        """End the turn after the debounce, or at once if notify reported the end already."""
        self._end_is_certain = is_certain
        if self.session.now < self._credit_until:
            self._credit_until, self._end_is_certain = 0.0, True
            self.on_idle()
        else:
            self.session.set_timer("idle", IDLE_S)

    def on_idle(self) -> None:
        """End the turn because nothing followed its last response."""
        if self.session.leading_stream:
            return
        self.tracker.end_turn()
        self.session.clear_timers("quiet")
        self._end_is_unconfirmed = not self._end_is_certain
        if self._end_is_unconfirmed:
            self.tracker.set_signal("stale", "the turn may be over, or wait for an approval: telemetry does not say")
        self._clear_turn()

    def confirm_end(self) -> None:
        """Note that `notify` reported the end of the turn. Its last records may still be on their way."""
        if self.tracker.turn_id:
            self.tracker.end_turn()
            self._clear_turn()
            self.session.confirm_turn_end()
        else:
            self._credit_until = 0.0 if self._end_is_unconfirmed else self.session.now + CREDIT_S
            self.tracker.set_signal("live")
        self._end_is_unconfirmed = False

    def on_unseen(self) -> None:
        """Mark the signal as stale because the response has calls and no decision about them arrived."""
        if self.tracker.turn_id and not self.tracker.gates:
            self.tracker.set_signal("stale", "a call may wait for an approval: telemetry does not say")

    def on_quiet(self) -> None:
        """Mark the signal as stale because no record arrived for a while."""
        if self.tracker.turn_id and not self.tracker.gates:
            self.tracker.set_signal("stale", f"no telemetry for {QUIET_S:g} s")

    def on_watchdog(self) -> None:
        """Start the next request: all calls are answered, so the record that the model answers again was lost."""
        if not self.tracker.turn_id or self.tracker.has_running_calls():
            return
        self.tracker.start_request(self.session.model)
        if self._completed_in_tools:
            self._completed_in_tools = False
            self._end_turn_soon(is_certain=False)

    # --- tokens

    def _record_usage(self, record: Object, conversation: str) -> None:
        """Record the tokens of a response.

        Each response counts the whole conversation again as its input, so the difference is new. A smaller input means
        that the conversation began anew, for example after a compaction.
        """
        if self.session.hooks_lead:
            # Hooks count exactly.
            return
        counts, before = counts_in(record), self._tokens.get(conversation, NO_TOKENS)
        remember(self._tokens, conversation, counts)
        if counts[0] < before[0]:
            before = NO_TOKENS
        added = (counts[0] - before[0], max(counts[1] - before[1], 0), max(counts[2] - before[2], 0), counts[3])
        self.session.record_usage(added, self.session.child_paths.get(conversation, ()))
