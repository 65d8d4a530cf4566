"""Track what the agent is doing (seed 003).

Translators and the engine do all debouncing and counting, and resolve races between sources. The kernel itself only
applies `state_change`, and moves the activity when an agent or its process starts or ends. It never looks at the origin
of an event.

The two diagrams of 003 are here as tables in the agents' own signal names, for the translators to step: `CODEX` (OTLP
log records) and `CLAUDE` (hooks). `MACHINE` contains all three tables.

Decisions where the diagrams say nothing:
- PermissionRequest is accepted in any active state, because PreToolUse really arrives before it.
- `exited` ends when live evidence arrives, because SessionEnd also fires on /clear.
- SessionStart means idle only from initialized or exited. Otherwise it ends a compaction and returns to the state in
  which the compaction started.
"""

from __future__ import annotations

from quarterdeck.kernel.machine import ANY, Machine, Row, rows_of

THINKING = "active/thinking"
TOOL_USE = "active/tool_use"
WAITING = "active/waiting_for_permission"
COMPACTING = "active/compacting"

SUB_STATES = ("thinking", "tool_use", "waiting_for_permission", "compacting")
STATES = ("initialized", "idle", THINKING, TOOL_USE, WAITING, COMPACTING, "exited")
_ACTIVE = f"{THINKING} {TOOL_USE} {WAITING} {COMPACTING}"
_LIVE = f"idle {_ACTIVE}"

CODEX_ROWS = [
    *rows_of("initialized exited", "codex.conversation_starts", "idle"),
    *rows_of(f"initialized exited {_LIVE}", "codex.user_prompt", THINKING),
    *rows_of(f"initialized exited idle {THINKING} {TOOL_USE}", "codex.tool_decision", TOOL_USE, "approved"),
    *rows_of(f"initialized exited idle {THINKING} {TOOL_USE}", "codex.tool_decision", WAITING, "ask_user"),
    *rows_of(WAITING, "codex.tool_decision", WAITING, "ask_user"),
    *rows_of(WAITING, "codex.tool_decision", TOOL_USE, "not_ask_user"),
    *rows_of(f"initialized exited idle {TOOL_USE} {COMPACTING}", "codex.sse_event", THINKING, "response.created"),
    *rows_of(THINKING, "codex.sse_event", "idle", "response.completed, debounced"),
]

CLAUDE_ROWS = [
    *rows_of("initialized exited", "SessionStart", "idle"),
    *rows_of(COMPACTING, "SessionStart", THINKING, "compacted in a turn"),
    *rows_of(COMPACTING, "SessionStart", "idle", "compacted by hand"),
    *rows_of(f"initialized exited {_LIVE}", "UserPromptSubmit", THINKING),
    *rows_of(f"initialized exited {_LIVE}", "PreToolUse", TOOL_USE),
    *rows_of(f"initialized exited {TOOL_USE}", "PostToolUse PostToolUseFailure", THINKING),
    *rows_of(f"initialized exited {_LIVE}", "PermissionRequest", WAITING),
    *rows_of(WAITING, "permission_decision", WAITING, "ask_user"),
    *rows_of(WAITING, "permission_decision", TOOL_USE, "not_ask_user"),
    *rows_of(f"initialized exited {_LIVE}", "PreCompact", COMPACTING),
    *rows_of(f"initialized exited {_ACTIVE}", "Stop Interrupt", "idle"),
    *rows_of(f"initialized {_LIVE}", "SessionEnd", "exited"),
]

_EVENT_ROWS = [
    *[Row(ANY, "state_change", state, state) for state in STATES],
    *rows_of("initialized exited", "agent_ready", "idle"),
    Row(ANY, "agent_ended", "exited"),
    Row(ANY, "process_starting", "initialized"),
    Row(ANY, "process_exited", "exited"),
    Row(ANY, "process_error", "exited"),
    Row(ANY, "session_suspended", "exited"),
    Row(ANY, "session_archived", "exited"),
    Row(ANY, "session_failed", "exited"),
]

CODEX = Machine("activity.codex", STATES, "initialized", CODEX_ROWS)
CLAUDE = Machine("activity.claude", STATES, "initialized", CLAUDE_ROWS)
MACHINE = Machine("activity", STATES, "initialized", [*_EVENT_ROWS, *CODEX_ROWS, *CLAUDE_ROWS])


def joined(state: str, sub: str | None) -> str:
    """Join a state and its sub-state: `active/thinking`. Only `active` has sub-states, and thinking is its default."""
    return f"active/{sub or 'thinking'}" if state == "active" else state


def split(activity: str) -> tuple[str, str | None]:
    """Split an activity into its state and sub-state."""
    state, _, sub = activity.partition("/")
    return state, sub or None


def decision_guard(state: str, decision: str) -> str:
    """Return the guard for a tool decision.

    In the waiting state 003 only distinguishes `ask_user` from everything else. In the other states only `approved` means
    that a tool runs.
    """
    if decision == "ask_user":
        return decision
    return "not_ask_user" if state == WAITING else decision
