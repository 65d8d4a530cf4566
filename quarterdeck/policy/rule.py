"""A rule, and its text: what a person reads, writes and sees in every event that the rule causes.

    EFFECT TOOL [WORD … | exactly COMMAND] [at PATH] [in session ID | in repo ROOT | everywhere]

    allow shell git status in repo /home/ann/site
    deny * at ~/.ssh/** everywhere
    allow shell exactly "sudo make install" in session s1

TOOL is a name or a pattern; `shell` is any agent's tool that runs a command line. A word that has blanks or is one of the
grammar's own is written in double quotes, as in JSON. Text and rule are one to one: the id is made from the text.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from hashlib import sha256
from typing import Literal, TypeAlias

from msgspec import Struct

from quarterdeck.errors import QuarterdeckError
from quarterdeck.policy import shell

Effect: TypeAlias = Literal["allow", "deny", "ask"]
Scope: TypeAlias = Literal["session", "repo", "user"]

SHELL = "shell"

_KEYWORDS = frozenset({"at", "in", "exactly", "everywhere"})
_EFFECTS = ("allow", "deny", "ask")
_HINT = 'Write it as: EFFECT TOOL [COMMAND] [at PATH] [in repo ROOT | everywhere], e.g. "allow shell git status everywhere".'
_TOKEN = re.compile(r'\s*(?:(?P<plain>[^\s"]+)|(?P<quoted>"(?:[^"\\]|\\.)*"))(?=\s|$)')
_PLAIN_WORD = re.compile(r"[\w@%+=:,./*?\[\]!~^-]+")


class InvalidRule(QuarterdeckError):
    """A text that is no rule, or a rule that cannot be. `column` counts from 1; 0 when it is about the whole."""

    code = "invalid_rule"

    def __init__(self, what: str, column: int = 0, hint: str = _HINT) -> None:
        super().__init__(f"not a rule, at column {column}: {what}" if column else f"not a rule: {what}", hint)
        self.what = what
        self.column = column


class Rule(Struct, frozen=True, gc=False):
    """One rule. `family` and `exact` are about command lines, and at most one of them is given."""

    effect: Effect
    tool: str = "*"
    family: tuple[str, ...] = ()
    exact: str = ""
    path: str = ""
    scope: Scope = "user"
    key: str = ""
    created_at: int = 0

    @property
    def text(self) -> str:
        return _text_of(self)

    @property
    def id(self) -> str:
        """Short, and the same for the same rule wherever and whenever it was made."""
        return f"r{sha256(self.text.encode()).hexdigest()[:8]}"


@lru_cache(1024)
def _text_of(rule: Rule) -> str:
    """Asked for with every decision that a rule makes."""
    words = [rule.effect, _quoted(rule.tool), *map(_quoted, rule.family)]
    if rule.exact:
        words += ["exactly", json_string(rule.exact)]
    if rule.path:
        words += ["at", _quoted(rule.path)]
    words += ["everywhere"] if rule.scope == "user" else ["in", rule.scope, _quoted(rule.key)]
    return " ".join(words)


def json_string(text: str) -> str:
    """In double quotes; as it is where it can be printed."""
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _quoted(word: str) -> str:
    plain = _PLAIN_WORD.fullmatch(word) and word not in _KEYWORDS and word.isprintable()
    return word if plain else json_string(word)


class _Token(Struct, frozen=True, gc=False):
    word: str
    column: int
    is_keyword: bool = False


def parse(text: str, created_at: int = 0) -> Rule:
    """The rule that this text is. Without a scope it holds everywhere."""
    return _Reader(_tokens(text), len(text) + 1).rule(created_at)


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    place, end = 0, len(text.rstrip())
    while place < end:
        found = _TOKEN.match(text, place)
        if found is None:
            raise InvalidRule("a quote that is not closed, or glued to a word", _next_word(text, place))
        tokens.append(_token(found))
        place = found.end()
    return tokens


def _next_word(text: str, place: int) -> int:
    return len(text) - len(text[place:].lstrip()) + 1


def _token(found: re.Match[str]) -> _Token:
    plain, quoted = found["plain"], found["quoted"]
    if plain is not None:
        return _Token(plain, found.start("plain") + 1, plain in _KEYWORDS)
    try:
        return _Token(json.loads(quoted), found.start("quoted") + 1)
    except ValueError:
        raise InvalidRule("quotes that are not closed as in JSON", found.start("quoted") + 1) from None


class _Reader:
    """Reads tokens from left to right; every error names the column."""

    def __init__(self, tokens: list[_Token], end: int) -> None:
        self.tokens = tokens
        self.end = end

    def rule(self, created_at: int) -> Rule:
        effect = self.word("an effect (allow, deny or ask)")
        if effect.word not in _EFFECTS:
            raise InvalidRule(f"{effect.word!r} is no effect (allow, deny or ask)", effect.column)
        tool = self.word("a tool").word
        place = self.column()
        family, exact = self.command()
        path_place = self.column()
        path = self.word("a path").word if self.skip("at") else ""
        scope_place = self.column()
        scope, key = self.scope()
        if self.tokens:
            raise InvalidRule(f"{self.tokens[0].word!r} is one too many", self.column())
        rule = Rule(effect.word, tool, family, exact, path, scope, key, created_at)
        _check_command(rule, place)
        _check_path(rule, path_place)
        _check_key(rule, scope_place)
        return rule

    def column(self) -> int:
        return self.tokens[0].column if self.tokens else self.end

    def skip(self, keyword: str) -> bool:
        if self.tokens and self.tokens[0].is_keyword and self.tokens[0].word == keyword:
            del self.tokens[0]
            return True
        return False

    def word(self, what: str) -> _Token:
        if not self.tokens or self.tokens[0].is_keyword or not self.tokens[0].word:
            raise InvalidRule(f"{what} is missing", self.column())
        return self.tokens.pop(0)

    def command(self) -> tuple[tuple[str, ...], str]:
        if self.skip("exactly"):
            return (), self.word("a command").word
        words: list[str] = []
        while self.tokens and not self.tokens[0].is_keyword:
            words.append(self.word("a word").word)
        return tuple(words), ""

    def scope(self) -> tuple[Scope, str]:
        if self.skip("everywhere") or not self.skip("in"):
            return "user", ""
        scope = self.word("session or repo")
        if scope.word not in ("session", "repo"):
            raise InvalidRule(f"{scope.word!r} is no scope (session ID or repo ROOT)", scope.column)
        key = self.word("the session's id" if scope.word == "session" else "the repository's root").word
        return scope.word, key


def checked(rule: Rule) -> Rule:
    """The same rule, if it can be one."""
    if not rule.tool or (rule.family and rule.exact) or "" in rule.family or bool(rule.key) == (rule.scope == "user"):
        raise InvalidRule("a tool, a key of the scope, or the one command is missing")
    _check_command(rule, 0)
    _check_path(rule, 0)
    _check_key(rule, 0)
    return rule


def _check_command(rule: Rule, column: int) -> None:
    if rule.effect != "allow":
        return
    if (rule.family or rule.exact) and rule.path:
        raise InvalidRule("an allowed command has no path: it is allowed in the session's folder", column)
    if rule.family and not shell.is_family(rule.family):
        words = " ".join(rule.family)
        hint = f"Allow one command as it is ({rule.effect} {rule.tool} exactly …), or name the subcommand."
        raise InvalidRule(f"{words!r} says nothing about what is run", column, hint)


def _check_path(rule: Rule, column: int) -> None:
    names = rule.path.split("/")
    if ".." in names or "." in names or "" in names[1:-1] or "\0" in rule.path:
        raise InvalidRule(f"the path {rule.path!r} is not normal", column, "Write it without '.', '..' and '//'.")


def _check_key(rule: Rule, column: int) -> None:
    if rule.scope == "repo" and not rule.key.startswith("/"):
        raise InvalidRule(f"the repository {rule.key!r} is not an absolute path", column)
