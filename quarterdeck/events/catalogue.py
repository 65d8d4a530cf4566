"""The whole vocabulary in one list, by group: the union that is decoded, the names, and the page in docs/events.md.

001 prints its events under headings and so do we; an event belongs to exactly one group.
"""

from __future__ import annotations

from typing import Any, Union, cast

from quarterdeck.events import context, gate, message, session, tool, turn
from quarterdeck.events.base import Body

GROUPS: dict[str, tuple[type[Body], ...]] = {
    "session": (
        session.SessionOpened,
        session.SessionResumed,
        session.SessionSuspended,
        session.SessionArchived,
        session.SessionFailed,
        session.SessionRenamed,
        session.SessionMarked,
        session.SessionDeleted,
        session.OwnerChanged,
    ),
    "process": (
        session.ProcessStarting,
        session.ProcessError,
        session.ProcessExited,
        session.AgentReady,
        session.AgentEnded,
        session.StateChange,
        context.SignalChanged,
    ),
    "lifecycle of a turn": (
        turn.AgentStart,
        turn.AgentEnd,
        turn.AgentAbort,
        turn.AgentResumed,
        turn.PromptReceived,
        turn.PromptQueued,
        turn.PromptEdited,
        turn.PromptDropped,
        turn.PromptRejected,
        turn.DeliveryChanged,
        turn.TurnContinued,
        turn.TurnRetried,
        turn.TurnRestored,
        turn.TurnFailed,
        turn.CommandFailed,
    ),
    "streaming": (
        message.MessageStart,
        message.MessageDelta,
        message.ResponseComplete,
        message.MessageAborted,
        message.ThinkingStart,
        message.ThinkingDelta,
        message.StatusUpdate,
        message.TitleGenerated,
    ),
    "request": (
        turn.RequestStart,
        turn.StreamError,
        turn.StreamStalled,
        turn.Retry,
        turn.ContextOverflow,
    ),
    "tools": (
        tool.ToolCalls,
        tool.ToolCall,
        tool.ToolExecutionStart,
        tool.ToolExecutionOutput,
        tool.ToolExecutionEnd,
        tool.ToolExecutionMetrics,
        tool.ToolBlocked,
        tool.ToolKilled,
        tool.ToolSkippedForSteering,
        tool.ToolAttached,
        tool.ToolDetached,
        tool.ToolsUpdated,
        tool.ToolCallUnknown,
        tool.LoopDetected,
        tool.BashStart,
        tool.BashOutput,
        tool.BashEnd,
    ),
    "people": (
        gate.ApprovalRequired,
        gate.ApprovalResolved,
        gate.ToolApprovedAlways,
        gate.RuleRemoved,
        gate.AskUser,
        gate.UserResponded,
        gate.DialogRequired,
        gate.DialogResolved,
    ),
    "steering": (turn.SteeringReceived, turn.SteeringApplied),
    "compaction": (context.CompactStart, context.CompactEnd, context.BeforeCompact),
    "sub-agents and background": (
        turn.SubagentStart,
        turn.SubagentEnd,
        turn.SubAgentEvent,
        context.BackgroundStarted,
        context.BackgroundEnded,
    ),
    "model, plan and notices": (
        context.ModelSwitched,
        context.TodoChange,
        context.PlanGenerated,
        context.MemoryFlushed,
        tool.LargeResultOffloaded,
        context.ContentPolicyViolated,
        context.PluginEvent,
        context.PluginState,
        context.Intervention,
        context.Notice,
        context.ContextUsage,
        context.SettingChanged,
        context.Usage,
        context.ChangesUpdated,
        context.CheckpointSaved,
    ),
    "bookkeeping": (context.CommandReceipt, context.ViewRefolded),
}

TYPES: tuple[type[Body], ...] = tuple(kind for group in GROUPS.values() for kind in group)
#: name in the log → class, and back.
BY_NAME: dict[str, type[Body]] = {str(kind.__struct_config__.tag): kind for kind in TYPES}
NAMES: dict[type[Body], str] = {kind: name for name, kind in BY_NAME.items()}
#: What the decoder is made of. A union of a hundred types is data, so the type checker sees only its root.
UNION = cast(type[Body], Union[cast(Any, TYPES)])  # noqa: UP007

#: May be dropped from a log once the event that restates the whole is durable; no state may cite them as its cause.
DELTAS: frozenset[type[Body]] = frozenset(
    {message.MessageDelta, message.ThinkingDelta, tool.ToolExecutionOutput, tool.BashOutput}
)
