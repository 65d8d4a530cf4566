"""HumanApproval: ask a person before a tool call runs.

Which calls need an approval depends on the session's mode, or without a mode on the plugin's options:

    plan           none; tools that change something are blocked
    ask            shell commands, and all tools that change something
    edits          shell commands, and tools of MCP servers that don't declare themselves read-only
    auto, bypass   none
    no mode        the tools in `require_approval_for`

In every mode that asks, tools that declare `needs_approval` need one too. No approval is needed for commands in
`safe_commands`, for calls that a person allowed for the whole session, and for a command that a person has just repeated
after `confirm_prefix`. These exceptions are read as narrowly as the deck's own rules (quarterdeck/policy): every command of
a line must be safe, none may reach outside the session's folder, and a line that can't be parsed completely needs an
approval.

The plugin runs after most others, so that people see the arguments that really run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from quarterdeck.engine.plugins.base import Answers, BlockTool, Context, Emit, Hold, InvalidPluginOption, Plugin
from quarterdeck.engine.plugins.call_checks import block_on_failure, workspace_of
from quarterdeck.events import GateRequest, Json, Notice, Option
from quarterdeck.policy import InvalidRule, Request, Rule, always, decide, parse, request_for_call, rule_about, shell
from quarterdeck.policy.rule import SHELL
from quarterdeck.policy.titles import approval_title

#: Commands that only read. The built-in agent runs them without an approval by default.
READ_ONLY_COMMANDS = (
    *("pwd", "ls", "cat", "head", "tail", "wc", "grep", "rg", "echo", "which", "whoami", "date", "uname", "tree"),
    *("stat", "file", "du", "diff", "cmp", "basename", "dirname", "realpath"),
    *("git status", "git diff", "git log", "git show", "git blame", "git ls-files", "git rev-parse", "git describe"),
)
APPROVE_ONCE, APPROVE_ALWAYS, REJECT_ONCE = "approve_once", "approve_always", "reject_once"
_REGEX = "re:"
_MODES_WITHOUT_APPROVAL = ("auto", "bypass")
_MAX_CONFIRMED = 16
_MAX_RULES = 500


class _State(Struct, frozen=True, omit_defaults=True):
    #: Texts of the rules that a person allowed for the whole session.
    rules: tuple[str, ...] = ()
    #: Commands that a person repeated as a prompt. The next call of each needs no approval.
    confirmed: tuple[str, ...] = ()


class HumanApproval(Plugin):
    """Hold calls until a person decides, and remember what they allow for the whole session.

    `safe_commands` are the first words of commands (`git status`), or `re:` and a regular expression that a whole command
    must match. `timeout` is in seconds; 0 waits without a limit. With `confirm_prefix`, a person can also approve a command
    by sending it as a prompt with this prefix.
    """

    name = "human_approval"
    priority = 900

    def __init__(
        self,
        *,
        require_approval_for: Sequence[str] = ("shell",),
        safe_commands: Sequence[str] = (),
        confirm_prefix: str = "",
        timeout: float = 120,
    ) -> None:
        if timeout < 0:
            raise InvalidPluginOption(
                self.name, "timeout", f"{timeout} is negative", "Use seconds; 0 waits without a limit."
            )
        self.require_approval_for = frozenset(require_approval_for)
        self.confirm_prefix = confirm_prefix
        self.timeout = timeout
        self.patterns = tuple(_compile_pattern(text) for text in safe_commands if text.startswith(_REGEX))
        self.safe = tuple(_parse_prefix(text) for text in safe_commands if not text.startswith(_REGEX))
        self.state: Any = _State()

    def restore(self, state: Json) -> None:
        self.state = msgspec.convert(state, _State)

    def before_prompt(self, text: str, context: Context) -> None:
        if context.agent_path:
            # The prompt of a sub-agent is written by the agent, which must not approve its own commands.
            return
        command = text.removeprefix(self.confirm_prefix).strip()
        if self.confirm_prefix and text.startswith(self.confirm_prefix) and command:
            confirmed = (*self.state.confirmed, command)[-_MAX_CONFIRMED:]
            self.state = replace(self.state, confirmed=confirmed)

    before_steering = before_prompt

    def before_tool(self, name: str, args: dict[str, Json], call_id: str, context: Context) -> Answers:
        return block_on_failure(self, name, lambda: self._judge(name, args, call_id, context))

    def _judge(self, name: str, args: dict[str, Json], call_id: str, context: Context) -> Answers:
        request = request_for_call(name, args, workspace_of(context))
        if context.mode == "plan":
            return self._judge_in_plan_mode(name, request, context)
        if (
            not self._needs_approval(name, request, context)
            or self._use_confirmation(request)
            or self._is_safe(request)
        ):
            return None
        gate = self._gate(name, args, call_id, request, self._reason(name, context))
        return Hold(
            gate,
            self.timeout or None,
            lambda status, option: self._remember(status, option, request, gate),
            self._confirmation(request),
        )

    def _confirmation(self, request: Request) -> str:
        command = request.command.text.strip() if request.command is not None else ""
        return self.confirm_prefix + command if self.confirm_prefix and command else ""

    def _judge_in_plan_mode(self, name: str, request: Request, context: Context) -> BlockTool | None:
        if not (context.tool_writes(name) or request.command is not None or self._is_listed(name, context)):
            return None
        return BlockTool(
            f"{name} isn't available in plan mode, which is read-only. Describe what you would do instead."
        )

    def _is_listed(self, name: str, context: Context) -> bool:
        return name in self.require_approval_for or context.tool_needs_approval(name)

    def _needs_approval(self, name: str, request: Request, context: Context) -> bool:
        if context.mode in _MODES_WITHOUT_APPROVAL:
            return False
        if context.mode and request.command is not None:
            return True
        covers_writes = context.mode == "ask" or (context.mode == "edits" and _is_mcp_tool(name))
        return self._is_listed(name, context) or (covers_writes and context.tool_writes(name))

    def _use_confirmation(self, request: Request) -> bool:
        """Return whether a person confirmed this command with a prompt. A confirmation counts once."""
        text = request.command.text.strip() if request.command is not None else ""
        if not text or text not in self.state.confirmed:
            return False
        confirmed = list(self.state.confirmed)
        confirmed.remove(text)
        self.state = replace(self.state, confirmed=tuple(confirmed))
        return True

    def _is_safe(self, request: Request) -> bool:
        parts = request.command.parts if request.command is not None else ()
        by_pattern = [Rule("allow", SHELL, family=words) for words in parts if self._matches_pattern(words)]
        remembered = [rule for text in self.state.rules if (rule := _parse_rule(text)) is not None]
        return decide(request, (*self.safe, *by_pattern, *remembered)).effect == "allow"

    def _matches_pattern(self, words: shell.Words) -> bool:
        return any(pattern.fullmatch(shlex.join(words)) for pattern in self.patterns)

    def _reason(self, name: str, context: Context) -> str:
        """Return why an approval is needed, for the person who decides."""
        if context.tool_needs_approval(name):
            return f"The tool {name} requires approval."
        return f"Mode {context.mode} requires approval." if context.mode else f"Calls of {name} require approval."

    def _gate(self, name: str, args: dict[str, Json], call_id: str, request: Request, reason: str) -> GateRequest:
        confirmation = self._confirmation(request)
        repeat = f" You can also send this prompt: {confirmation}" if confirmation else ""
        return GateRequest(
            tool=name,
            args=args,
            call_id=call_id,
            title=approval_title(name, args),
            hint=reason + repeat,
            ask=_ask_kind(name, request),
            options=_gate_options(_session_rule(request)),
        )

    def _remember(self, status: str, option: str, request: Request, gate: GateRequest) -> Emit | None:
        """Add a rule to the state if a person approved the call for the whole session."""
        if status != "approved" or option != APPROVE_ALWAYS:
            return None
        rule = _session_rule(request)
        if rule is None:
            text = f"Allowed only once, because no rule can describe this call safely: {gate.title}"
            return Emit(Notice(text=text, source=self.name))
        rules = dict.fromkeys((*self.state.rules, rule.text))
        self.state = replace(self.state, rules=tuple(rules)[-_MAX_RULES:])
        return Emit(always(rule))


def _compile_pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text.removeprefix(_REGEX))
    except re.error as error:
        problem = f"{text!r} isn't a valid regular expression: {error}"
        raise InvalidPluginOption(HumanApproval.name, "safe_commands", problem) from None


def _parse_prefix(text: str) -> Rule:
    """Return the rule for a safe command. One that doesn't say what runs (`sudo`, `env`, `python`) must match exactly."""
    try:
        words = tuple(shlex.split(text))
    except ValueError:
        words = ()
    if not words:
        raise InvalidPluginOption(HumanApproval.name, "safe_commands", f"{text!r} isn't a command")
    return Rule("allow", SHELL, family=words) if shell.is_family(words) else Rule("allow", SHELL, exact=text)


