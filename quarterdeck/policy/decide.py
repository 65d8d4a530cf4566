"""Decide a request by all rules, and create the rule for "always".

"Always" creates the narrowest useful rule:

- For a single plain command of a known family: the family (`git status`, `npm run build`).
- For any other command: exactly that line.
- For files: the tool in the files' folder, without subfolders. For a hidden file, or one outside the session's folder:
  that file.
- For anything else: the tool by its name.

A rule that wouldn't allow the request it was created for is an error.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from msgspec import Struct
from msgspec.structs import replace

from quarterdeck.events import Event, RuleRemoved, ToolApprovedAlways
from quarterdeck.kernel.gate import Gate
from quarterdeck.policy import paths, shell
from quarterdeck.policy.paths import Workspace
from quarterdeck.policy.request import Request, request_of
from quarterdeck.policy.rule import SHELL, Effect, InvalidRule, Rule, Scope, checked, parse

#: How many possible working folders of a command line are tracked. Each `cd` doubles them.
_MAX_FOLDERS = 8
#: Origins whose rules count. An agent also reports its own "always", which must not create a rule of ours.
_TRUSTED_ORIGINS = frozenset({"user", "supervisor", "engine"})


class Verdict(Struct, frozen=True, gc=False):
    """The effect of the rules on a request, and the rules that led to it. Without rules the user is asked."""

    effect: Effect
    rules: tuple[Rule, ...] = ()

    @property
    def text(self) -> str:
        """The texts of the rules, for events. Several rules may allow a line of several commands together."""
        return " + ".join([rule.text for rule in self.rules])


def decide(request: Request, rules: Iterable[Rule]) -> Verdict:
    """Decide a request: deny wins, then ask, then allow; without a rule, ask. The order of the rules doesn't matter."""
    applicable = sorted((rule for rule in rules if _applies(rule, request)), key=lambda rule: rule.text)
    restricting = _first_restricting([rule for rule in applicable if rule.effect != "allow"], request)
    if restricting is not None:
        return Verdict(restricting.effect, (restricting,))
    allowing = _allowing_together([rule for rule in applicable if rule.effect == "allow"], request)
    return Verdict("allow", allowing) if allowing else Verdict("ask")


def _applies(rule: Rule, request: Request) -> bool:
    """Return whether the request is in the rule's scope and uses its tool."""
    workspace = request.workspace
    if rule.scope == "session" and rule.key != workspace.session_id:
        return False
    if rule.scope == "repo" and paths.normal(rule.key) != workspace.root:
        return False
    return _matches_tool(rule, request)


def _matches_tool(rule: Rule, request: Request) -> bool:
    if rule.tool == SHELL and request.command is not None:
        return True
    # For an allowing rule, brackets are always a pattern: `get[x]` allows `getx`, and not a tool with that literal name.
    if rule.tool == request.tool and (rule.effect != "allow" or "[" not in rule.tool):
        return True
    if rule.effect == "allow":
        return fnmatchcase(request.tool, rule.tool)
    return fnmatchcase(request.tool.casefold(), rule.tool.casefold())


# ------------------------------------------------------------------------------- deny and ask: read widely


def _first_restricting(rules: Sequence[Rule], request: Request) -> Rule | None:
    """Return the first rule that denies, else the first that asks."""
    spellings = paths.spellings(request.workspace, _all_paths(request)) if any(rule.path for rule in rules) else ()
    for rule in sorted(rules, key=lambda rule: rule.effect != "deny"):
        if _restricts(rule, request, spellings):
            return rule
    return None


def _restricts(rule: Rule, request: Request, spellings: Iterable[Sequence[str]]) -> bool:
    command = request.command
    if (rule.family or rule.exact) and (command is None or not _names_command(rule, command)):
        return False
    return not rule.path or paths.touches(rule.path, request.workspace, spellings)


def _names_command(rule: Rule, command: shell.Command) -> bool:
    if rule.family:
        return shell.contains(command, rule.family)
    denied = shell.read(rule.exact.strip())
    if command.text.strip() == denied.text or (denied.loose and denied.loose == command.loose):
        return True
    return len(denied.parts) == 1 and denied.parts[0] in (*command.parts, *command.loose)


def _all_paths(request: Request) -> list[str]:
    if request.command is None:
        return list(request.paths)
    commands = (*request.command.parts, *request.command.loose)
    return [request.workdir, *dict.fromkeys(path for words in commands for path in shell.paths_in(words))]


# ---------------------------------------------------------------------------------- allow: read narrowly


def _allowing_together(rules: Sequence[Rule], request: Request) -> tuple[Rule, ...]:
    """Return the rules that together allow the whole request, or none if a part of it isn't allowed."""
    if not request.is_known:
        return ()
    whole = [rule for rule in rules if _allows_whole(rule, request)]
    if whole:
        return (whole[0],)
    if request.command is not None:
        parts = _commands_to_allow(request, request.command)
        return _one_for_each([[rule for rule in rules if _allows_part(rule, request, *part)] for part in parts])
    return _one_for_each([[rule for rule in rules if _allows_path(rule, request, path)] for path in request.paths])


def _one_for_each(candidates: Sequence[Sequence[Rule]]) -> tuple[Rule, ...]:
    """Choose a rule for each part, or none at all if a part has no rule."""
    return tuple(dict.fromkeys(rules[0] for rules in candidates)) if all(candidates) else ()


