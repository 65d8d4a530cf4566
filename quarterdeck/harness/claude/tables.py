"""List the names that Claude Code uses, as data: modes, tools, errors, and signals that say nothing about the state."""

from __future__ import annotations

from typing import Literal, TypeAlias

from quarterdeck.events import FailureKind

Mode: TypeAlias = Literal["plan", "ask", "edits", "auto", "bypass"]

#: Claude Code's permission modes on our scale. `dontAsk` denies what isn't allowed already, so no more runs than in `ask`.
MODES: dict[str, Mode] = {
    "plan": "plan",
    "default": "ask",
    "manual": "ask",
    "dontAsk": "ask",
    "acceptEdits": "edits",
    "auto": "auto",
    "bypassPermissions": "bypass",
}
AUTO_MODES = frozenset({"auto", "bypass"})

#: Lines of stdout that say nothing about the state.
QUIET_LINES = frozenset(
    {
        "attachment",
        "auth_status",
        "keep_alive",
        "prompt_suggestion",
        "streamlined_text",
        "streamlined_tool_use_summary",
        "tool_use_summary",
        "transcript_mirror",
    }
)
#: Lines of type `system` that say nothing about the state.
QUIET_SYSTEM = frozenset(
    {
        "agents_killed",
        "away_summary",
        "bridge_state",
        "commands_changed",
        "elicitation_complete",
        "files_persisted",
        "hook_progress",
        "memory_recall",
        "memory_saved",
        "mirror_error",
        "notification",
        "plugin_install",
        "post_turn_summary",
        "stop_hook_summary",
        "task_progress",
        "thinking_tokens",
        "turn_duration",
        "worker_shutting_down",
    }
)
#: Events and deltas of a streamed reply that carry no text.
QUIET_EVENTS = frozenset({"content_block_stop", "ping"})
QUIET_DELTAS = frozenset({"citations_delta", "compaction_delta", "input_json_delta", "signature_delta"})
#: Hooks that say nothing about the state.
QUIET_HOOKS = frozenset(
    {
        "ConfigChange",
        "CwdChanged",
        "DirectoryAdded",
        "FileChanged",
        "InstructionsLoaded",
        "PreModelSwitch",
        "Setup",
        "TeammateIdle",
        "UserPromptExpansion",
        "WorktreeCreate",
        "WorktreeRemove",
    }
)
#: Hooks that show a new process after an exit. All others are leftovers of the old one.
REVIVING_HOOKS = frozenset({"SessionStart", "UserPromptSubmit"})
#: Lines that we send and that say nothing about the state.
QUIET_INPUT = frozenset({"control_cancel_request", "keep_alive", "update_environment_variables"})

#: Tools that start a sub-agent; `Task` is the older name.
AGENT_TOOLS = frozenset({"Agent", "Task"})
QUESTION_TOOL = "AskUserQuestion"
PLAN_TOOL = "ExitPlanMode"
TODO_TOOL = "TodoWrite"
#: Tools that change the todo list.
LISTING_TOOLS = frozenset({TODO_TOOL, "TaskCreate", "TaskUpdate"})
SHELL_TOOLS = frozenset({"Bash", "PowerShell"})

#: Beginnings of prompts that no person typed: finished background work, schedules, team mates, a resumed deferred call.
AGENT_PROMPTS = (
    "<task-notification>",
    "<cron",
    "<scheduled",
    "<teammate-message",
    "<agent-notification",
    "Continue from where you left off.",
)
#: Beginning of the text in the user's role that reports an interrupt.
INTERRUPTED = "[Request interrupted by user"
#: Beginnings of texts that contain the output of a local command.
LOCAL_OUTPUT = ("<local-command-stdout>", "<local-command-stderr>")

#: Error names (StopFailure.error, assistant.error, api_error_type) that say the kind of failure by themselves.
FAILURES: dict[str, FailureKind] = {
    "authentication_failed": "auth",
    "authentication_error": "auth",
    "permission_error": "auth",
    "oauth_org_not_allowed": "auth",
    "billing_error": "payment",
    "rate_limit": "rate_limit",
    "rate_limit_error": "rate_limit",
    "not_found_error": "invalid_model",
    "credits_required": "payment",
    "model_not_found": "invalid_model",
    "invalid_model": "invalid_model",
    "overloaded": "api",
    "overloaded_error": "api",
    "server_error": "api",
    "api_error": "api",
    "max_output_tokens": "api",
    "prompt_too_long": "api",
    "request_too_large": "api",
    "connection_error": "network",
    "network_error": "network",
    "timeout": "network",
}
#: Words of Claude Code's own error texts, narrower ones first. They come before the words of harness/failures.py.
FAILURE_WORDS: tuple[tuple[FailureKind, tuple[str, ...]], ...] = (
    ("usage_limit", ("usage limit", "hour limit", "weekly limit", "session limit", "hit your limit", "opus limit")),
    ("payment", ("credit balance", "billing", "out of credits", "payment")),
    ("auth", ("please run /login", "invalid api key", "oauth token", "not logged in", "x-api-key")),
    ("invalid_model", ("issue with the selected model", "may not exist or you may not have access")),
    ("network", ("connection error", "unable to connect", "connection refused", "request timed out", "socket")),
)
#: Subtypes of results that are failures.
RESULT_FAILURES: dict[str, FailureKind] = {
    "error_max_turns": "turn_limit",
    "error_max_budget_usd": "usage_limit",
    "error_max_structured_output_retries": "internal",
}
#: Beginning of the text of a failed request.
API_ERROR = "API Error: "

#: Status of a background task that ended → whether it succeeded.
TASK_ENDS: dict[str, bool] = {
    "completed": True,
    "failed": False,
    "killed": False,
    "stopped": False,
    "cancelled": False,
    "error": False,
}
#: Where Claude Code stores an allowed rule → the rule's scope.
SCOPES: dict[str, Literal["session", "repo", "user"]] = {
    "session": "session",
    "localSettings": "repo",
    "projectSettings": "repo",
    "userSettings": "user",
}

#: The telemetry record that is read, and the prefix that some releases put before record names.
OTLP_USAGE = "api_request"
OTLP_PREFIX = "claude_code."
