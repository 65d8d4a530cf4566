"""Map Codex's own words to ours, as tables: tools, items, modes, decisions, failures.

The same call has another name in every source (`commandExecution`, `command_execution`, `Bash`, `exec_command`). Here it
gets the name that the model itself uses, so that reports of hooks, telemetry and the app-server can be compared.
"""

from __future__ import annotations

import re
import shlex
from typing import Any, TypeAlias

from msgspec import Struct

from quarterdeck.events import FailureKind, GateStatus, Json, Option, Question
from quarterdeck.harness.base import Object, int_of, list_of, object_of, objects_of, text_of
from quarterdeck.harness.failures import failure_kind

# ----------------------------------------------------------------------------------------------------------------------
# Calls
# ----------------------------------------------------------------------------------------------------------------------

EXEC = "exec_command"
PATCH = "apply_patch"
ASK_USER = "request_user_input"


class Shape(Struct, frozen=True):
    """How an item is read as a tool call."""

    #: Name of the tool. `mcp`, `collab` and '' are replaced by what the item itself says.
    name: str
    #: Fields that are its arguments.
    args: tuple[str, ...] = ()
    #: Fields that may be its result, the first that is set.
    results: tuple[str, ...] = ()


#: Items that are calls, by their type in the app-server and in `exec --json`.
CALLS: dict[str, Shape] = {
    "commandExecution": Shape(EXEC, ("command", "cwd"), ("aggregatedOutput",)),
    "command_execution": Shape(EXEC, ("command",), ("aggregated_output",)),
    "fileChange": Shape(PATCH, ("changes",)),
    "file_change": Shape(PATCH, ("changes",)),
    "mcpToolCall": Shape("mcp", ("arguments",), ("result", "error")),
    "mcp_tool_call": Shape("mcp", ("arguments",), ("result", "error")),
    "dynamicToolCall": Shape("", ("arguments",), ("contentItems",)),
    "collabAgentToolCall": Shape("collab", ("prompt", "receiverThreadIds"), ("agentsStates",)),
    "collab_tool_call": Shape("collab", ("prompt", "receiver_thread_ids"), ("agents_states",)),
    "webSearch": Shape("web_search", ("query", "action")),
    "web_search": Shape("web_search", ("query", "action")),
    "imageView": Shape("view_image", ("path",)),
    "imageGeneration": Shape("image_generation", ("revisedPrompt",), ("savedPath",)),
    "sleep": Shape("sleep", ("durationMs",)),
}
#: Statuses of a call that didn't do what it was asked to.
_FAILED_STATUSES = frozenset({"failed", "declined", "interrupted", "errored"})
DECLINED = "declined"

_COLLAB_TOOLS = {
    "spawnAgent": "spawn_agent",
    "sendInput": "send_input",
    "sendMessage": "send_message",
    "followupTask": "followup_task",
    "interruptAgent": "interrupt_agent",
    "listAgents": "list_agents",
    "resumeAgent": "resume_agent",
    "closeAgent": "close_agent",
    "wait": "wait_agent",
}
#: Hooks name the shell as Claude Code does, and put the namespace of a tool before its name.
_HOOK_TOOLS = {"Bash": EXEC}
_HOOK_NAMESPACE = "collaboration"
#: The usual form: one quoted word in which no character is special. `shlex` takes about a hundred times as long, which
#: blocks the loop noticeably for a long heredoc, so it only gets the other forms.
_SIMPLE_SHELL_COMMAND = re.compile(r"""(\S+) -l?c (?:'([^']*)'|"([^"\\]*)")""")
_SHELLS = ("/bin/bash", "/bin/sh", "/bin/zsh", "/usr/bin/bash", "/usr/bin/zsh", "bash", "sh", "zsh")


def call_name(item: Object, shape: Shape) -> str:
    """Return the name of an item's tool."""
    tool = text_of(item, "tool")
    if shape.name == "mcp":
        return mcp_name(text_of(item, "server"), tool)
    if shape.name == "collab":
        return _COLLAB_TOOLS.get(tool, tool or "collab")
    return shape.name or tool or "tool"


def mcp_name(server: str, tool: str) -> str:
    """Return the name of an MCP server's tool."""
    return f"mcp__{server}__{tool}"


def hook_tool(name: str) -> str:
    """Return the name of a tool that a hook names."""
    if name.startswith(_HOOK_NAMESPACE) and name != _HOOK_NAMESPACE:
        return name.removeprefix(_HOOK_NAMESPACE)
    return _HOOK_TOOLS.get(name, name or "tool")


