"""The file of the rules that outlive a session: the user's and the repositories', in TOML, for people to read and edit.

    [[rule]]
    text = "allow shell git status in repo /home/ann/site"
    created_at = 1700000000000

What a person wrote stays: a new rule is added at the end, a removed one is cut out, comments are kept. The file is
replaced as a whole (written beside, synced, renamed), so that nobody ever reads half of it, and read again under a lock
before each change, so that two writers keep each other's rules.

**A file that cannot be read is an error, never "no rules":** its denials may be what is missing. Until it is mended,
whoever decides must ask a person about everything.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias, cast

from quarterdeck.errors import QuarterdeckError
from quarterdeck.files import locked, write_atomic
from quarterdeck.policy.rule import InvalidRule, Rule, checked, json_string, parse

_HEADER = re.compile(r"^[ \t]*\[\[[ \t]*rule[ \t]*\]\]")
_ANY_HEADER = re.compile(r"^[ \t]*\[")
_TEXT = re.compile(r"^[ \t]*text[ \t]*=")
_SYNTAX_LINE = re.compile(r"\s*\(at line (\d+), column \d+\)$")
_ABOUT = "# Rules that decide approvals. You may edit this file; docs/rules.md says how.\n"
_LARGEST = 4_000_000

_Seen: TypeAlias = tuple[int, int, int, int]


class RulesUnreadable(QuarterdeckError):
    """The rules' file cannot be used. `line` is 0 when it is about the whole file."""

    code = "rules_unreadable"

    def __init__(self, path: Path, line: int, what: str) -> None:
        where = f"{path}, line {line}" if line else str(path)
        super().__init__(f"{where}: {what}", "Mend or remove the file; until then everything is asked.")
        self.path = path
        self.line = line
        self.what = what


class NoSuchRule(QuarterdeckError):
    """No rule of this id in the file."""

    code = "no_such_rule"

    def __init__(self, rule_id: str) -> None:
        super().__init__(f"no rule {rule_id}", "`session.rules()` lists them, and so does the file itself.")
        self.rule_id = rule_id


class RuleStore:
    """The rules in one file. Several stores, in several processes, may use it at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._name = str(path)
        self._seen: _Seen | None = None
        self._rules: tuple[Rule, ...] = ()

    def rules(self) -> tuple[Rule, ...]:
        """All of them, as the file is now. No file: none."""
        seen = self._stamp()
        if seen is None or seen != self._seen:
            self._rules = parsed(self._read(), self.path)
            self._seen = seen
        return self._rules

    def add(self, rule: Rule) -> Rule:
        """Keeps a rule; one that is there already stays as it was, and is returned."""
        if checked(rule).scope == "session":
            raise InvalidRule("a session's rule is kept in the session's log", hint="Choose the scope repo or user.")
        with self._locked():
            text = self._read()
            rules = parsed(text, self.path)
            known = next((one for one in rules if one.id == rule.id), None)
            if known is None:
                self._write(_changed(_with(text, rule), (*rules, rule), self.path))
        return known or rule

    def remove(self, rule_id: str) -> Rule:
        """Drops the rule of this id, wherever and as often as it stands in the file."""
        with self._locked():
            text = self._read()
            rules = parsed(text, self.path)
            gone = next((one for one in rules if one.id == rule_id), None)
            if gone is None:
                raise NoSuchRule(rule_id)
            kept = tuple(one for one in rules if one.id != rule_id)
            self._write(_changed(_without(text, rule_id), kept, self.path))
        return gone

    def _stamp(self) -> _Seen | None:
        try:
            found = os.stat(self._name)  # asked for every gate: a Path would take twice as long
        except OSError:
            return None
        return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    def _read(self) -> str:
        try:
            with self.path.open("rb") as file:
                mode, data = os.fstat(file.fileno()).st_mode, file.read(_LARGEST + 1)
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise RulesUnreadable(self.path, 0, error.strerror or "cannot be read") from error
        if mode & stat.S_IWOTH:
            raise RulesUnreadable(self.path, 0, "everybody may write it, so its rules cannot be trusted (chmod 600)")
        if len(data) > _LARGEST:
            raise RulesUnreadable(self.path, 0, "is too large to be a file of rules")
        return _decoded(data, self.path)

    def _write(self, text: str) -> None:
        """Beside, synced, renamed. A link stays a link: what it leads to is replaced."""
        write_atomic(self.path, text)

    @contextmanager
    def _locked(self) -> Generator[None]:
        """One writer at a time. The lock has a file of its own, because the rules' file is replaced."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with locked(self.path.with_name(f"{self.path.name}.lock")):
            yield


