"""Codex's own words, as tables: tools, items, modes, decisions, failures.

The same call has another name in every source (`commandExecution`, `command_execution`, `Bash`, `exec_command`). Here it
gets the one that the model itself uses, so that what hooks, telemetry and the app-server tell can be compared.
"""

from __future__ import annotations

import re
import shlex
from typing import Any, TypeAlias

from msgspec import Struct

from quarterdeck.events import FailureKind, GateStatus, Json, Option, Question
from quarterdeck.harness.base import Object, int_of, list_of, object_of, text_of
from quarterdeck.harness.failures import failure_kind

EXEC = "exec_command"
PATCH = "apply_patch"
ASK_USER = "request_user_input"


class Shape(Struct, frozen=True, gc=False):
    """How an item is read as a tool call: its name, the fields that are its arguments, the fields that may be its result."""

    name: str
    args: tuple[str, ...] = ()
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
#: A call that ended with one of these did not do what it was asked to.
_NOT_OK = frozenset({"failed", "declined", "interrupted", "errored"})
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
#: Hooks write the shell under Claude Code's name, and put the namespace of a tool before its name.
_HOOK_TOOLS = {"Bash": EXEC}
_HOOK_NAMESPACE = "collaboration"
#: What Codex mostly writes: one word in quotes, with nothing in it that means more than itself. The rest is for `shlex`,
#: which takes a hundred times as long.
_IN_SHELL = re.compile(r"""(\S+) -l?c (?:'([^']*)'|"([^"\\]*)")""")
_SHELLS = ("/bin/bash", "/bin/sh", "/bin/zsh", "/usr/bin/bash", "/usr/bin/zsh", "bash", "sh", "zsh")


def call_name(item: Object, shape: Shape) -> str:
    """The name of an item's tool."""
    tool = text_of(item, "tool")
    if shape.name == "mcp":
        return mcp_name(text_of(item, "server"), tool)
    if shape.name == "collab":
        return _COLLAB_TOOLS.get(tool, tool or "collab")
    return shape.name or tool or "tool"


def mcp_name(server: str, tool: str) -> str:
    """A tool of an MCP server."""
    return f"mcp__{server}__{tool}"


def hook_tool(name: str) -> str:
    """A tool under the name that a hook gives it."""
    if name.startswith(_HOOK_NAMESPACE) and name != _HOOK_NAMESPACE:
        return name[len(_HOOK_NAMESPACE) :]
    return _HOOK_TOOLS.get(name, name or "tool")


def call_args(item: Object, shape: Shape) -> Json:
    """The arguments of an item's call."""
    if shape.args == ("arguments",):
        return item.get("arguments")
    args: dict[str, Any] = {name: item[name] for name in shape.args if item.get(name) is not None}
    command = args.get("command")
    if isinstance(command, str):
        args["command"] = plain_command(command)
    return args


def plain_command(command: str) -> str:
    """`/bin/bash -lc 'make test'` is shown as `make test`."""
    if not command.startswith(_SHELLS) or len(command) > 100_000:
        return command
    simple = _IN_SHELL.fullmatch(command)
    if simple is not None and simple[1] in _SHELLS:
        return simple[3] if simple[2] is None else simple[2]
    try:
        parts = shlex.split(command)
    except ValueError:
        return command
    return parts[2] if len(parts) == 3 and parts[0] in _SHELLS and parts[1] in ("-lc", "-c") else command


def call_ok(item: Object) -> bool:
    """Whether a call that ended did what it was asked to."""
    if item.get("success") is False or text_of(item, "status") in _NOT_OK:
        return False
    return int_of(item, "exitCode", "exit_code") == 0


def call_result(item: Object, shape: Shape) -> Json:
    """What a call that ended gave."""
    for name in shape.results:
        value = item.get(name)
        if value is not None:
            return _mcp_text(value) if shape.name == "mcp" else value
    return ""


def _mcp_text(value: Any) -> Json:
    """The texts of an MCP answer; anything else as it is."""
    found = object_of(value)
    texts = [text_of(object_of(part), "text") for part in list_of(found, "content")]
    return "\n".join(filter(None, texts)) or text_of(found, "message") or value


# --- modes

_SANDBOXES = {
    "dangerFullAccess": "full",
    "danger-full-access": "full",
    "externalSandbox": "full",
    "workspaceWrite": "workspace",
    "workspace-write": "workspace",
    "readOnly": "read",
    "read-only": "read",
}
#: (approval policy, sandbox) → our scale. A policy alone decides where the pair has no row.
_MODES = {
    ("never", "full"): "bypass",
    ("on-request", "full"): "auto",
    ("on-request", "workspace"): "edits",
}
_MODES_BY_POLICY = {"never": "auto", "on-failure": "auto", "on-request": "ask", "untrusted": "ask", "granular": "ask"}
_HOOK_MODES = {"bypassPermissions": "bypass", "acceptEdits": "edits", "plan": "plan", "dontAsk": "auto"}


