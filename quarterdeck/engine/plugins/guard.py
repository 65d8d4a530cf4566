"""SecurityGuard: paths that nothing may touch, and commands that never run, whatever the mode and whoever approves.

Black lists are read as widely as the deck's rules that deny (quarterdeck/policy): in every corner of a command line, a path
by any of its names and through links. It is a fence against accidents, not a sandbox: a program that is allowed to run can
do what it likes.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Sequence
from typing import Literal

from quarterdeck.engine.plugins.base import Answers, BlockTool, Context, Emit, InvalidPluginOption, Plugin
from quarterdeck.engine.plugins.fence import closed_on_failure, place_of
from quarterdeck.events import Json, PluginEvent
from quarterdeck.home import home
from quarterdeck.policy import InvalidRule, Request, Rule, decide, request_for_call
from quarterdeck.policy.rule import SHELL, checked

#: Keys and passwords. The deck's own token is added when the guard is made.
DENIED_PATHS = (
    *("~/.ssh/**", "~/.gnupg/**", "~/.aws/**", "~/.azure/**", "~/.config/gcloud/**", "~/.kube/**"),
    *("~/.netrc", "~/.pgpass", "~/.pypirc", "~/.git-credentials", "~/.docker/config.json", "~/.config/gh/hosts.yml"),
    *("/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/sudoers.d/**", "/proc/*/environ"),
)
_END = r"(?=$|[\s;&|)'\"`])"
_REMOVES = r"\brm(?=\s)(?=[^;&|\n]{0,300}\s(?:-\w*[rR]|--recursive))"
#: What cannot be undone. An expression, because these words mean harm only where a command stands. Each looks only so far
#: ahead, so that no text can keep it busy.
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
_LONG = 4_000


class SecurityGuard(Plugin):
    """Blocks calls by black lists, which are added to the built-in ones, and tells of it in `security_audit` events.

    `paths` are patterns as in docs/rules.md; `commands` a command with its first words, or `re:` and an expression that
    is looked for anywhere in a line. `audit="all"` tells of the calls that passed, too.
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
        listed = (*(_defaults() if defaults else ()), *paths)
        lines = (*(DENIED_COMMANDS if defaults else ()), *commands)
        self.audit = audit
        self.patterns = tuple(_pattern(one) for one in lines if one.startswith(_REGEX))
        self.rules = (
            *(_path_rule(one) for one in listed),
            *(_command_rule(one) for one in lines if not one.startswith(_REGEX)),
        )

    async def before_tool(self, name: str, args: dict[str, Json], call_id: str, context: Context) -> Answers:
        def judged() -> Answers:
            return closed_on_failure(self, name, lambda: self._judged(name, args, call_id, context))

        # every word of a long command is looked up on disk, and other agents must not wait for that
        is_long = len(str(args.get("command", ""))) > _LONG
        return await asyncio.to_thread(judged) if is_long else judged()

    def _judged(self, name: str, args: dict[str, Json], call_id: str, context: Context) -> Answers:
        found = self._denied(request_for_call(name, args, place_of(context)))
        told = {"tool": name, "call_id": call_id, "verdict": "blocked" if found else "passed", "rule": found}
        event = Emit(PluginEvent(name="security_audit", payload=told))
        if found:
            return (event, BlockTool(f"the security guard does not allow this ({found}). Do it in another way."))
        return event if self.audit == "all" else None

    def _denied(self, request: Request) -> str:
        """What denies it, in words; empty when nothing does."""
        verdict = decide(request, self.rules)
        if verdict.effect == "deny":
            return verdict.text
        text = request.command.text if request.command is not None else ""
        return next((f"deny {SHELL} {_REGEX}{one.pattern}" for one in self.patterns if one.search(text)), "")


def _defaults() -> tuple[str, ...]:
    return (*DENIED_PATHS, _literal(str(home().token)))


def _literal(path: str) -> str:
    return "".join(f"[{one}]" if one in "*?[" else one for one in path)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text.removeprefix(_REGEX), re.MULTILINE)
    except re.error as fault:
        raise InvalidPluginOption(SecurityGuard.name, "commands", f"{text!r} is no expression: {fault}") from None


def _path_rule(pattern: str) -> Rule:
    try:
        return checked(Rule("deny", "*", path=pattern))
    except InvalidRule as fault:
        raise InvalidPluginOption(SecurityGuard.name, "paths", fault.what) from None


def _command_rule(text: str) -> Rule:
    try:
        words = tuple(shlex.split(text))
    except ValueError:
        words = ()
    if not words:
        raise InvalidPluginOption(SecurityGuard.name, "commands", f"{text!r} is no command")
    return Rule("deny", SHELL, family=words)
