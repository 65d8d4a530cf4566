"""What surrounds the turn: compaction, background work, settings, usage, plans, notices and our own bookkeeping."""

from __future__ import annotations

from typing import Literal

from quarterdeck.events.base import Body, Json, Plan, Todo, TokenUsage, renamed


class CompactStart(Body):
    """The conversation is being shortened."""

    trigger: Literal["manual", "auto"] | None = None


class CompactEnd(Body):
    """Shortened, or given up (then `ok` is false)."""

    removed_count: int = 0
    ok: bool = True
    summary: str = ""


class BeforeCompact(Body):
    """Just before compaction; `messages` is their number."""

    messages: int = 0


class BackgroundStarted(Body):
    """Work that outlives the turn: a shell, a sub-agent."""

    kind: Literal["shell", "subagent"]
    id: str
    title: str = ""


class BackgroundEnded(Body):
    """That work is over."""

    kind: Literal["shell", "subagent"]
    id: str
    title: str = ""
    ok: bool | None = None


class SignalChanged(Body):
    """How good our evidence is: live, stale (old), lost (its source is gone)."""

    signal: Literal["live", "stale", "lost"]
    reason: str = ""


class ContextUsage(Body):
    """How full the model's context is."""

    tokens: int | None = None
    limit: int | None = None
    percent: float | None = None


class SettingChanged(Body):
    """A setting of the session is another one now. Fields left out stay as they are."""

    auto_approve: bool | None = None
    mode: str | None = None
    thinking: str | None = None
    model: str | None = None


class ModelSwitched(Body):
    """The next turn uses another model."""

    to: str
    from_: str = renamed("from", "")
    provider_opts_changed: bool = False


class Usage(Body):
    """Tokens of one message. The same message again restates them, it does not add."""

    tokens: TokenUsage
    message_id: str = ""
    model: str = ""
    billing: Literal["metered", "plan", "unknown"] = "unknown"


class TodoChange(Body):
    """The agent's list, whole."""

    todos: tuple[Todo, ...] = ()


class PlanGenerated(Body):
    """A plan, whole."""

    plan: Plan


class MemoryFlushed(Body):
    """Facts were written to the memory file."""

    facts: tuple[str, ...] = ()
    count: int = 0


class ContentPolicyViolated(Body):
    """A content policy objected."""

    summary: str
    triggered_policies: tuple[str, ...] = ()


class PluginEvent(Body):
    """A plugin's own event."""

    name: str
    payload: Json = None


class PluginState(Body):
    """What a plugin of the built-in agent remembers, whole; it gets it back when the session is resumed."""

    name: str
    state: Json = None


class Intervention(Body):
    """A plugin put a text into the conversation."""

    prompt: str


class Notice(Body):
    """Something a person should be able to read. Errors of extensions and plugins are notices of level error."""

    text: str
    level: Literal["info", "warning", "error"] = "info"
    source: str = ""


class ChangesUpdated(Body):
    """What the session changed in its repository so far."""

    files: int = 0
    added: int = 0
    removed: int = 0


class CheckpointSaved(Body):
    """The state of the work was saved; internal, shown nowhere."""

    checkpoint_id: str = ""


class CommandReceipt(Body):
    """The answer to a client's command, stored with what it caused, so that the same key gets the same answer."""

    client_id: str
    command: str = ""
    fingerprint: str = ""
    answer: Json = None


class ViewRefolded(Body):
    """A release folds differently: what an open session shows changed without a new fact."""

    to: int
    from_: int = renamed("from", 0)
    changed: tuple[str, ...] = ()
