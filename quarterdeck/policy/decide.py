"""The verdict of all rules about one request, and the rule that "always" writes.

"Always" writes the narrowest rule that is of any use. For one plain command of a known family: the family, in any
folder-bound form of it (`git status`, `npm run build`). For every other command: exactly that line. For files: the tool
in the files' folder, not below; a hidden file, or one outside of the session's folder: that file. For anything else: the
tool by its name. A rule that would not allow the very request that it was made for is not written.
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
from quarterdeck.policy.paths import Place
from quarterdeck.policy.request import Request, request_of
from quarterdeck.policy.rule import SHELL, Effect, InvalidRule, Rule, Scope, checked, parse

_MOST_FOLDERS = 8
#: Only we write rules; an agent that tells of its own "always" does not speak for us.
_OURS = frozenset({"user", "supervisor", "engine"})


class Verdict(Struct, frozen=True, gc=False):
    """What the rules say, and which ones. No rules: nothing applied, so a person is asked."""

    effect: Effect
    rules: tuple[Rule, ...] = ()

    @property
    def text(self) -> str:
        """What an event names: the texts of the rules; several allow a line of several commands together."""
        return " + ".join([rule.text for rule in self.rules])


def decide(request: Request, rules: Iterable[Rule]) -> Verdict:
    """Deny wins, then ask, then allow, else ask. The order of the rules means nothing."""
    here = [rule for rule in rules if _applies(rule, request)]
    if len(here) > 1:
        here.sort(key=lambda rule: rule.text)
    allowing = [rule for rule in here if rule.effect == "allow"]
    if len(allowing) < len(here):
        restricting = _restricting([rule for rule in here if rule.effect != "allow"], request)
        if restricting is not None:
            return Verdict(restricting.effect, (restricting,))
    together = _allowing(allowing, request) if allowing else ()
    return Verdict("allow", together) if together else Verdict("ask")


def _applies(rule: Rule, request: Request) -> bool:
    """Whether the request is in the rule's scope, and its tool is meant."""
    place = request.place
    if rule.scope == "session" and rule.key != place.session_id:
        return False
    if rule.scope == "repo" and paths.normal(rule.key) != place.root:
        return False
    return _is_tool(rule, request)


def _is_tool(rule: Rule, request: Request) -> bool:
    if rule.tool == SHELL and request.command is not None:
        return True
    # what allows is a pattern to the letter: `get[x]` means `getx`, and not a tool that calls itself so
    if rule.tool == request.tool and (rule.effect != "allow" or "[" not in rule.tool):
        return True
    if rule.effect == "allow":
        return fnmatchcase(request.tool, rule.tool)
    return fnmatchcase(request.tool.casefold(), rule.tool.casefold())


# --- widely: deny and ask


def _restricting(rules: Sequence[Rule], request: Request) -> Rule | None:
    """The first one that denies, else the first one that asks."""
    spelled = paths.spelled(request.place, _all_paths(request)) if any(one.path for one in rules) else ()
    for rule in sorted(rules, key=lambda rule: rule.effect != "deny"):
        if _restricts(rule, request, spelled):
            return rule
    return None


def _restricts(rule: Rule, request: Request, spelled: Iterable[Sequence[str]]) -> bool:
    command = request.command
    if (rule.family or rule.exact) and (command is None or not _names_command(rule, command)):
        return False
    return not rule.path or paths.touches(rule.path, request.place, spelled)


def _names_command(rule: Rule, command: shell.Command) -> bool:
    if rule.family:
        return shell.contains(command, rule.family)
    wanted = shell.read(rule.exact.strip())
    if command.text.strip() == wanted.text or (wanted.loose and wanted.loose == command.loose):
        return True
    return len(wanted.parts) == 1 and wanted.parts[0] in (*command.parts, *command.loose)


def _all_paths(request: Request) -> list[str]:
    if request.command is None:
        return list(request.paths)
    lines = (*request.command.parts, *request.command.loose)
    return [request.workdir, *dict.fromkeys(path for words in lines for path in shell.paths_in(words))]


# --- narrowly: allow


def _allowing(rules: Sequence[Rule], request: Request) -> tuple[Rule, ...]:
    """The rules that together allow all of the request; none when something of it is not allowed."""
    if not request.is_known:
        return ()
    whole = [rule for rule in rules if _allows_whole(rule, request)]
    if whole:
        return (whole[0],)
    if request.command is not None:
        parts = _to_allow(request, request.command)
        return _one_each([[rule for rule in rules if _allows_part(rule, request, *part)] for part in parts])
    return _one_each([[rule for rule in rules if _allows_path(rule, request, path)] for path in request.paths])


def _one_each(found: Sequence[Sequence[Rule]]) -> tuple[Rule, ...]:
    """A rule for each piece; none at all when a piece has none."""
    return tuple(dict.fromkeys(rules[0] for rules in found)) if all(found) else ()


def _allows_whole(rule: Rule, request: Request) -> bool:
    """A rule about exactly this line, or about the tool and nothing else."""
    if rule.family or rule.path:
        return False
    if rule.exact:
        command = request.command
        return command is not None and command.text.strip() == rule.exact.strip() and request.is_inside
    return request.is_inside if request.command is not None else not request.paths