def call_args(item: Object, shape: Shape) -> Json:
    """Return the arguments of an item's call."""
    if shape.args == ("arguments",):
        return item.get("arguments")
    args: dict[str, Any] = {name: item[name] for name in shape.args if item.get(name) is not None}
    command = args.get("command")
    if isinstance(command, str):
        args["command"] = plain_command(command)
    return args


def plain_command(command: str) -> str:
    """Return the command without the shell around it: `make test` for `/bin/bash -lc 'make test'`."""
    if not command.startswith(_SHELLS) or len(command) > 100_000:
        return command
    simple = _SIMPLE_SHELL_COMMAND.fullmatch(command)
    if simple is not None and simple[1] in _SHELLS:
        return simple[3] if simple[2] is None else simple[2]
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    return words[2] if len(words) == 3 and words[0] in _SHELLS and words[1] in ("-lc", "-c") else command


def call_ok(item: Object) -> bool:
    """Return whether a call that ended did what it was asked to."""
    if item.get("success") is False or text_of(item, "status") in _FAILED_STATUSES:
        return False
    return int_of(item, "exitCode", "exit_code") == 0


def call_result(item: Object, shape: Shape) -> Json:
    """Return the result of a call that ended."""
    for name in shape.results:
        value = item.get(name)
        if value is not None:
            return _mcp_result(value) if shape.name == "mcp" else value
    return ""


def _mcp_result(value: Any) -> Json:
    """Return the texts of an MCP answer, or the answer itself if it has none."""
    answer = object_of(value)
    texts = [text_of(part, "text") for part in objects_of(answer, "content")]
    return "\n".join(filter(None, texts)) or text_of(answer, "message") or value


# ----------------------------------------------------------------------------------------------------------------------
# Modes
# ----------------------------------------------------------------------------------------------------------------------

_SANDBOXES = {
    "dangerFullAccess": "full",
    "danger-full-access": "full",
    "externalSandbox": "full",
    "workspaceWrite": "workspace",
    "workspace-write": "workspace",
    "readOnly": "read",
    "read-only": "read",
}
#: (approval policy, sandbox) → our scale. The policy alone decides if the pair isn't listed.
_MODES = {
    ("never", "full"): "bypass",
    ("on-request", "full"): "auto",
    ("on-request", "workspace"): "edits",
}
_MODES_BY_POLICY = {"never": "auto", "on-failure": "auto", "on-request": "ask", "untrusted": "ask", "granular": "ask"}
_HOOK_MODES = {"bypassPermissions": "bypass", "acceptEdits": "edits", "plan": "plan", "dontAsk": "auto"}


def mode_of(approval: Any, sandbox: Any, collaboration: str = "") -> str | None:
    """Return the mode on our scale, or None if Codex didn't say enough."""
    if collaboration == "plan":
        return collaboration
    policy = "granular" if isinstance(approval, dict) else approval
    if not isinstance(policy, str):
        return None
    kind = sandbox if isinstance(sandbox, str) else text_of(object_of(sandbox), "type")
    return _MODES.get((policy, _SANDBOXES.get(kind, "")), _MODES_BY_POLICY.get(policy))


def hook_mode(permission_mode: str) -> str | None:
    """Return the mode that a hook names. Its `default` is whatever the user configured, so it says nothing."""
    return _HOOK_MODES.get(permission_mode)


# ----------------------------------------------------------------------------------------------------------------------
# Decisions
# ----------------------------------------------------------------------------------------------------------------------


class Decision(Struct, frozen=True):
    """What an answer to an approval means."""

    status: GateStatus
    label: str
    kind: str
    #: How long the answer lasts, if it is for more than this once.
    scope: str = ""


DECISIONS: dict[str, Decision] = {
    "accept": Decision("approved", "Allow", "allow_once"),
    "acceptForSession": Decision("approved", "Allow for this session", "allow_always", "session"),
    "acceptWithExecpolicyAmendment": Decision("approved", "Always allow", "allow_always", "user"),
    "applyNetworkPolicyAmendment": Decision("approved", "Apply the network rule", "allow_always", "user"),
    "decline": Decision("rejected", "Decline", "reject_once"),
    "cancel": Decision("rejected", "Decline and stop the turn", "cancel"),
    # The first version of the protocol, and telemetry.
    "approved": Decision("approved", "Allow", "allow_once"),
    "approved_for_session": Decision("approved", "Allow for this session", "allow_always", "session"),
    "approved_execpolicy_amendment": Decision("approved", "Always allow", "allow_always", "user"),
    "approved_with_amendment": Decision("approved", "Always allow", "allow_always", "user"),
    "approved_with_network_policy_allow": Decision("approved", "Allow this host", "allow_always", "user"),
    "denied": Decision("rejected", "Decline", "reject_once"),
    "timed_out": Decision("timeout", "Timed out", "reject_once"),
    "abort": Decision("rejected", "Decline and stop the turn", "cancel"),
}
_UNKNOWN_DECISION = Decision("answered_elsewhere", "", "")
#: Codex accepts both although it doesn't always list them.
_ALWAYS_OFFERED = ("accept", "decline")

