"""Rules that decide approvals by themselves.

A rule says allow, deny or ask, and of what: a tool, a command family, a path, in one session, one repository, or for
the user everywhere. Every request is judged on its own, by all rules that apply, in no order: **deny wins, then ask,
then allow; no rule means that a person is asked.** Every verdict names the text of the rules that made it.

The two directions read a request differently, and that is the point of this package. What *allows* is read narrowly: a
command line must be understood to its last character, every one of its commands must be allowed, nothing may reach out
of the session's folder, and what is not understood is asked. What *denies or asks* is read widely: any command in any
corner of the line, any path by any of its names.

A rule is a door in a fence, not a sandbox: a program that is allowed to run can do what it likes. `shell.py` reads
commands, `paths.py` paths, `request.py` what is asked, `rule.py` is the rule and its text, `decide.py` the verdict and
"always". All of it is pure. The deck keeps rules in a file (`deck/rules.py`), the built-in agent in its plugins' state.
"""

from __future__ import annotations

from quarterdeck.policy import paths, shell
from quarterdeck.policy.decide import Verdict, always, decide, rule_about, rule_for, session_rules
from quarterdeck.policy.paths import Place
from quarterdeck.policy.request import Request, request_for_call, request_of
from quarterdeck.policy.rule import Effect, InvalidRule, Rule, Scope, parse

__all__ = [
    "Effect",
    "InvalidRule",
    "Place",
    "Request",
    "Rule",
    "Scope",
    "Verdict",
    "always",
    "decide",
    "parse",
    "paths",
    "request_for_call",
    "request_of",
    "rule_about",
    "rule_for",
    "session_rules",
    "shell",
]
