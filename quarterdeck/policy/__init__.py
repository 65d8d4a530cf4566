"""Decide approvals by rules.

A rule allows, denies or asks, for a tool, a command family or a path, in one session, in one repository or everywhere.
All rules that apply to a request are considered, in no order: **deny wins, then ask, then allow. Without a rule the user
is asked.** Every verdict names the rules that led to it.

Requests are read differently for the two directions:

- A rule that *allows* is applied narrowly. The command line must be understood completely, each of its commands must be
  allowed, and nothing may leave the session's folder. If a part isn't understood, the user is asked.
- A rule that *denies or asks* is applied widely: to any command anywhere in the line, and to any name of a path.

Rules aren't a sandbox: a program that is allowed to run can do anything.

`shell.py` parses commands, `paths.py` matches paths, `request.py` describes what is asked, `rule.py` is a rule and its
text, `decide.py` gives the verdict and creates the rule for "always". All of it is pure. The deck stores rules in a file
(`deck/rules.py`), the built-in agent in the state of its plugins.
"""

from __future__ import annotations

from quarterdeck.policy import paths, shell
from quarterdeck.policy.decide import Verdict, always, decide, rule_about, rule_for, session_rules
from quarterdeck.policy.paths import Workspace
from quarterdeck.policy.request import Request, request_for_call, request_of
from quarterdeck.policy.rule import Effect, InvalidRule, Rule, Scope, parse

__all__ = [
    "Effect",
    "InvalidRule",
    "Request",
    "Rule",
    "Scope",
    "Verdict",
    "Workspace",
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
