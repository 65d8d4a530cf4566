"""What the turn loop is doing (seed 001): idle, running, streaming, executing_tools.

    idle ──agent_start──▶ running ──message_start──▶ streaming ──tool_calls──▶ executing_tools ──request_start──▶ running
     ▲                       │                          │                             │
     └────────────── agent_end, agent_abort ────────────┴─────────────────────────────┘

A call that waits for a person is *held*: the run is idle, yet the turn is open (no agent_end), and queued prompts wait.
Calls that run beside it keep the run in executing_tools until the last one ends. When the last approval of the turn is
decided the run goes on by itself; what follows (a call, a request, an abort) then says where.

Some agents speak while calls are open (a command's output as text, a race with an approval): the batch is not done, so the
run stays with its tools. Compaction is a request of its own: the run has left the reply and the tools, and when calls went
on beside it, it comes back to them.

The guards:
  partial    the arguments of a call are still coming: a reply may begin, and end, with nothing but calls
  turn_open  an agent_start is not closed yet; nothing outside a turn makes the run busy
  free       the turn is open, no call of it runs, and it asks nobody: a text is the reply of the model
  alone      no other call of this turn is running, so the call that asks holds the whole turn
  beside     another one is running
  held       the call that ended, or asked, was the last one running, and an approval is open
  resumes       the turn is open, no approval of it is left, no call is running
  resumes_call  the turn is open, and a call that was held, or went on beside a compaction, runs now
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
