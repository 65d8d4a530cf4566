"""Define the body of every event, grouped by what the event is about.

The docstring of a body is its description in docs/events.md. catalogue.py lists all bodies; a new one must be added
there and to the imports of `__init__.py`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from quarterdeck.events.base import (
    Block,
    Body,
    GateRequest,
    HistoryMessage,
    Image,
    Json,
    Option,
    Plan,
    Question,
    Repo,
    Todo,
    TokenUsage,
    renamed,
)

ActivityName: TypeAlias = Literal["initialized", "idle", "active", "exited"]
ActivitySub: TypeAlias = Literal["thinking", "tool_use", "waiting_for_permission", "compacting"]
FailureKind: TypeAlias = Literal[
    "api", "usage_limit", "rate_limit", "auth", "payment", "invalid_model", "network", "turn_limit", "internal"
]
GateStatus: TypeAlias = Literal[
    "approved", "rejected", "timeout", "answered_elsewhere", "withdrawn", "stale", "superseded"
]


# ----------------------------------------------------------------------------------------------- session


class SessionOpened(Body):
    """A session was created. With a prompt its first turn starts; without one it waits for a message."""

    agent: str
    cwd: str = ""
    prompt: str | None = None
    message_id: str = ""
    images: tuple[Image, ...] = ()
    name: str = ""
    model: str = ""
    mode: str = ""
    repo: Repo | None = None
    owner: Literal["deck", "terminal"] = "deck"
    continues: str = ""
    #: Extra arguments for the agent's command line.
    arguments: tuple[str, ...] = ()
    #: Whether the creator supplied an environment for the agent. Its values are never stored.
    own_environment: bool = False


class SessionResumed(Body):
    """A suspended session is active again."""

    by: str = ""


class SessionSuspended(Body):
    """The server stopped, or found this session without its process after a crash."""

    reason: str = ""


class SessionArchived(Body):
    """A user archived the session. `end_reason` is `cancelled` if they cancelled it."""

    end_reason: str = "archived"


class SessionFailed(Body):
    """A fatal error occurred: the session can never be continued."""

    message: str = ""
    kind: str = "internal"


class SessionRenamed(Body):
    """The session has a new name."""

    name: str


class SessionMarked(Body):
    """A user pinned or snoozed the session (0 ends a snooze), or read it up to an index. Omitted fields don't change."""

    pinned: bool | None = None
    snoozed_until: int | None = None
    read_index: int | None = None


class SessionDeleted(Body):
    """The session was deleted. Published only on the stream of all sessions, after every other event of the session."""


class OwnerChanged(Body):
    """Another deck process, or a terminal, owns this session from here on."""

    epoch: int
    owner: Literal["deck", "terminal"] | None = None


# ----------------------------------------------------------------------------------------------- process


class ProcessStarting(Body):
    """An agent process is being started. Its pid, start time and nonce identify it."""

    pid: int | None = None
    started_at: int | None = None
    nonce: str = ""


class ProcessError(Body):
    """The process couldn't be started, or reported a failure."""

    message: str = ""


class ProcessExited(Body):
    """The process exited. `asked` is set if the deck stopped it: such an exit is never a failure."""

    code: int | None = None
    signal: str | None = None
    asked: bool = False


class AgentReady(Body):
    """The agent is ready and has a session of its own. Repeated when that session is replaced (/clear)."""

    native_session_id: str = ""
    model: str = ""
    version: str = ""
    capabilities: tuple[str, ...] = ()
    resumable: bool | None = None


class AgentEnded(Body):
    """The agent reported the end of its session. Its process may still run."""

    reason: str = ""


class StateChange(Body):
    """The agent's activity changed. The translator or the engine has already debounced it."""

    state: ActivityName
    sub: ActivitySub | None = None


class SignalChanged(Body):
    """The quality of the evidence changed: live, stale (old) or lost (its source is unavailable)."""

    signal: Literal["live", "stale", "lost"]
    reason: str = ""


# ------------------------------------------------------------------------------------ prompts and turns


class PromptReceived(Body):
    """The agent received a prompt from a user, or from itself (a finished background task resumes the agent)."""

    text: str
    message_id: str = ""
    source: Literal["user", "agent"] = "user"
    images: tuple[Image, ...] = ()
    new_task: bool = False


