"""Read and change the file of approval rules that outlive a session. It's TOML, for people to read and edit.

    [[rule]]
    text = "allow shell git status in repo /home/ann/site"
    created_at = 1700000000000

Hand-written text is preserved: a new rule is appended, a removed one is cut out, comments stay. The file is replaced
atomically, so a reader never sees half of it. It's read again under a lock before each change, so two writers don't lose
each other's rules.

**An unreadable file is an error, never "no rules":** the rules that can't be read may be denials. Until the file is fixed,
every approval must be decided by a person.
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
_FILE_HEADER = "# Rules that decide approvals. You may edit this file; docs/rules.md says how.\n"
_SIZE_LIMIT = 4_000_000

_Stamp: TypeAlias = tuple[int, int, int, int]


class RulesUnreadable(QuarterdeckError):
    """The rules file can't be used. `line` is 0 if the problem concerns the whole file."""

    code = "rules_unreadable"

    def __init__(self, path: Path, line: int, what: str) -> None:
        where = f"{path}, line {line}" if line else str(path)
        super().__init__(f"{where}: {what}", "Fix or remove the file. Until then every approval is asked.")
        self.path = path
        self.line = line
        self.what = what


class NoSuchRule(QuarterdeckError):
    """No rule has this id."""

    code = "no_such_rule"

    def __init__(self, rule_id: str) -> None:
        super().__init__(f"no rule {rule_id}", "List the rules with `session.rules()`, or read the rules file.")
        self.rule_id = rule_id


