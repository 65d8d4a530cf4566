"""OTLP log records of a Codex that the user started: seed 003's rules, and what they cannot know.

003's diagram is `CODEX` in kernel/activity.py. The records that move it:

    codex.conversation_starts            the session is there
    codex.user_prompt                    thinking
    codex.tool_decision                  tool_use (approved), waiting_for_permission (ask_user)
    codex.tool_result                    the call ended; the state stays, tools linger until the model answers again
    response.created                     thinking; over a WebSocket there is none, there codex.websocket_request is it
    response.completed with tokens       thinking: idle, 200 ms later, if nothing of the above comes between
                                         tool_use: one of several, no end

Only a record that carries tokens is a completion: every HTTP response also gives a bare one, and a broken stream gives one
with an error. If the record that the model answers again was lost, tool_use would last for ever: when all calls are
answered and nothing comes for 5 s, it counts as seen (`watchdog`).

What the records never say is that a person is asked, that a turn was interrupted, or that Codex gave up. The completion
before an approval looks like the last one of a turn, and that is where 003's rule would show an idle agent that waits for
us. So `signal` says how much a state is worth:

- Over HTTP each event of the stream is a record, so we know whether the response holds calls. If it does, the turn goes
  on: the state stays thinking, and after the debounce the signal is stale, because the call may wait for a person.
- A completion without calls is the end, and idle is told by the rule with a live signal; unless the context was full
  before it, because then it may have been a compaction.
- Over a WebSocket nothing but the completion is seen. Idle is told by the rule, and the signal is stale: it may be the
  end, and it may be a wait. `notify` or a Stop hook confirms an end, and then the signal is live.
- In an open turn with no record for 5 s the signal is stale: a tool may run, or the turn may be interrupted.
- A request that failed and was not repeated for some seconds was the last one: the turn failed.

Records come late, up to a second. One that was made before a hook or notify last told something is not news: it moves
nothing, though what it says of a call or of tokens still counts. Where hooks tell every request to the model they lead,
and all records are read like that. Everything goes by conversation: sub-agents and title threads have their own, and
never move the state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from quarterdeck import events as ev
from quarterdeck.events import Json
from quarterdeck.harness.base import Object, int_of, object_of, text_of
from quarterdeck.harness.codex import names
from quarterdeck.harness.codex.hooks import GIVE_UP_S, Hooks
from quarterdeck.harness.codex.ignored import RECORDS
from quarterdeck.harness.codex.records import (
    Failure,
    arguments_in,
    error_in,
    exit_code_in,
    has_tokens,
    made_at_of,
    plain_error,
    resets_at,
    tool_in,
)
from quarterdeck.harness.codex.session import NOTHING, Counts, Desk, counts_in, remember
from quarterdeck.harness.failures import failure_kind
from quarterdeck.kernel.activity import WAITING

_Reader: TypeAlias = Callable[["Telemetry", Object], None]

IDLE_S = 0.2
WATCHDOG_S = 5.0
QUIET_S = 5.0
#: A notify that came before the last records of its turn counts for so long.
CREDIT_S = 2.0

#: Kinds of stream events that mean: the response holds one more call.
_CALL_KINDS = frozenset({"response.function_call_arguments.done", "response.custom_tool_call_input.done"})
_REDACTED = "[REDACTED]"


class Telemetry:
    """One reader for each record, named after it."""

    def __init__(self, desk: Desk, hooks: Hooks) -> None:
        self.desk = desk
        self.hooks = hooks
        self.tracker = desk.tracker
        #: calls that the response under way holds; None when its stream is not seen
        self._calls: int | None = None
        self._completed_in_tools = False
        self._sure = False
        self._credit_until = 0.0
        self._unconfirmed = False
        self._compacts_at = 0
        self._may_compact = False
        self._started = False
        #: the records' clock minus ours, as far as is known
        self._offset = float("-inf")
        self._tokens: dict[str, Counts] = {}
        self.failure: Failure | None = None

    def reset(self) -> None:
        """Another process."""
        self._forget_turn()
        self.failure = None
        self._tokens.clear()
        self._compacts_at = 0

    def restore(self) -> None:
        """In the middle of a session that has started."""
        self._started = bool(self.desk.own)

    def _forget_turn(self) -> None:
        self._calls, self._completed_in_tools, self._sure = None, False, False

    # --- reading

    def read(self, data: Json) -> bool:
        found = object_of(data, "attributes")
        name, conversation = found.get("event.name"), found.get("conversation.id")
        if not isinstance(name, str):
            return name is None  # two records of no conversation, without attributes
        if name == "codex.agent_communication":
            self.agent_communication(found)
            return True
        reader = _READERS.get(name)
        if reader is not None and isinstance(conversation, str) and conversation:
            self._read(reader, found, conversation)
        return reader is not None or name in RECORDS

    def _read(self, reader: _Reader, found: Object, conversation: str) -> None:
        desk = self.desk
        if desk.lead:
            if conversation == desk.own:
                self.add(found)
            return
        if conversation != (desk.own or conversation):
            self._others(found, conversation)
            return
        is_old = self._is_old(found)
        if is_old and (self.tracker.has_exited or conversation in desk.over):
            return
        if not desk.own:
            self._known(found)
        if is_old or desk.hooks_lead:
            self._behind(found)
            return
        reader(self, found)
        if self.tracker.turn_id:
            desk.set_timer("quiet", QUIET_S)

    def _is_old(self, found: Object) -> bool:
        """Whether the record was made before hooks or notify told what came after it. The clock of the records is only
        known through them: a record is never made after it came."""
        made_at = made_at_of(found)
        if made_at is None:
            return False
        self._offset = max(self._offset, made_at - self.desk.now)
        return made_at - self._offset <= self.desk.told_at

    def _behind(self, found: Object) -> None:
        """Not news, or another's to tell: what it says of calls, tokens and the session is still worth telling."""
        name = found.get("event.name")
        if name == "codex.conversation_starts":
            if not self.tracker.turn_id:
                self._restarted()
            self._known(found)
        elif name == "codex.tool_decision":
            self._answered(found)
        elif name == "codex.tool_result":
            self._result(found)
        elif name == "codex.user_prompt" and self.tracker.turn_id:
            self._prompt(found)
        elif has_tokens(found):
            self._count(found, self.desk.own)

    def _others(self, found: Object, conversation: str) -> None:
        """A sub-agent's tokens are counted; a stranger's are not ours."""
        if conversation in self.desk.children and has_tokens(found):
            self._count(found, conversation)

    def add(self, found: Object) -> None:
        """What a stream of the agent itself never says: calls without an item, the prompt of `codex exec`."""
        name = found.get("event.name")
        if name == "codex.tool_result" and self.desk.lead == "app":
            self._result(found)
        elif name == "codex.user_prompt" and self.desk.lead == "exec" and self.tracker.turn_id:
            self._prompt(found)

    def _seen(self) -> None:
        """A record that says what Codex does now."""
        self.tracker.set_signal("live")

    # --- the session and its prompts

    def conversation_starts(self, found: Object) -> None:
        """A start, or a resume by another process: then what the old one had open is over."""
        self._restarted()
        self._known(found)

    def _restarted(self) -> None:
        if self._started:
            for name, call in list(self.tracker.calls.items()):
                self.desk.end_call(name, call.name, False, "the process was restarted", call.path)
            self.tracker.abort_turn("restarted")

    def _known(self, found: Object) -> None:
        desk = self.desk
        self._started = self._started or found.get("event.name") == "codex.conversation_starts"
        desk.bind(text_of(found, "conversation.id"), text_of(found, "model"), text_of(found, "app.version"))
        desk.note_settings(
            names.mode_of(found.get("approval_policy"), found.get("sandbox_policy")), text_of(found, "reasoning_effort")
        )
        self._compacts_at = int_of(found, "auto_compact_token_limit") or self._compacts_at

    def user_prompt(self, found: Object) -> None:
        """A prompt, or a text for the running turn that the model reads now: no call is under way any more."""
        self._cancel()
        self._seen()
        self.desk.suppressed_until = 0.0
        failure = self.failure
        if failure is not None and failure.kind == "usage_limit" and not self.tracker.turn_id:
            self._fail_again(found, failure)
            return
        if any(call.running and not call.path for call in self.tracker.calls.values()):
            self.tracker.abort_turn(
                "interrupted"
            )  # a text in the turn is read between calls, so this one is the next turn's
        self.tracker.start_turn()
        self._prompt(found)
        self.desk.in_request = False
        self._asked_again()

    def _prompt(self, found: Object) -> None:
        text = self._new_prompt(found)
        if text:
            self.tracker.record_prompt(text)

    def _new_prompt(self, found: Object) -> str:
        """The prompt, unless somebody told it already. What it says may be kept from us."""
        text = text_of(found, "prompt")
        if text == _REDACTED:
            if self.desk.hooks_seen or self.desk.lead:
                return ""
            text = f"(a prompt of {int_of(found, 'prompt_length')} characters)"
        return text if self.desk.is_new_prompt("otlp", text) else ""

    def _fail_again(self, found: Object, failure: Failure) -> None:
        """A prompt while the limit holds fails at once: no turn, no flash of activity (U-082)."""
        text = self._new_prompt(found)
        if text:
            self.tracker.emit(ev.PromptReceived(text=text))
        self.tracker.emit(ev.TurnFailed(kind=failure.kind, message=failure.message, resets_at=failure.resets_at))

    # --- requests and responses

    def _asked_again(self) -> None:
        """The model generates: calls whose result was lost are over."""
        self._calls, self._completed_in_tools = None, False
        for name, call in list(self.tracker.calls.items()):
            if not call.path and name not in self.tracker.background:
                self.desk.end_call(name, call.name)
        if not self.desk.in_request or self.tracker.tools_linger:
            self.desk.in_request = True
            self.tracker.start_request(self.desk.model)

    def response_created(self, _found: Object) -> None:
        if self._suppressed():
            return
        self._cancel()
        self._seen()
        self._asked_again()
        self._calls = 0

    def websocket_request(self, _found: Object) -> None:
        """A request was sent. One before any prompt only warms the connection up."""
        if self.tracker.turn_id and not self._suppressed():
            self._cancel()
            self._seen()
            self._asked_again()

    def api_request(self, found: Object) -> None:
        """The answer's headers came: well, or with a status that fails the attempt."""
        status, message = int_of(found, "http.response.status_code"), text_of(found, "error.message")
        if self.tracker.turn_id and (status >= 400 or (message and not status)):
            self._failed(found, message or f"http {status}", status)

    def sse_event(self, found: Object) -> None:
        kind = text_of(found, "event.kind")
        reader = _KINDS.get(kind)
        if reader is not None:
            reader(self, found)
        elif kind in _CALL_KINDS and self._calls is not None:
            self._calls += 1

    def response_completed(self, found: Object) -> None:
        if has_tokens(found):
            self._completed(found)
        elif error_in(found):
            self.response_broken(found)
        elif "input_token_count" in found and self.failure is not None and self.tracker.turn_id:
            self.desk.set_timer("give_up", GIVE_UP_S)  # no tokens were used: what failed before still fails

    def _completed(self, found: Object) -> None:
        if not self.tracker.turn_id:
            if self._suppressed():
                self._count(found, self.desk.own)
            return
        counts = counts_in(found)
        self._count(found, self.desk.own)
        self.failure, self.desk.in_request = None, False
        self.desk.clear_timer("give_up")
        self._seen()
        doubtful, self._may_compact = self._may_compact, 0 < self._compacts_at <= counts[0] + counts[3]
        calls, self._calls = self._calls, None
        if self.tracker.tools_linger or self.tracker.has_running_calls():
            self._completed_in_tools = True
        elif calls:
            self.desk.set_timer("unseen", IDLE_S)
        elif not self.tracker.gates:
            self._ends(sure=calls is not None and not doubtful)

    def response_broken(self, found: Object) -> None:
        """The stream ended with an error."""
        if self.tracker.turn_id:
            self._failed(found, error_in(found) or "the response was not completed", 0)

    # --- failures

    def _failed(self, found: Object, message: str, status: int) -> None:
        self.desk.in_request = False
        told = plain_error(message)
        failure = Failure(failure_kind(message, status), told, resets_at(message, made_at_of(found)))
        self.failure = failure
        self._cancel()
        if failure.is_final:
            self._give_up()
            return
        attempt = int_of(found, "attempt") + 1
        self.tracker.emit(ev.Retry(attempt=attempt, reason=told, turn_id=self.tracker.turn_id or None))
        self.desk.set_timer("give_up", GIVE_UP_S)

    def _give_up(self) -> None:
        failure = self.failure
        if failure is not None and self.tracker.turn_id:
            self.tracker.fail_turn(failure.kind, failure.message, failure.resets_at)
            self._forget_turn()
            self.desk.turn_over(0.0)

    def on_give_up(self) -> None:
        self._give_up()

    # --- calls

    def tool_decision(self, found: Object) -> None:
        """How a call was decided. `ask_user` is 003's; Codex tells a decision only when it was made."""
        decision = text_of(found, "decision")
        call_id, tool = text_of(found, "call_id"), tool_in(found)
        if self._suppressed():
            return
        self._cancel()
        self._seen()
        if decision == "ask_user":
            self.tracker.open_approval(call_id, tool, call_id=call_id)
        elif decision.startswith("approved"):
            self.tracker.start_turn()
            self.tracker.tools_linger = True
            self._answered(found)
            self.desk.start_call(call_id, tool)
        elif self.tracker.activity == WAITING:
            self.tracker.tools_linger = True
            self._answered(found)
        elif self.tracker.turn_id and call_id not in self.tracker.calls:
            self.tracker.open_call(call_id, tool)

    def _answered(self, found: Object) -> None:
        """The decision answers what a person was asked, if anybody was. After a refusal the call's failed end follows at
        once; until then it is tool_use (003)."""
        call_id, decision = text_of(found, "call_id"), text_of(found, "decision")
        by = "user" if text_of(found, "source") == "User" else "rule"
        if not self.hooks.decision_of(call_id, decision.startswith("approved"), decision, by):
            self.tracker.resolve_approval(call_id, names.decision_in(decision)[1].status, by, reason=decision)

    def tool_result(self, found: Object) -> None:
        """A call ended. The state stays as it is, and it is not the end of the turn: the model is asked again."""
        self.desk.clear_timer("idle")
        self.desk.clear_timer("unseen")
        if self.tracker.turn_id:
            self._seen()
        self._result(found)
        if self.tracker.tools_linger and not self.tracker.has_running_calls():
            self.desk.set_timer("watchdog", WATCHDOG_S)

    def _result(self, found: Object) -> None:
        call_id, tool, output = text_of(found, "call_id"), tool_in(found), text_of(found, "output")
        ok = text_of(found, "success") != "false" and exit_code_in(output) == 0
        if self.desk.lead:
            self.desk.add_call(call_id, tool, arguments_in(found), ok, output)
        elif call_id in self.tracker.calls:
            self.desk.end_call(call_id, tool, ok, output)
        else:
            self.desk.add_call(call_id, tool, arguments_in(found), ok, output)

    # --- sub-agents

    def agent_communication(self, found: Object) -> None:
        """A task that is sent to a sub-agent makes it work; its result is its end."""
        sender, receiver = text_of(found, "sender_thread_id"), text_of(found, "receiver_thread_id")
        desk = self.desk
        if desk.lead or not sender or not receiver:
            return
        if text_of(found, "kind") == "result":
            desk.tracker.end_background(sender, True)
        elif sender == desk.own and receiver not in desk.tracker.background:
            remember(desk.children, receiver, (receiver,))
            self.tracker.emit(ev.SubagentStart(child_sid=receiver, description=text_of(found, "content")[:60]))
            desk.tracker.start_background("subagent", receiver)

    # --- the end of a turn

    def _suppressed(self) -> bool:
        """Just after an interrupt what comes is still of the turn that was interrupted (3-075)."""
        return self.desk.now < self.desk.suppressed_until and not self.tracker.turn_id

    def _cancel(self) -> None:
        for name in ("idle", "unseen", "watchdog"):
            self.desk.clear_timer(name)

    def _ends(self, sure: bool) -> None:
        """The turn ends after the debounce; at once when notify said so already."""
        self._sure = sure
        if self.desk.now < self._credit_until:
            self._credit_until, self._sure = 0.0, True
            self.on_idle()
        else:
            self.desk.set_timer("idle", IDLE_S)

    def on_idle(self) -> None:
        if self.desk.lead:
            return
        self.tracker.end_turn()
        self.desk.clear_timer("quiet")
        self._unconfirmed = not self._sure
        if self._unconfirmed:
            self.tracker.set_signal("stale", "the turn may be over, or wait for an approval: telemetry does not say")
        self._forget_turn()

    def confirmed(self) -> None:
        """`notify` says that the turn is complete; the last records of it may still be on their way."""
        if self.tracker.turn_id:
            self.tracker.end_turn()
            self._forget_turn()
            self.desk.turn_over()
        else:
            self._credit_until = 0.0 if self._unconfirmed else self.desk.now + CREDIT_S
            self.tracker.set_signal("live")
        self._unconfirmed = False

    def on_unseen(self) -> None:
        """The response holds calls and nobody decided them yet."""
        if self.tracker.turn_id and not self.tracker.gates:
            self.tracker.set_signal("stale", "a call may wait for an approval: telemetry does not say")

    def on_quiet(self) -> None:
        if self.tracker.turn_id and not self.tracker.gates:
            self.tracker.set_signal("stale", f"no telemetry for {QUIET_S:g} s")

    def on_watchdog(self) -> None:
        """All calls are answered: the record that the model answers again was lost."""
        if not self.tracker.turn_id or self.tracker.has_running_calls():
            return
        self.tracker.start_request(self.desk.model)
        if self._completed_in_tools:
            self._completed_in_tools = False
            self._ends(sure=False)

    # --- tokens

    def _count(self, found: Object, conversation: str) -> None:
        """Each response counts the whole conversation again as its input: what is new is the difference. A smaller count
        begins anew."""
        if self.desk.hooks_lead:
            return  # they count exactly
        now, before = counts_in(found), self._tokens.get(conversation, NOTHING)
        remember(self._tokens, conversation, now)
        if now[0] < before[0]:
            before = NOTHING
        grown = (now[0] - before[0], max(now[1] - before[1], 0), max(now[2] - before[2], 0), now[3])
        self.desk.count(grown, self.desk.children.get(conversation, ()))


#: Records by their name.
_READERS: dict[str, _Reader] = {
    "codex.conversation_starts": Telemetry.conversation_starts,
    "codex.user_prompt": Telemetry.user_prompt,
    "codex.api_request": Telemetry.api_request,
    "codex.websocket_request": Telemetry.websocket_request,
    "codex.sse_event": Telemetry.sse_event,
    "codex.tool_decision": Telemetry.tool_decision,
    "codex.tool_result": Telemetry.tool_result,
}


#: Events of the response stream by their kind.
_KINDS: dict[str, _Reader] = {
    "response.created": Telemetry.response_created,
    "response.completed": Telemetry.response_completed,
    "response.failed": Telemetry.response_broken,
    "response.incomplete": Telemetry.response_broken,
}