class PromptQueued(Body):
    """A message waits until the agent can read it. `starts`: it starts the next turn, so the session is busy already."""

    text: str
    message_id: str = ""
    images: tuple[Image, ...] = ()
    starts: bool = False
    new_task: bool = False


class PromptEdited(Body):
    """A user changed a queued message."""

    message_id: str
    text: str


class PromptDropped(Body):
    """A queued message was removed from the queue and returned to the caller."""

    text: str
    message_id: str = ""


class PromptRejected(Body):
    """A plugin rejected the prompt."""

    reason: str
    text: str = ""
    message_id: str = ""


class DeliveryChanged(Body):
    """The delivery status of a message changed. An `unknown` message is sent again only if a user requests it."""

    message_id: str
    status: Literal["queued", "sending", "delivered", "failed", "unknown"]
    reason: str = ""


class AgentStart(Body):
    """A turn started. Exactly one agent_end or agent_abort closes it."""


class AgentEnd(Body):
    """The turn finished by itself."""

    outcome: Literal["completed", "failed"] = "completed"
    usage: TokenUsage | None = None
    messages: tuple[Json, ...] = ()


class AgentAbort(Body):
    """The turn was aborted. Also written when no turn was open, so that observers can reconcile."""

    reason: str | None = None


class AgentResumed(Body):
    """A held turn continues."""

    trigger: Literal["tool_approved", "tool_rejected", "tool_approval_timeout", "user_respond", "steering"]


class TurnContinued(Body):
    """A user resumed the turn."""


class TurnRetried(Body):
    """A user retried the failed turn."""


class TurnRestored(Body):
    """The agent loaded an earlier conversation. Its last turn was finished, or can be resumed."""

    finished: bool = False
    history: tuple[HistoryMessage, ...] = ()


class TurnFailed(Body):
    """The turn can't continue. An agent_end with outcome failed follows. `resets_at` is set only if it is known."""

    kind: FailureKind = "api"
    message: str = ""
    resets_at: int | None = None


class CommandFailed(Body):
    """The agent refused a command of the deck."""

    command_id: str = ""
    message: str = ""


# --------------------------------------------------------------------------------------------- streaming


class MessageStart(Body):
    """A text block of a message starts. Always precedes the block's first delta."""

    message_id: str
    block: int = 0


class MessageDelta(Body):
    """A text block grew. May be dropped from the log once response_complete restates the block."""

    delta: str
    message_id: str
    block: int = 0


class ThinkingStart(Body):
    """A reasoning block starts. Always precedes the block's first delta."""

    message_id: str
    block: int = 0


class ThinkingDelta(Body):
    """A reasoning block grew. May be dropped from the log once response_complete restates the block."""

    delta: str
    message_id: str
    block: int = 0


class ResponseComplete(Body):
    """One complete reply of the model: text, reasoning and tool calls, without the inline tags."""

    message_id: str
    blocks: tuple[Block, ...] = ()
    stop_reason: str = ""


class MessageAborted(Body):
    """The reply was interrupted. With `keep`, the part received so far stays in the conversation, restated in `blocks`."""

    message_id: str
    keep: bool = False
    blocks: tuple[Block, ...] = ()


class StatusUpdate(Body):
    """The agent described what it is doing, in an inline status tag."""

    text: str


class TitleGenerated(Body):
    """A title for the session, at most 60 characters."""

    title: str


# ----------------------------------------------------------------------------------------------- request


class RequestStart(Body):
    """A request is sent to the model."""

    model: str = ""
    messages: int | None = None


class StreamError(Body):
    """The model's stream broke. Not a failure yet: a retry may follow."""

    reason: str = ""


class StreamStalled(Body):
    """No chunk arrived for longer than the stall limit."""

    elapsed_s: float = 0


class Retry(Body):
    """The request is retried after a delay."""

    attempt: int
    delay_ms: int = 0
    reason: str = ""


class ContextOverflow(Body):
    """The provider reported that the context is too long. Compaction may solve it."""

    reason: str = ""


# ------------------------------------------------------------------------------------------------- tools


class ToolCalls(Body):
    """The reply contains this many tool calls."""

    count: int


class ToolCall(Body):
    """A tool call was announced. With `partial`, its arguments are still streaming."""

    name: str
    call_id: str
    args: Json = None
    partial: bool = False
    message_id: str = ""
    block: int = 0


class ToolExecutionStart(Body):
    """A call started to run."""

    name: str
    call_id: str
    args: Json = None