class RuleStore:
    """The rules in one file. Several stores, in several processes, may use the same file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: _Stamp | None = None
        self._rules: tuple[Rule, ...] = ()

    def rules(self) -> tuple[Rule, ...]:
        """Return all rules as the file is now, or none if there is no file.

        Raises:
            RulesUnreadable: the file exists and can't be used.
        """
        stamp = self._read_stamp()
        if stamp is None or stamp != self._stamp:
            self._rules = parse_rules(self._read(), self.path)
            self._stamp = stamp
        return self._rules

    def add(self, rule: Rule) -> Rule:
        """Add a rule to the file. If the file has it already, return the existing one.

        Raises:
            InvalidRule: the rule is invalid, or concerns only one session.
            RulesUnreadable: the file exists and can't be used.
        """
        if checked(rule).scope == "session":
            raise InvalidRule("a session's rule is stored in the session's log", hint="Use the scope repo or user.")
        with self._locked():
            text = self._read()
            rules = parse_rules(text, self.path)
            existing = next((known for known in rules if known.id == rule.id), None)
            if existing is None:
                self._write(_verify_change(_append_block(text, rule), (*rules, rule), self.path))
        return existing or rule

    def remove(self, rule_id: str) -> Rule:
        """Remove every occurrence of a rule from the file.

        Raises:
            NoSuchRule: the file has no rule with this id.
            RulesUnreadable: the file exists and can't be used.
        """
        with self._locked():
            text = self._read()
            rules = parse_rules(text, self.path)
            removed = next((rule for rule in rules if rule.id == rule_id), None)
            if removed is None:
                raise NoSuchRule(rule_id)
            remaining = tuple(rule for rule in rules if rule.id != rule_id)
            self._write(_verify_change(_remove_block(text, rule_id), remaining, self.path))
        return removed

    def _read_stamp(self) -> _Stamp | None:
        try:
            info = os.stat(self.path)
        except OSError:
            return None
        return (info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)

    def _read(self) -> str:
        try:
            with self.path.open("rb") as file:
                mode, data = os.fstat(file.fileno()).st_mode, file.read(_SIZE_LIMIT + 1)
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise RulesUnreadable(self.path, 0, error.strerror or "can't be read") from error
        if mode & stat.S_IWOTH:
            raise RulesUnreadable(
                self.path, 0, "is writable by all users, so its rules can't be trusted (run chmod 600)"
            )
        if len(data) > _SIZE_LIMIT:
            raise RulesUnreadable(self.path, 0, "is too large")
        return _decode(data, self.path)

    def _write(self, text: str) -> None:
        write_atomic(self.path, text)

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Hold the lock for writers. It's on a file of its own, because the rules file itself gets replaced."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with locked(self.path.with_name(f"{self.path.name}.lock")):
            yield


def _decode(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RulesUnreadable(path, data.count(b"\n", 0, error.start) + 1, "is not UTF-8") from None


def parse_rules(text: str, path: Path) -> tuple[Rule, ...]:
    """Parse the text of a rules file. Duplicates are dropped.

    Raises:
        RulesUnreadable: the text isn't a valid rules file.
    """
    tables, lines = _parse_tables(text, path), _guess_lines(text)
    # If the guess doesn't match the tables, name no lines rather than wrong ones.
    lines = lines if len(lines) == len(tables) else [0] * len(tables)
    rules = [_parse_table(table, number, line, path) for number, (table, line) in enumerate(zip(tables, lines), 1)]
    return tuple({rule.id: rule for rule in reversed(rules)}.values())[::-1]


def _parse_tables(text: str, path: Path) -> list[Any]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(str(error), text, path) from None
    except RecursionError:
        raise RulesUnreadable(path, 0, "is nested too deeply") from None
    tables = document.pop("rule", [])
    if document:
        name = next(iter(document))
        raise RulesUnreadable(path, _find_line(text, name), f"{name!r} isn't known here, only [[rule]] is")
    if not isinstance(tables, list):
        raise RulesUnreadable(path, _find_line(text, "rule"), "'rule' must be written as [[rule]]")
    return cast(list[Any], tables)


def _syntax_error(message: str, text: str, path: Path) -> RulesUnreadable:
    match = _SYNTAX_LINE.search(message)
    line = int(match[1]) if match else text.count("\n") + 1
    return RulesUnreadable(path, line, f"isn't valid TOML: {message[: match.start()] if match else message}")


def _find_line(text: str, word: str) -> int:
    return next((number for number, line in enumerate(text.splitlines(), 1) if word in line), 0)


def _guess_lines(text: str) -> list[int]:
    """Return the line of each rule's text, or of its header. It's a guess: a multi-line string can contain a header."""
    lines: list[int] = []
    for number, line in enumerate(text.split("\n"), 1):
        if _HEADER.match(line):
            lines.append(number)
        elif lines and _TEXT.match(line):
            lines[-1] = number
    return lines


def _parse_table(table: Any, number: int, line: int, path: Path) -> Rule:
    where = "" if line else f"rule {number}: "
    entries = cast(dict[str, Any], table) if isinstance(table, dict) else {}
    unknown = sorted(entries.keys() - {"text", "created_at"})
    text, created_at = entries.get("text"), entries.get("created_at", 0)
    if unknown:
        raise RulesUnreadable(path, line, f"{where}{unknown[0]!r} isn't known in a rule, only text and created_at are")
    if not isinstance(text, str) or not isinstance(created_at, int):
        raise RulesUnreadable(path, line, f"{where}a rule needs a text; created_at must be a number")
    try:
        rule = parse(text, created_at)
    except InvalidRule as error:
        raise RulesUnreadable(path, line, f"{where}{error.message}") from None
    if rule.scope == "session":
        raise RulesUnreadable(path, line, f"{where}a session's rule is stored in the session's log, not here")
    return rule


# --- changing the text of the file


def _format_block(rule: Rule) -> str:
    return f"[[rule]]\ntext = {json_string(rule.text)}\ncreated_at = {rule.created_at}\n"


def _append_block(text: str, rule: Rule) -> str:
    return f"{(text.rstrip() or _FILE_HEADER.rstrip())}\n\n{_format_block(rule)}"


def _remove_block(text: str, rule_id: str) -> str:
    """Cut out the lines of a rule: from its header to the line before the next header."""
    blocks: list[list[str]] = [[]]
    for line in text.splitlines(keepends=True):
        if _ANY_HEADER.match(line):
            blocks.append([])
        blocks[-1].append(line)
    remaining = [block for block in blocks if not _is_block_of(block, rule_id)]
    return "".join(line for block in remaining for line in block)


def _is_block_of(block: list[str], rule_id: str) -> bool:
    try:
        tables = tomllib.loads("".join(block)).get("rule", [])
        return [parse(table["text"]).id for table in tables] == [rule_id]
    except (tomllib.TOMLDecodeError, InvalidRule, KeyError, TypeError):
        return False


def _verify_change(text: str, rules: tuple[Rule, ...], path: Path) -> str:
    """Return the edited text if it parses to the expected rules. Otherwise format all rules from scratch.

    Editing works line by line, and a valid file can be written in ways that lines don't show.
    """
    try:
        if {rule.id for rule in parse_rules(text, path)} == {rule.id for rule in rules}:
            return text
    except RulesUnreadable:
        pass
    return "\n".join([_FILE_HEADER, *map(_format_block, rules)])
