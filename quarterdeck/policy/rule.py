"""Define a rule and its text, which users read and write and which every event that the rule causes names.

    EFFECT TOOL [WORD … | exactly COMMAND] [at PATH] [in session ID | in repo ROOT | everywhere]

    allow shell git status in repo /home/ann/site
    deny * at ~/.ssh/** everywhere
    allow shell exactly "sudo make install" in session s1

TOOL is a name or a pattern; `shell` means any agent's tool that runs a command line. A word that contains blanks, or is a
keyword of the grammar, is written in double quotes as in JSON. Text and rule correspond one to one, and the rule's id is
derived from its text.
"""

from __future__ import annotations

import json
import re
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
    """A text that isn't a valid rule, or a rule that can't exist. `column` starts at 1; 0 means the whole rule."""

    code = "invalid_rule"

    def __init__(self, what: str, column: int = 0, hint: str = _HINT) -> None:
        where = f", at column {column}" if column else ""
        super().__init__(f"invalid rule{where}: {what}", hint)
        self.what = what
        self.column = column


class Rule(Struct, frozen=True, gc=False):
    """One rule. At most one of `family` and `exact`, which concern command lines, is set."""

    effect: Effect
    tool: str = "*"
    #: The first words of the commands that are meant.
    family: tuple[str, ...] = ()
    #: The whole command line that is meant.
    exact: str = ""
    path: str = ""
    scope: Scope = "user"
    #: The session id or the repository's root, depending on the scope.
    key: str = ""
    created_at: int = 0

    @property
    def text(self) -> str:
        words = [self.effect, _quoted(self.tool), *map(_quoted, self.family)]
        if self.exact:
            words += ["exactly", json_string(self.exact)]
        if self.path:
            words += ["at", _quoted(self.path)]
        words += ["everywhere"] if self.scope == "user" else ["in", self.scope, _quoted(self.key)]
        return " ".join(words)

    @property
    def id(self) -> str:
        """A short id that depends only on the rule's text."""
        return f"r{sha256(self.text.encode()).hexdigest()[:8]}"


# ----------------------------------------------------------------------------------------- writing the text


def json_string(text: str) -> str:
    """Quote a text as JSON. Non-ASCII characters are escaped only if the text isn't printable."""
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _quoted(word: str) -> str:
    is_plain = _PLAIN_WORD.fullmatch(word) and word not in _KEYWORDS and word.isprintable()
    return word if is_plain else json_string(word)


# ----------------------------------------------------------------------------------------- parsing the text


def parse(text: str, created_at: int = 0) -> Rule:
    """Parse a rule. Without a scope it applies everywhere.

    Raises:
        InvalidRule: the text isn't a valid rule. The error names the column.
    """
    return _Parser(_tokens(text), len(text) + 1).rule(created_at)


class _Token(Struct, frozen=True, gc=False):
    word: str
    column: int
    is_keyword: bool = False


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            column = len(text) - len(text[position:].lstrip()) + 1
            raise InvalidRule("a quote isn't closed, or isn't separated from a word", column)
        tokens.append(_token(match))
        position = match.end()
    return tokens


def _token(match: re.Match[str]) -> _Token:
    plain, quoted = match["plain"], match["quoted"]
    if plain is not None:
        return _Token(plain, match.start("plain") + 1, plain in _KEYWORDS)
    try:
        return _Token(json.loads(quoted), match.start("quoted") + 1)
    except ValueError:
        raise InvalidRule("the quoted text isn't a valid JSON string", match.start("quoted") + 1) from None


class _Parser:
    """Parse tokens from left to right. Each method consumes the tokens that it returns."""

    def __init__(self, tokens: list[_Token], end: int) -> None:
        self.tokens = tokens
        self.end = end

    def rule(self, created_at: int) -> Rule:
        effect = self.word("an effect (allow, deny or ask)")
        if effect.word not in _EFFECTS:
            raise InvalidRule(f"{effect.word!r} isn't an effect (allow, deny or ask)", effect.column)
        tool = self.word("a tool").word
        command_column = self.column()
        family, exact = self.command()
        path_column = self.column()
        path = self.word("a path").word if self.skip("at") else ""
        scope_column = self.column()
        scope, key = self.scope()
        if self.tokens:
            raise InvalidRule(f"unexpected {self.tokens[0].word!r}", self.column())
        rule = Rule(effect.word, tool, family, exact, path, scope, key, created_at)
        _check_command(rule, command_column)
        _check_path(rule, path_column)
        _check_key(rule, scope_column)
        return rule

    def column(self) -> int:
        return self.tokens[0].column if self.tokens else self.end

    def skip(self, keyword: str) -> bool:
        """Consume this keyword if it is next. Return whether it was."""
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
            raise InvalidRule(f"{scope.word!r} isn't a scope (session ID or repo ROOT)", scope.column)
        key = self.word("the session's id" if scope.word == "session" else "the repository's root").word
        return scope.word, key


# ------------------------------------------------------------------------------------------------- checking


def checked(rule: Rule) -> Rule:
    """Return the rule if it is valid.

    Raises:
        InvalidRule: the rule can't be written as a text, or may not exist.
    """
    if not rule.tool or (rule.family and rule.exact) or "" in rule.family or bool(rule.key) == (rule.scope == "user"):
        raise InvalidRule("it needs a tool, at most one command, and a key exactly if its scope has one")
    _check_command(rule, 0)
    _check_path(rule, 0)
    _check_key(rule, 0)
    return rule


def _check_command(rule: Rule, column: int) -> None:
    if rule.effect != "allow":
        return
    if (rule.family or rule.exact) and rule.path:
        raise InvalidRule("an allowed command can't have a path: it is allowed in the session's folder", column)
    if rule.family and not shell.is_family(rule.family):
        words = " ".join(rule.family)
        hint = f"Allow one exact command ({rule.effect} {rule.tool} exactly …), or name the subcommand."
        raise InvalidRule(f"{words!r} doesn't say what is run", column, hint)


def _check_path(rule: Rule, column: int) -> None:
    names = rule.path.split("/")
    if ".." in names or "." in names or "" in names[1:-1] or "\0" in rule.path:
        raise InvalidRule(f"the path {rule.path!r} isn't normalized", column, "Write it without '.', '..' and '//'.")


def _check_key(rule: Rule, column: int) -> None:
    if rule.scope == "repo" and not rule.key.startswith("/"):
        raise InvalidRule(f"the repository {rule.key!r} isn't an absolute path", column)