class ToolExecutionOutput(Body):
    """A running call produced output. May be dropped from the log once tool_execution_end restates it."""

    call_id: str
    delta: str
    stream: Literal["stdout", "stderr"] = "stdout"


class ToolExecutionEnd(Body):
    """A call ended, with its complete result. A result over the size limit is stored at `path`. `told` is the text sent
    to the model if that isn't the result."""

    name: str
    call_id: str
    ok: bool = True
    result: Json = None
    path: str = ""
    told: str = ""
    images: tuple[Image, ...] = ()


class ToolExecutionMetrics(Body):
    """How long a call took."""

    name: str
    call_id: str
    started_at_ms: int
    ended_at_ms: int | None = None
    duration_ms: int | None = None


class ToolBlocked(Body):
    """A plugin or a rule prevented the call."""

    name: str
    call_id: str
    reason: str = ""


class ToolKilled(Body):
    """An abort ended the call."""

    name: str
    call_id: str
    reason: str = ""


class ToolSkippedForSteering(Body):
    """The call was skipped because a steering message arrived."""

    name: str
    call_id: str
    reason: str = ""


class ToolCallUnknown(Body):
    """The model called a tool that doesn't exist."""

    name: str
    call_id: str


class ToolAttached(Body):
    """A tool was added at run time."""

    name: str


class ToolDetached(Body):
    """A tool was removed at run time."""

    name: str


class ToolsUpdated(Body):
    """Several tools were added or removed in one step."""

    attached: tuple[str, ...] = ()
    detached: tuple[str, ...] = ()


class LoopDetected(Body):
    """The agent repeats the same calls, or edits the same file repeatedly. `loop` is the type in document 001."""

    loop: Literal["repeat_pattern", "file_loop_warn", "file_loop_abort"]
    detail: Json = None


class LargeResultOffloaded(Body):
    """A result too large for the conversation was stored in full at `path`."""

    tool: str
    call_id: str
    path: str
    bytes: int


class BashStart(Body):
    """A shell command of the user started."""

    bash_id: str
    command: str


class BashOutput(Body):
    """The user's command produced output. May be dropped from the log once bash_end restates it."""

    bash_id: str
    delta: str


class BashEnd(Body):
    """The user's command ended, with its complete output. Without an exit code it was interrupted."""

    bash_id: str
    exit_code: int | None = None
    output: str = ""
    command: str = ""


# ------------------------------------------------------------------------------------------------- gates


class ApprovalRequired(Body):
    """A call waits for a user's approval."""

    gate: GateRequest


class ApprovalResolved(Body):
    """An approval was decided. `by` names who or what decided, `rule` the rule if one did."""

    status: GateStatus
    gate_id: str = ""
    ref: str = ""
    by: str = ""
    rule: str = ""
    reason: str = ""
    gate: GateRequest | None = None


class ToolApprovedAlways(Body):
    """Calls of this family need no approval from here on."""

    tool: str
    command_family: str = ""
    scope: Literal["session", "repo", "user"] = "session"
    rule: str = ""


class RuleRemoved(Body):
    """A rule of this session was removed. `rule` is its text, as in `tool_approved_always`."""

    rule: str


class AskUser(Body):
    """The agent asks a question. If it asks several at once, they are in `questions`."""

    question: str
    ref: str = ""
    options: tuple[Option, ...] = ()
    gate_id: str = ""
    questions: tuple[Question, ...] = ()
    call_id: str = ""
    deadline: int | None = None


class UserResponded(Body):
    """A question was answered, or closed without an answer as `status` says."""

    response: Json = None
    ref: str = ""
    gate_id: str = ""
    message_id: str = ""
    by: str = ""
    status: Literal["answered", "timeout", "answered_elsewhere", "withdrawn", "stale", "superseded"] = "answered"


class DialogRequired(Body):
    """An extension, or the agent's own interface, requests a choice, a confirmation or a text."""

    method: Literal["select", "confirm", "input", "editor"]
    title: str = ""
    ref: str = ""
    message: str = ""
    options: tuple[Option, ...] = ()
    gate_id: str = ""
    deadline: int | None = None
    prefill: str = ""


class DialogResolved(Body):
    """A dialog was closed, with a value or without one."""

    value: Json = None
    ref: str = ""
    gate_id: str = ""
    by: str = ""
    status: Literal["answered", "cancelled", "timeout", "answered_elsewhere", "withdrawn", "stale", "superseded"] = (
        "answered"
    )


