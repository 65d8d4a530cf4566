"""SecurityGuard: block calls that touch protected paths or run forbidden commands, in every mode and even if approved.

Deny lists are read as widely as the deck's deny rules (quarterdeck/policy): anywhere in a command line, and a path by any of
its names and through links. This protects against accidents. It isn't a sandbox: a program that is allowed to run can do
anything.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Sequence
from typing import Literal

from quarterdeck.engine.plugins.base import Answers, BlockTool, Context, Emit, InvalidPluginOption, Plugin
from quarterdeck.engine.plugins.call_checks import block_on_failure, workspace_of
from quarterdeck.events import Json, PluginEvent
from quarterdeck.home import home
from quarterdeck.policy import InvalidRule, Request, Rule, decide, request_for_call
from quarterdeck.policy.rule import SHELL, checked

#: Keys and passwords. The deck's own token is added in `_default_paths`.
DENIED_PATHS = (
    *("~/.ssh/**", "~/.gnupg/**", "~/.aws/**", "~/.azure/**", "~/.config/gcloud/**", "~/.kube/**"),
    *("~/.netrc", "~/.pgpass", "~/.pypirc", "~/.git-credentials", "~/.docker/config.json", "~/.config/gh/hosts.yml"),
    *("/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/sudoers.d/**", "/proc/*/environ"),
)
_END = r"(?=$|[\s;&|)'\"`])"
_REMOVES = r"\brm(?=\s)(?=[^;&|\n]{0,300}\s(?:-\w*[rR]|--recursive))"
#: Commands whose effect can't be undone. They are regular expressions, because these words are harmful only in the position
#: of a command. Repetitions are bounded, so that no input can make matching slow.
DENIED_COMMANDS = (
    rf"re:{_REMOVES}[^;&|\n]{{0,300}}?\s[\"']?(?:/|~|\$\{{?HOME\}}?)[\"']?/?\*?{_END}",
    r"re:\bmkfs(?:\.\w+)?\s+\S",
    r"re:\bdd\b[^;&|]{0,300}\bof=/dev/(?!null\b|zero\b|stdout\b|stderr\b|tty\b)",
    r"re:>\s*/dev/(?:sd|hd|vd|xvd|nvme|mmcblk|disk)",
    rf"re:\bch(?:mod|own)\s+(?:-\S+\s+)*-\w*R\S*\s+\S+\s+/{_END}",
    r"re::\s*\(\s*\)\s*\{[^}]{0,300}:\s*\|\s*:",
    r"re:\b(?:curl|wget)\b[^;&|]{0,300}\|\s*(?:sudo\s+(?:-\S+\s+)*)?(?:\S*/)?(?:ba|z|da|k|c)?sh\b",
    rf"re:(?:^|[;&|(`]|\bsudo)\s*(?:\S*/)?(?:shutdown|reboot|halt|poweroff)(?:\s+(?:-|now\b|\+?\d)|{_END}(?!['\"]))",
)
_REGEX = "re:"
#: Commands longer than this are judged on a thread.
_LONG_COMMAND = 4_000


class SecurityGuard(Plugin):
    """Block calls by deny lists and report them as `security_audit` events.

    `paths` and `commands` are added to the built-in lists, unless `defaults` is off. `paths` are patterns as in
    docs/rules.md. `commands` are the first words of a command, or `re:` and a regular expression that is searched for
    anywhere in a line. With `audit="all"`, calls that pass are reported too.
    """

    name = "security_guard"
    priority = 10

    def __init__(
        self,
        *,
        paths: Sequence[str] = (),
        commands: Sequence[str] = (),
        defaults: bool = True,
        audit: Literal["blocked", "all"] = "blocked",
    ) -> None:
        all_paths = (*(_default_paths() if defaults else ()), *paths)
        all_commands = (*(DENIED_COMMANDS if defaults else ()), *commands)
        self.audit = audit
        self.patterns = tuple(_compile_pattern(text) for text in all_commands if text.startswith(_REGEX))
        self.rules = (
            *(_path_rule(path) for path in all_paths),
            *(_command_rule(text) for text in all_commands if not text.startswith(_REGEX)),
        )

    async def before_tool(self, name: str, args: dict[str, Json], call_id: str, context: Context) -> Answers:
        def judge() -> Answers:
            return block_on_failure(self, name, lambda: self._judge(name, args, call_id, context))

        # Every word of a command is looked up on disk. For a long command that would hold up other agents on this loop.
        is_long = len(str(args.get("command", ""))) > _LONG_COMMAND
        return await asyncio.to_thread(judge) if is_long else judge()

    def _judge(self, name: str, args: dict[str, Json], call_id: str, context: Context) -> Answers:
        rule = self._denying_rule(request_for_call(name, args, workspace_of(context)))
        payload = {"tool": name, "call_id": call_id, "verdict": "blocked" if rule else "passed", "rule": rule}
        event = Emit(PluginEvent(name="security_audit", payload=payload))
        if rule:
            return (event, BlockTool(f"blocked by the security guard ({rule}). Use another way."))
        return event if self.audit == "all" else None

    def _denying_rule(self, request: Request) -> str:
        """Return the text of the rule that denies a request, or an empty string."""
        verdict = decide(request, self.rules)
        if verdict.effect == "deny":
            return verdict.text
        text = request.command.text if request.command is not None else ""
        return next(
            (f"deny {SHELL} {_REGEX}{pattern.pattern}" for pattern in self.patterns if pattern.search(text)), ""
        )


def _default_paths() -> tuple[str, ...]:
    return (*DENIED_PATHS, _escape_pattern(str(home().token)))


def _escape_pattern(path: str) -> str:
    """Return a pattern that matches exactly this path."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in path)


def _compile_pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text.removeprefix(_REGEX), re.MULTILINE)
    except re.error as error:
        problem = f"{text!r} isn't a valid regular expression: {error}"
        raise InvalidPluginOption(SecurityGuard.name, "commands", problem) from None


def _path_rule(pattern: str) -> Rule:
    try:
        return checked(Rule("deny", "*", path=pattern))
    except InvalidRule as error:
        raise InvalidPluginOption(SecurityGuard.name, "paths", error.what) from None


def _command_rule(text: str) -> Rule:
    try:
        words = tuple(shlex.split(text))
    except ValueError:
        words = ()
    if not words:
        raise InvalidPluginOption(SecurityGuard.name, "commands", f"{text!r} isn't a command")
    return Rule("deny", SHELL, family=words)
