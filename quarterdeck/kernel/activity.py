"""What the agent is doing (seed 003).

Translators and the engine own every debounce, race and count; what reaches the kernel is pristine. So the kernel's own
part is small: `state_change` says the state, and only the coming and going of the agent moves it besides. The kernel
never looks at where an event came from.

003's two diagrams are here as tables in the signals' own names, for the translators to step and for people to read:
`CODEX` (OTLP log records) and `CLAUDE` (hooks). `MACHINE` shows all three together.

Decided where the diagrams are silent (design section 9): PermissionRequest is taken in any active state, because the
real order is PreToolUse first; `exited` is left when live evidence comes (SessionEnd also fires on /clear); SessionStart
means idle only from initialized or exited, else it ends a compaction and goes back to where that began.
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

_OWN_ROWS = [
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
MACHINE = Machine("activity", STATES, "initialized", [*_OWN_ROWS, *CODEX_ROWS, *CLAUDE_ROWS])


#: The states of an agent at work by their sub-state.
ACTIVE_STATES = {None: THINKING, **{sub: f"active/{sub}" for sub in SUB_STATES}}


def joined(state: str, sub: str | None) -> str:
    """`active` and `thinking` are written `active/thinking`; no other state has a sub-state."""
    return ACTIVE_STATES[sub] if state == "active" else state


def split(activity: str) -> tuple[str, str | None]:
    """The state and its sub-state."""
    state, _, sub = activity.partition("/")
    return state, sub or None


def decision_guard(state: str, decision: str) -> str:
    """003 tells `ask_user` from everything else once a person is asked; before that only `approved` means a tool runs."""
    if decision == "ask_user":
        return decision
    return "not_ask_user" if state == WAITING else decision
