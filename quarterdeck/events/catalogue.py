"""List every event by group: the source of the decoder's union, the event names and docs/events.md.

The groups follow the headings of document 001. Each event belongs to exactly one group.
"""

from __future__ import annotations

from typing import Any, Union, cast

from quarterdeck.events import bodies
from quarterdeck.events.base import Body

GROUPS: dict[str, tuple[type[Body], ...]] = {
    "session": (
        bodies.SessionOpened,
        bodies.SessionResumed,
        bodies.SessionSuspended,
        bodies.SessionArchived,
        bodies.SessionFailed,
        bodies.SessionRenamed,
        bodies.SessionMarked,
        bodies.SessionDeleted,
        bodies.OwnerChanged,
    ),
    "process": (
        bodies.ProcessStarting,
        bodies.ProcessError,
        bodies.ProcessExited,
        bodies.AgentReady,
        bodies.AgentEnded,
        bodies.StateChange,
        bodies.SignalChanged,
    ),
    "lifecycle of a turn": (
        bodies.AgentStart,
        bodies.AgentEnd,
        bodies.AgentAbort,
        bodies.AgentResumed,
        bodies.PromptReceived,
        bodies.PromptQueued,
        bodies.PromptEdited,
        bodies.PromptDropped,
        bodies.PromptRejected,
        bodies.DeliveryChanged,
        bodies.TurnContinued,
        bodies.TurnRetried,
        bodies.TurnRestored,
        bodies.TurnFailed,
        bodies.CommandFailed,
    ),
    "streaming": (
        bodies.MessageStart,
        bodies.MessageDelta,
        bodies.ResponseComplete,
        bodies.MessageAborted,
        bodies.ThinkingStart,
        bodies.ThinkingDelta,
        bodies.StatusUpdate,
        bodies.TitleGenerated,
    ),
    "request": (
        bodies.RequestStart,
        bodies.StreamError,
        bodies.StreamStalled,
        bodies.Retry,
        bodies.ContextOverflow,
    ),
    "tools": (
        bodies.ToolCalls,
        bodies.ToolCall,
        bodies.ToolExecutionStart,
        bodies.ToolExecutionOutput,
        bodies.ToolExecutionEnd,
        bodies.ToolExecutionMetrics,
        bodies.ToolBlocked,
        bodies.ToolKilled,
        bodies.ToolSkippedForSteering,
        bodies.ToolAttached,
        bodies.ToolDetached,
        bodies.ToolsUpdated,
        bodies.ToolCallUnknown,
        bodies.LoopDetected,
        bodies.BashStart,
        bodies.BashOutput,
        bodies.BashEnd,
    ),
    "people": (
        bodies.ApprovalRequired,
        bodies.ApprovalResolved,
        bodies.ToolApprovedAlways,
        bodies.RuleRemoved,
        bodies.AskUser,
        bodies.UserResponded,
        bodies.DialogRequired,
        bodies.DialogResolved,
    ),
    "steering": (bodies.SteeringReceived, bodies.SteeringApplied),
    "compaction": (bodies.CompactStart, bodies.CompactEnd, bodies.BeforeCompact),
    "sub-agents and background": (
        bodies.SubagentStart,
        bodies.SubagentEnd,
        bodies.SubAgentEvent,
        bodies.BackgroundStarted,
        bodies.BackgroundEnded,
    ),
    "model, plan and notices": (
        bodies.ModelSwitched,
        bodies.TodoChange,
        bodies.PlanGenerated,
        bodies.MemoryFlushed,
        bodies.LargeResultOffloaded,
        bodies.ContentPolicyViolated,
        bodies.PluginEvent,
        bodies.PluginState,
        bodies.Intervention,
        bodies.Notice,
        bodies.ContextUsage,
        bodies.SettingChanged,
        bodies.Usage,
        bodies.ChangesUpdated,
        bodies.CheckpointSaved,
    ),
    "bookkeeping": (bodies.CommandReceipt, bodies.ViewRefolded),
}

TYPES: tuple[type[Body], ...] = tuple(kind for group in GROUPS.values() for kind in group)
#: Event name to class, and class to event name.
BY_NAME: dict[str, type[Body]] = {str(kind.__struct_config__.tag): kind for kind in TYPES}
NAMES: dict[type[Body], str] = {kind: name for name, kind in BY_NAME.items()}
#: The decoder's type. The union is built at run time, so type checkers see only its root class.
UNION = cast(type[Body], Union[cast(Any, TYPES)])  # noqa: UP007

#: Deltas may be dropped from a log once the event that restates the whole is durable. For that reason a state must
#: never name a delta as its cause.
DELTAS: frozenset[type[Body]] = frozenset(
    {bodies.MessageDelta, bodies.ThinkingDelta, bodies.ToolExecutionOutput, bodies.BashOutput}
)
