"""HumanApproval: a person is asked before a dangerous call runs.

Which calls are asked about follows from the session's mode (design section 6) and, without one, from the options:

    plan    nothing is asked; what is not a reading tool is blocked
    ask     shell, and every tool that writes
    edits   shell, and tools of MCP servers that do not say that they only read
    auto, bypass   nothing
    none    `require_approval_for`

and in every mode that asks: the tools that say so themselves. Not asked about are commands of `safe_commands`, families
that a person allowed for good, and a command that a person has just repeated with `confirm_prefix`. All of that is read
as narrowly as the deck's own rules (quarterdeck/policy): every command of a line must be safe, none may reach out of the
session's folder, and a line that is not understood to its last character is asked about.

It stands late among the plugins, so that a person sees the arguments that really run.
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
from quarterdeck.engine.plugins.fence import closed_on_failure, place_of
from quarterdeck.events import GateRequest, Json, Notice, Option
from quarterdeck.policy import InvalidRule, Request, Rule, always, decide, parse, request_for_call, rule_about, shell
from quarterdeck.policy.rule import SHELL

#: Commands that only show something; the default set of the built-in agent does not ask about them.
READ_ONLY_COMMANDS = (
    *("pwd", "ls", "cat", "head", "tail", "wc", "grep", "rg", "echo", "which", "whoami", "date", "uname", "tree"),
    *("stat", "file", "du", "diff", "cmp", "basename", "dirname", "realpath"),
    *("git status", "git diff", "git log", "git show", "git blame", "git ls-files", "git rev-parse", "git describe"),
)
APPROVE_ONCE, APPROVE_ALWAYS, REJECT_ONCE = "approve_once", "approve_always", "reject_once"
_REGEX = "re:"
_SILENT = ("auto", "bypass")
_TITLE_LIMIT = 200
_MOST_CONFIRMED = 16
_MOST_RULES = 500


class _State(Struct, frozen=True, omit_defaults=True):
    """`rules` are the texts of what was allowed for good, `confirmed` the commands whose next call passes."""

    rules: tuple[str, ...] = ()
    confirmed: tuple[str, ...] = ()


class HumanApproval(Plugin):
    """Asks a person, holds the call until they decide, and remembers what they allow for good in this session.

    `safe_commands`: a command with its first words (`git status`), or `re:` and an expression that a whole command must
    match. `timeout` in seconds, 0 for none. `confirm_prefix`: a person may also repeat the command as a prompt, after it.
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
                self.name, "timeout", f"{timeout} is no time to wait", "Give seconds; 0 waits for ever."
            )
        self.require_approval_for = frozenset(require_approval_for)
        self.confirm_prefix = confirm_prefix
        self.timeout = timeout
        self.patterns = tuple(_pattern(one) for one in safe_commands if one.startswith(_REGEX))
        self.safe = tuple(_prefix(one) for one in safe_commands if not one.startswith(_REGEX))
        self.state: Any = _State()

    def restore(self, state: Json) -> None:
        self.state = msgspec.convert(state, _State)

    def before_prompt(self, text: str, context: Context) -> None:
        if context.agent_path:  # written by the agent that wants the yes
            return
        command = text.removeprefix(self.confirm_prefix).strip()
        if self.confirm_prefix and text.startswith(self.confirm_prefix) and command:
            kept = (*self.state.confirmed, command)[-_MOST_CONFIRMED:]
            self.state = replace(self.state, confirmed=kept)

    before_steering = before_prompt

    def before_tool(self, name: str, args: dict[str, Json], call_id: str, context: Context) -> Answers:
        return closed_on_failure(self, name, lambda: self._judged(name, args, call_id, context))

    def _judged(self, name: str, args: dict[str, Json], call_id: str, context: Context) -> Answers:
        request = request_for_call(name, args, place_of(context))
        if context.mode == "plan":
            return self._planned(name, request, context)
        if not self._is_asked(name, request, context) or self._is_confirmed(request) or self._is_allowed(request):
            return None
        gate = self._gate(name, args, call_id, request, self._why(name, context))
        return Hold(
            gate,
            self.timeout or None,
            lambda status, option: self._decided(status, option, request, gate),
            self._confirmation(request),
        )

    def _confirmation(self, request: Request) -> str:
        command = request.command.text.strip() if request.command is not None else ""
        return self.confirm_prefix + command if self.confirm_prefix and command else ""

    def _planned(self, name: str, request: Request, context: Context) -> BlockTool | None:
        if not (context.tool_writes(name) or request.command is not None or self._is_named(name, context)):
            return None
        return BlockTool(f"{name} is not available in plan mode, which only reads. Say what you would do instead.")

    def _is_named(self, name: str, context: Context) -> bool:
        return name in self.require_approval_for or context.tool_needs_approval(name)

    def _is_asked(self, name: str, request: Request, context: Context) -> bool:
        if context.mode in _SILENT:
            return False
        if context.mode and request.command is not None:
            return True
        writes = context.mode == "ask" or (context.mode == "edits" and _is_of_server(name))
        return self._is_named(name, context) or (writes and context.tool_writes(name))

    def _is_confirmed(self, request: Request) -> bool:
        """Whether a person has repeated this command; that counts once."""
        text = request.command.text.strip() if request.command is not None else ""
        if not text or text not in self.state.confirmed:
            return False
        left = list(self.state.confirmed)
        left.remove(text)
        self.state = replace(self.state, confirmed=tuple(left))
        return True

    def _is_allowed(self, request: Request) -> bool:
        parts = request.command.parts if request.command is not None else ()
        by_pattern = [Rule("allow", SHELL, family=words) for words in parts if self._fits(words)]
        kept = [rule for text in self.state.rules if (rule := _kept(text)) is not None]
        return decide(request, (*self.safe, *by_pattern, *kept)).effect == "allow"

    def _fits(self, words: shell.Words) -> bool:
        return any(pattern.fullmatch(shlex.join(words)) for pattern in self.patterns)

    def _why(self, name: str, context: Context) -> str:
        """What a person is told of the reason for asking."""
        if context.tool_needs_approval(name):
            return f"The tool {name} asks for it."
        return f"Asked about in mode {context.mode}." if context.mode else f"Calls of {name} are asked about."

    def _gate(self, name: str, args: dict[str, Json], call_id: str, request: Request, why: str) -> GateRequest:
        command = request.command.text if request.command is not None else ""
        title = " ".join((command or f"{name} {' '.join(request.paths)}").split())
        confirmation = self._confirmation(request)
        repeat = f" Or send it as a prompt: {confirmation}" if confirmation else ""
        return GateRequest(
            tool=name,
            args=args,
            call_id=call_id,
            title=title if len(title) <= _TITLE_LIMIT else title[: _TITLE_LIMIT - 1] + "…",
            hint=why + repeat,
            ask=_ask_of(name, request),
            options=_options(_rule(request)),
        )

    def _decided(self, status: str, option: str, request: Request, gate: GateRequest) -> Emit | None:
        if status != "approved" or option != APPROVE_ALWAYS:
            return None
        rule = _rule(request)
        if rule is None:
            return Emit(Notice(text=f"Allowed once: no rule can say this safely: {gate.title}", source=self.name))
        kept = dict.fromkeys((*self.state.rules, rule.text))
        self.state = replace(self.state, rules=tuple(kept)[-_MOST_RULES:])
        return Emit(always(rule))


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text.removeprefix(_REGEX))
    except re.error as fault:
        raise InvalidPluginOption(HumanApproval.name, "safe_commands", f"{text!r} is no expression: {fault}") from None