#: A decision's name, what it means, and the rule that it creates.
Answer: TypeAlias = "tuple[str, Decision, str]"


def decision_in(value: Any) -> Answer:
    """Read a decision, which is a word or an object with one key."""
    if isinstance(value, str):
        return value, DECISIONS.get(value, _UNKNOWN_DECISION), ""
    fields = object_of(value)
    name = next((key for key in fields if key in DECISIONS), "")
    return name, DECISIONS.get(name, _UNKNOWN_DECISION), _rule(object_of(fields, name))


def _rule(amendment: Object) -> str:
    words = [word for word in list_of(amendment, "execpolicy_amendment") if isinstance(word, str)]
    network = object_of(amendment, "network_policy_amendment")
    return " ".join(words) or " ".join(filter(None, (text_of(network, "action"), text_of(network, "host"))))


def options_in(offered: list[Any]) -> tuple[Option, ...]:
    """Return the answers that an approval offers, always with accept and decline."""
    options: dict[str, Option] = {}
    for value in (*offered, *_ALWAYS_OFFERED):
        name, decision, rule = decision_in(value)
        if name and name not in options and decision.label:
            label = f"{decision.label}: {rule}" if rule else decision.label
            options[name] = Option(id=name, label=label, kind=decision.kind)
    return tuple(options.values())


# ----------------------------------------------------------------------------------------------------------------------
# Questions
# ----------------------------------------------------------------------------------------------------------------------


def question_in(fields: Object) -> Question:
    """Read one question of request_user_input."""
    options = objects_of(fields, "options")
    return Question(
        text=text_of(fields, "question"),
        options=tuple(_option(option) for option in options if text_of(option, "label")),
        multiple=fields.get("multiSelect") is True,
        header=text_of(fields, "header"),
    )


def _option(fields: Object) -> Option:
    label, description = text_of(fields, "label"), text_of(fields, "description")
    return Option(id=label, label=f"{label}: {description}" if description else label)


# ----------------------------------------------------------------------------------------------------------------------
# Failures
# ----------------------------------------------------------------------------------------------------------------------

_FAILURES: dict[str, FailureKind] = {
    "usageLimitExceeded": "usage_limit",
    "sessionBudgetExceeded": "usage_limit",
    "modelCap": "rate_limit",
    "unauthorized": "auth",
    "contextWindowExceeded": "api",
    "serverOverloaded": "api",
    "internalServerError": "api",
    "sandboxError": "internal",
    "threadRollbackFailed": "internal",
    "httpConnectionFailed": "network",
    "responseStreamConnectionFailed": "network",
    "responseStreamDisconnected": "network",
}
CONTEXT_FULL = "contextWindowExceeded"


def error_name(error: Object) -> str:
    """Return the name of a codexErrorInfo, which is a word or an object with one key."""
    info = error.get("codexErrorInfo")
    if isinstance(info, str):
        return info
    return next(iter(object_of(info)), "")


def error_kind(error: Object) -> FailureKind:
    """Return why a turn failed. An HTTP status says more than the name that it comes with."""
    name = error_name(error)
    status = int_of(object_of(error, "codexErrorInfo", name), "httpStatusCode")
    message = error_text(error)
    if status:
        return failure_kind(message, status)
    return _FAILURES.get(name) or failure_kind(message)


def error_text(error: Object) -> str:
    """Return the message of an error."""
    return text_of(error, "message", "additionalDetails")


def retry_in(message: str) -> tuple[int, str]:
    """Parse `Reconnecting... 2/5 (why)` into the number of the next attempt and the reason."""
    count, _, rest = message.partition("...")[2].strip().partition(" ")
    attempt = int_of({"count": count.partition("/")[0]}, "count")
    return attempt or 1, rest.strip().removeprefix("(").removesuffix(")") or message
