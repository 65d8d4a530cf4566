"""Prompts, turns, requests, steering and how a turn fails."""

from __future__ import annotations

from typing import Literal, TypeAlias

from quarterdeck.events.base import Body, HistoryMessage, Image, Json, TokenUsage

FailureKind: TypeAlias = Literal[
    "api", "usage_limit", "rate_limit", "auth", "payment", "invalid_model", "network", "turn_limit", "internal"
]


class PromptReceived(Body):
    """The agent takes a prompt. From a person, or from the agent itself (a finished background task wakes it)."""

    text: str
    message_id: str = ""
    source: Literal["user", "agent"] = "user"
    images: tuple[Image, ...] = ()
    new_task: bool = False


class PromptQueued(Body):
    """A text waits until the agent can read it. `starts`: it begins the next turn, so the session is at work for it now."""

    text: str
    message_id: str = ""
    images: tuple[Image, ...] = ()
    starts: bool = False
    new_task: bool = False


class PromptEdited(Body):
    """A text that still waits was changed by a person."""

    message_id: str
    text: str


class PromptDropped(Body):
    """A waiting text was taken out of the queue and given back."""

    text: str
    message_id: str = ""


class PromptRejected(Body):
    """A plugin refused the prompt."""

    reason: str
    text: str = ""
    message_id: str = ""


class DeliveryChanged(Body):
    """Where a text that we sent to the agent is now. `unknown` is not sent again by itself; `queued` if one wants it."""

    message_id: str
    status: Literal["queued", "sending", "delivered", "failed", "unknown"]
    reason: str = ""


class AgentStart(Body):
    """A turn begins. Closed by exactly one agent_end or agent_abort."""


class AgentEnd(Body):
    """The turn is over by itself."""

    outcome: Literal["completed", "failed"] = "completed"
    usage: TokenUsage | None = None
    messages: tuple[Json, ...] = ()


class AgentAbort(Body):
    """The turn was ended from outside. Also said when nothing ran, so that observers can reconcile."""

    reason: str | None = None


class AgentResumed(Body):
    """A held turn goes on."""

    trigger: Literal["tool_approved", "tool_rejected", "tool_approval_timeout", "user_respond", "steering"]


class TurnContinued(Body):
    """A person pressed Resume."""


class TurnRetried(Body):
    """A person pressed Retry."""


class TurnRestored(Body):
    """What an earlier process had done, read back: the last turn was finished, or can be resumed."""

    finished: bool = False
    history: tuple[HistoryMessage, ...] = ()


class RequestStart(Body):
    """A request goes out to the model."""

    model: str = ""
    messages: int | None = None


class StreamError(Body):
    """The model's stream broke. Not yet a failure: a retry may follow."""

    reason: str = ""


class StreamStalled(Body):
    """No chunk for longer than the stall limit."""

    elapsed_s: float = 0


class Retry(Body):
    """The request is tried again after a pause."""

    attempt: int
    delay_ms: int = 0
    reason: str = ""


class ContextOverflow(Body):
    """The provider says that the context is too long; compaction may cure it."""

    reason: str = ""


class TurnFailed(Body):
    """The turn cannot go on. Followed by agent_end with outcome failed. A reset time is told only if it is known."""

    kind: FailureKind = "api"
    message: str = ""
    resets_at: int | None = None


class CommandFailed(Body):
    """A command of ours was refused by the agent."""

    command_id: str = ""
    message: str = ""


class SteeringReceived(Body):
    """A text for the running turn. `prompted`: nothing ran, so it became a prompt."""

    ref: str
    text: str = ""
    queued_at: int | None = None
    status: Literal["queued", "prompted", "rejected_full", "rejected"] = "queued"
    images: tuple[Image, ...] = ()


class SteeringApplied(Body):
    """These texts were merged into the next request, in this order."""

    refs: tuple[str, ...]
    count: int = 0


class SubagentStart(Body):
    """A child agent begins. Its own events follow in this log with an agent_path."""

    child_sid: str
    description: str = ""
    call_id: str = ""


class SubagentEnd(Body):
    """A child agent is done."""

    child_sid: str
    result: Json = None
    ok: bool = True


class SubAgentEvent(Body):
    """How a child's event is shown to a subscriber that asks for it; never stored."""

    call_id: str
    child_sid: str
    event: Json