def _prefix(text: str) -> Rule:
    """A prefix that does not say what is run (`sudo`, `env`, `python`) is safe only as it stands."""
    try:
        words = tuple(shlex.split(text))
    except ValueError:
        words = ()
    if not words:
        raise InvalidPluginOption(HumanApproval.name, "safe_commands", f"{text!r} is no command")
    return Rule("allow", SHELL, family=words) if shell.is_family(words) else Rule("allow", SHELL, exact=text)


def _kept(text: str) -> Rule | None:
    """A rule that this release cannot read allows nothing."""
    try:
        return parse(text)
    except InvalidRule:
        return None


def _rule(request: Request) -> Rule | None:
    try:
        return rule_about(request, "session", "")
    except InvalidRule:
        return None


def _ask_of(name: str, request: Request) -> Literal["tool", "command", "mcp"]:
    if request.command is not None:
        return "command"
    return "mcp" if _is_of_server(name) else "tool"


def _is_of_server(name: str) -> bool:
    """A tool of an MCP server: `server__tool`. What it changes is no file of the session."""
    return "__" in name


def _options(rule: Rule | None) -> tuple[Option, ...]:
    """Once and no are always offered; always, only where a rule can say it, and with the words of that rule."""
    what = " ".join(rule.family) or rule.exact or f"{rule.tool} {rule.path}".strip() if rule is not None else ""
    lasting = (Option(id=APPROVE_ALWAYS, label=f"Always in this session: {what}", kind="allow_always"),) if what else ()
    return (
        Option(id=APPROVE_ONCE, label="Once", kind="allow_once"),
        *lasting,
        Option(id=REJECT_ONCE, label="No", kind="reject_once"),
    )