def _allows_whole(rule: Rule, request: Request) -> bool:
    """Return whether a rule for exactly this line, or for the tool alone, allows the request."""
    if rule.family or rule.path:
        return False
    if rule.exact:
        command = request.command
        return command is not None and command.text.strip() == rule.exact.strip() and request.is_inside
    return request.is_inside if request.command is not None else not request.paths


def _commands_to_allow(request: Request, command: shell.Command) -> list[tuple[shell.Words, tuple[str, ...]]]:
    """Return the commands that need a rule, each with all folders it may run in.

    A `cd` within the workspace needs no rule. Whether it is executed depends on `&&` and `||`, so both the folder before
    it and the folder after it are possible.
    """
    commands: list[tuple[shell.Words, tuple[str, ...]]] = []
    folders = (request.workdir,)
    for words in command.parts:
        if len(folders) <= _MAX_FOLDERS and _is_cd_inside(request.workspace, words, folders):
            folders = (*folders, *(posixpath.join(folder, words[1]) for folder in folders))
        else:
            commands.append((words, folders))
    return commands


def _is_cd_inside(workspace: Workspace, words: shell.Words, folders: tuple[str, ...]) -> bool:
    if len(words) != 2 or words[0] != "cd" or words[1].startswith(("-", "~")):
        return False
    return all(paths.is_inside(workspace, posixpath.join(folder, words[1])) for folder in folders)


def _allows_part(rule: Rule, request: Request, words: shell.Words, folders: tuple[str, ...]) -> bool:
    if not rule.family or not shell.begins(words, rule.family) or shell.has_hatch(words):
        return False
    named = list(shell.paths_in(words[1:]))
    return request.is_inside and all(
        _stays_inside(request.workspace, folder, path) for folder in folders for path in named
    )


def _stays_inside(workspace: Workspace, folder: str, path: str) -> bool:
    """Return whether a word that may be a path stays inside the workspace. A URL isn't a path."""
    if path == "/dev/null" or "://" in path:
        return True
    return paths.is_inside(workspace, path if path.startswith("~") else posixpath.join(folder, path))


def _allows_path(rule: Rule, request: Request, path: str) -> bool:
    if rule.family or rule.exact:
        return False
    if rule.path:
        return paths.covers(rule.path, request.workspace, path)
    return paths.is_inside(request.workspace, path)


# ------------------------------------------------------------------------------------------------ always


def rule_for(gate: Gate, scope: Scope, workspace: Workspace, created_at: int = 0) -> Rule:
    """Create the rule that "always" means for this gate.

    Raises:
        InvalidRule: no rule can allow this request, or the session has no key for the scope.
    """
    return rule_about(request_of(gate, workspace), scope, gate.title, created_at)


def rule_about(request: Request, scope: Scope, title: str, created_at: int = 0) -> Rule:
    """Create the rule that "always" means for a request. `title` describes the request in errors.

    Raises:
        InvalidRule: no rule can allow this request, or the session has no key for the scope.
    """
    workspace = request.workspace
    key = {"session": workspace.session_id, "repo": workspace.root, "user": ""}[scope]
    if scope != "user" and not key:
        raise InvalidRule(f"this session has no {scope} to store a rule for", hint="Choose another scope.")
    rule = checked(_narrowest(request, scope, key, created_at))
    if decide(request, (rule,)).effect != "allow":
        raise InvalidRule(f"no rule can allow this safely: {title}", hint="Allow it once, or write a rule by hand.")
    return rule


def _narrowest(request: Request, scope: Scope, key: str, created_at: int) -> Rule:
    rule = Rule("allow", request.tool or "*", scope=scope, key=key, created_at=created_at)
    if request.command is None:
        pattern = paths.common_pattern(request.workspace, request.paths) if request.paths else ""
        return replace(rule, tool=paths.escaped(rule.tool), path=pattern)
    text = request.command.text.strip()
    if not text:
        raise InvalidRule("the command is not known", hint="Allow it once.")
    parts = _commands_to_allow(request, request.command)
    family = shell.family_of(parts[0][0]) if len(parts) == 1 else ()
    by_family = replace(rule, tool=SHELL, family=family)
    is_sufficient = bool(family) and decide(request, (by_family,)).effect == "allow"
    return by_family if is_sufficient else replace(rule, tool=SHELL, exact=text)


# ----------------------------------------------------------------------------------------- session rules


def always(rule: Rule) -> ToolApprovedAlways:
    """Create the event for a new rule. A session's rules are stored only in these events."""
    family = " ".join(rule.family) or rule.exact
    return ToolApprovedAlways(tool=rule.tool, command_family=family, scope=rule.scope, rule=rule.text)


def session_rules(events: Iterable[Event], known: Iterable[Rule] = ()) -> tuple[Rule, ...]:
    """Add the session rules in these events to the known ones. Rules that an agent reports are ignored."""
    rules = {rule.id: rule for rule in known}
    for event in events:
        rule = _session_rule(event)
        if rule is None:
            continue
        if isinstance(event.body, RuleRemoved):
            rules.pop(rule.id, None)
        else:
            rules.setdefault(rule.id, rule)
    return tuple(rules.values())


def _session_rule(event: Event) -> Rule | None:
    """Return the session rule that this event creates or removes."""
    body = event.body
    if not isinstance(body, ToolApprovedAlways | RuleRemoved) or event.origin not in _TRUSTED_ORIGINS:
        return None
    if isinstance(body, ToolApprovedAlways) and body.scope != "session":
        return None
    try:
        rule = parse(body.rule, event.at)
    except InvalidRule:
        return None
    return rule if rule.scope == "session" and rule.key == event.session_id else None