# ---------------------------------------------------------------------------------------------- steering


class SteeringReceived(Body):
    """A message for the running turn arrived. `prompted`: no turn was open, so it became a prompt."""

    ref: str
    text: str = ""
    queued_at: int | None = None
    status: Literal["queued", "prompted", "rejected_full", "rejected"] = "queued"
    images: tuple[Image, ...] = ()


class SteeringApplied(Body):
    """These steering messages were merged into the next request, in this order."""

    refs: tuple[str, ...]
    count: int = 0


# -------------------------------------------------------------------------------------------- compaction


class CompactStart(Body):
    """The agent started to compact the conversation."""

    trigger: Literal["manual", "auto"] | None = None


class CompactEnd(Body):
    """The conversation was compacted, or, if `ok` is false, compaction failed."""

    removed_count: int = 0
    ok: bool = True
    summary: str = ""


class BeforeCompact(Body):
    """Compaction is about to start. `messages` is the number of messages in the conversation."""

    messages: int = 0


# ----------------------------------------------------------------------------- sub-agents and background


class SubagentStart(Body):
    """A sub-agent started. Its own events follow in this log with an agent_path."""

    child_sid: str
    description: str = ""
    call_id: str = ""


class SubagentEnd(Body):
    """A sub-agent finished."""

    child_sid: str
    result: Json = None
    ok: bool = True


class SubAgentEvent(Body):
    """A sub-agent's event, as sent to a subscriber that requests this form. Never stored."""

    call_id: str
    child_sid: str
    event: Json


class BackgroundStarted(Body):
    """Work that outlives the turn started: a shell or a sub-agent."""

    kind: Literal["shell", "subagent"]
    id: str
    title: str = ""


class BackgroundEnded(Body):
    """Background work ended."""

    kind: Literal["shell", "subagent"]
    id: str
    title: str = ""
    ok: bool | None = None


# ------------------------------------------------------------------------------ model, plan and notices


class ModelSwitched(Body):
    """The next turn uses another model."""

    to: str
    from_: str = renamed("from", "")
    provider_opts_changed: bool = False


class TodoChange(Body):
    """The agent's complete todo list."""

    todos: tuple[Todo, ...] = ()


class PlanGenerated(Body):
    """The agent's complete plan."""

    plan: Plan


class MemoryFlushed(Body):
    """Facts were written to the memory file."""

    facts: tuple[str, ...] = ()
    count: int = 0


class ContentPolicyViolated(Body):
    """A content policy was triggered."""

    summary: str
    triggered_policies: tuple[str, ...] = ()


class PluginEvent(Body):
    """An event that a plugin defines itself."""

    name: str
    payload: Json = None


class PluginState(Body):
    """The complete state of a plugin of the built-in agent. The plugin receives it when the session is resumed."""

    name: str
    state: Json = None


class Intervention(Body):
    """A plugin added a message to the conversation."""

    prompt: str


class Notice(Body):
    """A message for the user. Errors of extensions and plugins are notices of level error."""

    text: str
    level: Literal["info", "warning", "error"] = "info"
    source: str = ""


class ContextUsage(Body):
    """How full the model's context is."""

    tokens: int | None = None
    limit: int | None = None
    percent: float | None = None


class SettingChanged(Body):
    """A setting of the session changed. Omitted fields don't change."""

    auto_approve: bool | None = None
    mode: str | None = None
    thinking: str | None = None
    model: str | None = None


class Usage(Body):
    """Tokens of one message. A second event for the same message replaces the first; it doesn't add to it."""

    tokens: TokenUsage
    message_id: str = ""
    model: str = ""
    billing: Literal["metered", "plan", "unknown"] = "unknown"


class ChangesUpdated(Body):
    """What the session has changed in its repository so far."""

    files: int = 0
    added: int = 0
    removed: int = 0


class CheckpointSaved(Body):
    """A checkpoint of the work was saved. Internal; not shown."""

    checkpoint_id: str = ""


# ------------------------------------------------------------------------------------------- bookkeeping


class CommandReceipt(Body):
    """The answer to a client's command, stored with the command's events so that a repeated key gets the same answer."""

    client_id: str
    command: str = ""
    fingerprint: str = ""
    answer: Json = None


class ViewRefolded(Body):
    """A new release folds this session to a different state: its view changed without a new event."""

    to: int
    from_: int = renamed("from", 0)
    changed: tuple[str, ...] = ()