def _parse_rule(text: str) -> Rule | None:
    """Return a remembered rule, or None if this release can't parse it. Such a rule allows nothing."""
    try:
        return parse(text)
    except InvalidRule:
        return None


def _session_rule(request: Request) -> Rule | None:
    try:
        return rule_about(request, "session", "")
    except InvalidRule:
        return None


def _ask_kind(name: str, request: Request) -> Literal["tool", "command", "mcp"]:
    if request.command is not None:
        return "command"
    return "mcp" if _is_mcp_tool(name) else "tool"


def _is_mcp_tool(name: str) -> bool:
    """Return whether a tool belongs to an MCP server (`server__tool`). It changes something outside the session."""
    return "__" in name


def _gate_options(rule: Rule | None) -> tuple[Option, ...]:
    """Return the choices for a person. Allowing for the whole session is offered only if a rule can describe the call."""
    subject = " ".join(rule.family) or rule.exact or f"{rule.tool} {rule.path}".strip() if rule is not None else ""
    label = f"Always allow in this session: {subject}"
    always_option = (Option(id=APPROVE_ALWAYS, label=label, kind="allow_always"),) if subject else ()
    return (
        Option(id=APPROVE_ONCE, label="Allow once", kind="allow_once"),
        *always_option,
        Option(id=REJECT_ONCE, label="Reject", kind="reject_once"),
    )