def _to_allow(request: Request, command: shell.Command) -> list[tuple[shell.Words, tuple[str, ...]]]:
    """The commands that need a rule, each with all folders that it may run in.

    A `cd` that stays inside needs none, but whether it is taken depends on `&&` and `||`: so both folders count.
    """
    found: list[tuple[shell.Words, tuple[str, ...]]] = []
    folders = (request.workdir,)
    for words in command.parts:
        if len(folders) <= _MOST_FOLDERS and _is_step_inside(request.place, words, folders):
            folders = (*folders, *(posixpath.join(folder, words[1]) for folder in folders))
        else:
            found.append((words, folders))
    return found


def _is_step_inside(place: Place, words: shell.Words, folders: tuple[str, ...]) -> bool:
    if len(words) != 2 or words[0] != "cd" or words[1].startswith(("-", "~")):
        return False
    return all(paths.is_inside(place, posixpath.join(folder, words[1])) for folder in folders)


def _allows_part(rule: Rule, request: Request, words: shell.Words, folders: tuple[str, ...]) -> bool:
    if not rule.family or not shell.begins(words, rule.family) or shell.has_hatch(words):
        return False
    named = list(shell.paths_in(words[1:]))
    return request.is_inside and all(_stays(request.place, folder, path) for folder in folders for path in named)


def _stays(place: Place, folder: str, path: str) -> bool:
    """Whether a word that may be a path leads nowhere outside. An address is no path."""
    if path == "/dev/null" or "://" in path:
        return True
    return paths.is_inside(place, path if path.startswith("~") else posixpath.join(folder, path))


def _allows_path(rule: Rule, request: Request, path: str) -> bool:
    if rule.family or rule.exact:
        return False
    return paths.covers(rule.path, request.place, path) if rule.path else paths.is_inside(request.place, path)


# --- always


def rule_for(gate: Gate, scope: Scope, place: Place, created_at: int = 0) -> Rule:
    """The rule that "always" means for this gate; a typed error when there is none that would allow it."""
    return rule_about(request_of(gate, place), scope, gate.title, created_at)


def rule_about(request: Request, scope: Scope, title: str, created_at: int = 0) -> Rule:
    """The same, for a request that no gate asks yet."""
    place = request.place
    key = {"session": place.session_id, "repo": place.root, "user": ""}[scope]
    if scope != "user" and not key:
        raise InvalidRule(f"this session has no {scope} to remember a rule for", hint="Choose another scope.")
    rule = checked(_narrowest(request, scope, key, created_at))
    if decide(request, (rule,)).effect != "allow":
        raise InvalidRule(f"no rule can say this safely: {title}", hint="Allow it once, or write a rule by hand.")
    return rule


def _narrowest(request: Request, scope: Scope, key: str, created_at: int) -> Rule:
    made = Rule("allow", request.tool or "*", scope=scope, key=key, created_at=created_at)
    if request.command is None:
        pattern = paths.common_pattern(request.place, request.paths) if request.paths else ""
        return replace(made, tool=_literal(made.tool), path=pattern)
    text = request.command.text.strip()
    if not text:
        raise InvalidRule("the command is not known", hint="Allow it once.")
    parts = _to_allow(request, request.command)
    family = shell.family_of(parts[0][0]) if len(parts) == 1 else ()
    by_family = replace(made, tool=SHELL, family=family)
    is_enough = bool(family) and decide(request, (by_family,)).effect == "allow"
    return by_family if is_enough else replace(made, tool=SHELL, exact=text)


def _literal(tool: str) -> str:
    """A tool's own name as a pattern that means nothing else."""
    return "".join(f"[{one}]" if one in "*?[" else one for one in tool)


# --- session rules


def always(rule: Rule) -> ToolApprovedAlways:
    """The event that tells of a rule; for a session's rule it is also where it is kept."""
    family = " ".join(rule.family) or rule.exact
    return ToolApprovedAlways(tool=rule.tool, command_family=family, scope=rule.scope, rule=rule.text)


def session_rules(events: Iterable[Event], known: Iterable[Rule] = ()) -> tuple[Rule, ...]:
    """The rules of sessions, from their logs, after those that are known from before. What agents tell of their own rules
    is not ours to act on."""
    found = {rule.id: rule for rule in known}
    for event in events:
        rule = _session_rule(event)
        if rule is None:
            continue
        if isinstance(event.body, RuleRemoved):
            found.pop(rule.id, None)
        else:
            found.setdefault(rule.id, rule)
    return tuple(found.values())


def _session_rule(event: Event) -> Rule | None:
    """The rule that is made, or taken away, here."""
    body = event.body
    if not isinstance(body, ToolApprovedAlways | RuleRemoved) or event.origin not in _OURS:
        return None
    if isinstance(body, ToolApprovedAlways) and body.scope != "session":
        return None
    try:
        rule = parse(body.rule, event.at)
    except InvalidRule:
        return None
    return rule if rule.scope == "session" and rule.key == event.session_id else None