def _decoded(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RulesUnreadable(path, data.count(b"\n", 0, error.start) + 1, "is not UTF-8") from None


def parsed(text: str, path: Path) -> tuple[Rule, ...]:
    """The rules of a file's text, each once."""
    tables, lines = _tables(text, path), _lines_of(text)
    places = lines if len(lines) == len(tables) else [0] * len(tables)
    rules = [_rule(table, number, line, path) for number, (table, line) in enumerate(zip(tables, places), 1)]
    return tuple({rule.id: rule for rule in reversed(rules)}.values())[::-1]


def _tables(text: str, path: Path) -> list[Any]:
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(str(error), text, path) from None
    except RecursionError:
        raise RulesUnreadable(path, 0, "is nested too deep") from None
    tables = found.pop("rule", [])
    if found:
        name = next(iter(found))
        raise RulesUnreadable(path, _line_with(text, name), f"{name!r} means nothing here, only [[rule]] does")
    if not isinstance(tables, list):
        raise RulesUnreadable(path, _line_with(text, "rule"), "'rule' must be written as [[rule]]")
    return cast(list[Any], tables)


def _syntax_error(said: str, text: str, path: Path) -> RulesUnreadable:
    found = _SYNTAX_LINE.search(said)
    line = int(found[1]) if found else text.count("\n") + 1
    return RulesUnreadable(path, line, f"is not TOML: {said[: found.start()] if found else said}")


def _line_with(text: str, word: str) -> int:
    return next((number for number, line in enumerate(text.splitlines(), 1) if word in line), 0)


def _lines_of(text: str) -> list[int]:
    """The line of each rule's text, or of its header. Only a guess: a header may stand in a long string."""
    found: list[int] = []
    for number, line in enumerate(text.split("\n"), 1):
        if _HEADER.match(line):
            found.append(number)
        elif found and _TEXT.match(line):
            found[-1] = number
    return found


def _rule(table: Any, number: int, line: int, path: Path) -> Rule:
    where = "" if line else f"rule {number}: "
    entries = cast(dict[str, Any], table) if isinstance(table, dict) else {}
    unknown = sorted(entries.keys() - {"text", "created_at"})
    text, created_at = entries.get("text"), entries.get("created_at", 0)
    if unknown:
        raise RulesUnreadable(path, line, f"{where}{unknown[0]!r} means nothing in a rule, only text and created_at do")
    if not isinstance(text, str) or not isinstance(created_at, int):
        raise RulesUnreadable(path, line, f"{where}a rule needs a text, and a number as created_at if any")
    try:
        rule = parse(text, created_at)
    except InvalidRule as error:
        raise RulesUnreadable(path, line, f"{where}{error.message}") from None
    if rule.scope == "session":
        raise RulesUnreadable(path, line, f"{where}a session's rule is kept in the session's log, not here")
    return rule


# --- changing the text


def _block(rule: Rule) -> str:
    return f"[[rule]]\ntext = {json_string(rule.text)}\ncreated_at = {rule.created_at}\n"


def _with(text: str, rule: Rule) -> str:
    return f"{(text.rstrip() or _ABOUT.rstrip())}\n\n{_block(rule)}"


def _without(text: str, rule_id: str) -> str:
    """Without the lines of this rule: from its header to before the next one, and what is written above that."""
    blocks: list[list[str]] = [[]]
    for line in text.splitlines(keepends=True):
        if _ANY_HEADER.match(line):
            blocks.append([])
        blocks[-1].append(line)
    kept = [block for block in blocks if not _is_block_of(block, rule_id)]
    return "".join(line for block in kept for line in block)


def _is_block_of(block: list[str], rule_id: str) -> bool:
    try:
        tables = tomllib.loads("".join(block)).get("rule", [])
        return [parse(table["text"]).id for table in tables] == [rule_id]
    except (tomllib.TOMLDecodeError, InvalidRule, KeyError, TypeError):
        return False


def _changed(text: str, rules: tuple[Rule, ...], path: Path) -> str:
    """The changed text, if it says what it should; else the rules alone, newly written."""
    try:
        if {rule.id for rule in parsed(text, path)} == {rule.id for rule in rules}:
            return text
    except RulesUnreadable:
        pass
    return "\n".join([_ABOUT, *map(_block, rules)])