def mode_of(approval: Any, sandbox: Any, collaboration: str = "") -> str | None:
    """The mode on our scale; None when Codex did not say enough."""
    if collaboration == "plan":
        return collaboration
    policy = "granular" if isinstance(approval, dict) else approval
    if not isinstance(policy, str):
        return None
    kind = sandbox if isinstance(sandbox, str) else text_of(object_of(sandbox), "type")
    return _MODES.get((policy, _SANDBOXES.get(kind, "")), _MODES_BY_POLICY.get(policy))


def hook_mode(permission_mode: str) -> str | None:
    """A hook's word for the mode. Its `default` is whatever the user configured, so it says nothing."""
    return _HOOK_MODES.get(permission_mode)


# --- decisions


class Decision(Struct, frozen=True, gc=False):
    """How an approval was answered; `scope` when the answer holds from here on."""

    status: GateStatus
    label: str
    kind: str
    scope: str = ""


DECISIONS: dict[str, Decision] = {
    "accept": Decision("approved", "Allow", "allow_once"),
    "acceptForSession": Decision("approved", "Allow for this session", "allow_always", "session"),
    "acceptWithExecpolicyAmendment": Decision("approved", "Always allow", "allow_always", "user"),
    "applyNetworkPolicyAmendment": Decision("approved", "Apply the network rule", "allow_always", "user"),
    "decline": Decision("rejected", "Decline", "reject_once"),
    "cancel": Decision("rejected", "Decline and stop the turn", "cancel"),
    # the first protocol, and telemetry
    "approved": Decision("approved", "Allow", "allow_once"),
    "approved_for_session": Decision("approved", "Allow for this session", "allow_always", "session"),
    "approved_execpolicy_amendment": Decision("approved", "Always allow", "allow_always", "user"),
    "approved_with_amendment": Decision("approved", "Always allow", "allow_always", "user"),
    "approved_with_network_policy_allow": Decision("approved", "Allow this host", "allow_always", "user"),
    "denied": Decision("rejected", "Decline", "reject_once"),
    "timed_out": Decision("timeout", "Nobody answered", "reject_once"),
    "abort": Decision("rejected", "Decline and stop the turn", "cancel"),
}
_UNKNOWN_DECISION = Decision("answered_elsewhere", "", "")
#: Both are taken though Codex does not always list them.
_ALWAYS_OFFERED = ("accept", "decline")

Answer: TypeAlias = "tuple[str, Decision, str]"


def decision_in(value: Any) -> Answer:
    """A decision as (its name, what it means, the rule that it makes)."""
    if isinstance(value, str):
        return value, DECISIONS.get(value, _UNKNOWN_DECISION), ""
    found = object_of(value)
    name = next((key for key in found if key in DECISIONS), "")
    return name, DECISIONS.get(name, _UNKNOWN_DECISION), _rule(object_of(found, name))


def _rule(amendment: Object) -> str:
    words = [word for word in list_of(amendment, "execpolicy_amendment") if isinstance(word, str)]
    network = object_of(amendment, "network_policy_amendment")
    return " ".join(words) or " ".join(filter(None, (text_of(network, "action"), text_of(network, "host"))))


def options_in(offered: list[Any]) -> tuple[Option, ...]:
    """The answers that an approval offers. Accept and decline are always there."""
    options: dict[str, Option] = {}
    for value in (*offered, *_ALWAYS_OFFERED):
        name, decision, rule = decision_in(value)
        if name and name not in options and decision.label:
            label = f"{decision.label}: {rule}" if rule else decision.label
            options[name] = Option(id=name, label=label, kind=decision.kind)
    return tuple(options.values())


# --- questions


def question_in(found: Object) -> Question:
    """One question of request_user_input."""
    options = [object_of(one) for one in list_of(found, "options")]
    return Question(
        text=text_of(found, "question"),
        options=tuple(_option(one) for one in options if text_of(one, "label")),
        multiple=found.get("multiSelect") is True,
        header=text_of(found, "header"),
    )


def _option(found: Object) -> Option:
    label, more = text_of(found, "label"), text_of(found, "description")
    return Option(id=label, label=f"{label}: {more}" if more else label)


# --- failures

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
    """The name of a codexErrorInfo, which is a word or an object with one key."""
    info = error.get("codexErrorInfo")
    if isinstance(info, str):
        return info
    return next(iter(object_of(info)), "")


def error_kind(error: Object) -> FailureKind:
    """Why a turn failed. An HTTP status says more than the name that it comes with."""
    name = error_name(error)
    status = int_of(object_of(error, "codexErrorInfo", name), "httpStatusCode")
    message = error_text(error)
    if status:
        return failure_kind(message, status)
    return _FAILURES.get(name) or failure_kind(message)


def error_text(error: Object) -> str:
    """What a person reads of an error."""
    return text_of(error, "message", "additionalDetails")
