"""Track what the turn loop is doing (seed 001): idle, running, streaming or executing_tools.

    idle ──agent_start──▶ running ──message_start──▶ streaming ──tool_calls──▶ executing_tools ──request_start──▶ running
     ▲                       │                          │                             │
     └────────────── agent_end, agent_abort ────────────┴─────────────────────────────┘

A call that waits for a decision is *held*. If nothing else of the turn runs, the run is idle although the turn is open,
and queued prompts wait. Calls that run beside a held one keep the run in executing_tools until the last of them ends.
When the last approval of the turn is decided the run continues, and the next event (a call, a request, an abort) says
where.

Some agents send text while calls are open, such as a command's output, or text that races with an approval. The batch of
calls isn't finished then, so the run stays in executing_tools. Compaction is a request of its own: the run leaves the
reply and the tools, and returns to the tools if calls continued beside it.

The guards:
  partial       the arguments of a call are still streaming: a reply may consist of nothing but calls
  turn_open     an agent_start isn't closed yet. Outside a turn no event makes the run busy
  free          the turn is open, none of its calls runs and none of its gates is open: a text is the model's reply
  alone         no other call of this turn runs, so the call that needs approval holds the whole turn
  beside        another call runs
  held          the call that ended, or was decided, was the last one running, and an approval is open
  resumes       the turn is open, it has no open approval, and no call runs
  resumes_call  the turn is open, and a call runs that was held, or that continued beside a compaction
"""

from __future__ import annotations

from quarterdeck.kernel.machine import ANY, Machine, Row, rows_of

STATES = ("idle", "running", "streaming", "executing_tools")

_CALL_ENDS = "tool_execution_end tool_blocked tool_killed tool_skipped_for_steering tool_call_unknown"

MACHINE = Machine(
    "run",
    STATES,
    "idle",
    [
        Row("idle", "agent_start", "running"),
        *rows_of("streaming executing_tools", "agent_start", "running"),
        *rows_of("idle", "agent_resumed request_start", "running", "turn_open"),
        *rows_of("streaming executing_tools", "request_start", "running"),
        *rows_of("idle running executing_tools", "message_start thinking_start", "streaming", "free"),
        Row("running", "tool_call", "streaming", "partial"),
        Row("idle", "compact_start", "running", "turn_open"),
        *rows_of("streaming executing_tools", "compact_start", "running"),
        Row("running", "compact_end", "executing_tools", "resumes_call"),
        *rows_of("idle", "tool_calls tool_execution_start ask_user", "executing_tools", "turn_open"),
        *rows_of("running streaming", "tool_calls tool_execution_start ask_user", "executing_tools"),
        *rows_of("running streaming executing_tools", "approval_required", "idle", "alone"),
        Row("running", "approval_required", "executing_tools", "beside"),
        *rows_of("executing_tools", f"{_CALL_ENDS} background_started user_responded", "idle", "held"),
        *rows_of("idle", _CALL_ENDS, "running", "resumes"),
        Row("idle", "approval_resolved", "running", "resumes"),
        Row("idle", "approval_resolved", "executing_tools", "resumes_call"),
        *rows_of("running streaming executing_tools", "agent_end agent_abort", "idle"),
        Row(ANY, "process_exited", "idle"),
        Row(ANY, "process_error", "idle"),
        Row(ANY, "session_suspended", "idle"),
        Row(ANY, "session_archived", "idle"),
        Row(ANY, "session_failed", "idle"),
    ],
    flags={"busy": ("running", "streaming", "executing_tools")},
)
