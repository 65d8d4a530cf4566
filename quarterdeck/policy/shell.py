"""Parse command lines in two ways: strictly for rules that allow, loosely for rules that deny.

Strictly, a line consists of plain words joined by `;`, `&`, `&&`, `|` or `||`, and gives its commands as lists of words.
A line with anything else (a redirection, a substitution, `$`, a wildcard, a bracket, a comment, a line break, an open
quote) is *opaque*: it gives no commands. This is much less than a shell understands, on purpose. Where a line can be read
in two ways, we must never assume the harmless one.

Loosely, a line is the words that remain when quotes and operators are removed. So a denied command is found in a
substitution, after `sudo`, and in the argument of `sh -c`. Loose parsing finds too much rather than too little.

A *family* is a program with its subcommand: `git status`, `npm run build`, `ls`. A program that runs other programs
(`sudo`, `env`, `xargs`, `sh`, `python`, `ssh`) isn't a family, because its name doesn't say what is run.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator
from typing import TypeAlias

from msgspec import Struct

Words: TypeAlias = tuple[str, ...]

MAX_LENGTH = 20_000
#: How many words after a program may belong to it, in a line whose commands can't be separated.
_MAX_WORDS = 500

_PIECE = re.compile(
    r"""(?P<blank>[ \t]+)
    | (?P<join>&&|\|\||[;&|])
    | (?P<word>(?!\#)(?:[^\s'"\\;&|<>()`${}*?\[]|'[^']*'|"(?:[^"`$\\]|\\[^`$])*"|\\.)+)""",
    re.VERBOSE,
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
#: Some agents show a shortened command. `go test ./...` isn't shortened.
_CUT = re.compile(r"(?:…|(?<!/)\.\.\.)\s*$")
_BREAKS = re.compile(r"[;&|()<>{}`$\x00-\x08\x0a-\x1f]+")
#: The other spellings of `~`. They must be replaced before the line is split at `$`.
_HOME = re.compile(r"\$(?:HOME\b|\{HOME\})")
_QUOTES = str.maketrans("", "", "'\"\\")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")

#: Programs that run their arguments, and shell keywords that are followed by another command.
_RUNS_OTHERS = _words(
    """sudo doas su env xargs parallel find fd ssh exec eval command builtin source . nohup nice ionice time timeout
    watch setsid stdbuf strace ltrace gdb script expect flock chroot unshare nsenter chrt taskset systemd-run at batch
    sh bash zsh dash ksh fish csh tcsh busybox pwsh powershell cmd node nodejs deno bun ruby perl php lua Rscript osascript
    awk gawk mawk sed ed vi vim nvim emacs less more man tclsh npx bunx pnpx uvx pipx direnv entr tmux screen docker
    podman kubectl make trap alias coproc function if then else elif while until for do case select ! { [[
    export set declare typeset local readonly unset hash enable bind cd pushd popd umask"""
)
_VERSIONED = re.compile(r"(?:python|pypy|perl|ruby|node|php|lua)[\d.]*w?")

#: Programs with subcommands, and the subcommands for which "always" may create a family rule. `run/*` matches any name.
_SUBCOMMANDS: dict[str, frozenset[str]] = {
    "git": _words(
        """status diff log show blame add commit fetch rev-parse ls-files ls-tree describe merge-base shortlog reflog grep
        cat-file stash/list stash/push stash/show stash/pop worktree/list"""
    ),
    "npm": _words("test run/* run-script/* ls outdated view audit"),
    "pnpm": _words("test run/* ls outdated audit"),
    "yarn": _words("test run/* list outdated audit"),
    "cargo": _words("build check test clippy fmt doc tree metadata bench"),
    "go": _words("build test vet fmt list doc version"),
    "gh": _words("pr/view pr/list pr/status pr/diff pr/checks issue/view issue/list run/view run/list release/list"),
    "docker": _words("ps images logs inspect compose/ps compose/logs"),
    "kubectl": _words("get describe logs"),
    "make": _words("test lint check build all format docs"),
    "uv": _words("lock tree"),
    "pip": _words("list show freeze check"),
    "poetry": _words("check show lock"),
    "dotnet": _words("build test restore format"),
    "mvn": _words("test compile verify package"),
    "gradle": _words("test build check"),
    "terraform": _words("plan validate fmt show"),
    "bundle": _words("check list"),
    "mix": _words("test compile format credo"),
}
#: Programs that only print something or check code. Their name alone is the family.
_PLAIN = _words(
    """ls pwd cat head tail wc grep rg echo printf which date whoami id uname tree stat file du df diff cmp sort uniq cut
    tr basename dirname realpath readlink true false test sleep ps hostname jq nl column md5sum sha256sum
    pytest ruff mypy pyright eslint prettier tsc jest vitest rspec phpunit black flake8 isort shellcheck"""
)
_MODULES = _words("pytest unittest ruff mypy pyright black isort flake8 coverage")
#: Options that make an otherwise harmless program run any program or write any file.
_HATCHES = _words(
    "--exec --exec-batch -exec -execdir -ok -okdir -toolexec -vettool --ext-diff --textconv --upload-pack "
    "--receive-pack --to-command --checkpoint-action --pre --open-files-in-pager --output --config --config-file "
    "--rsh --use-compress-program --compress-program --eval --command --script-shell --rcfile --init-file --plugin "
    "--globalsetup --require --import --loader --preview-command --file --makefile --directory --node-options"
)
_SHORT_HATCHES = {
    "git": ("-O", "-x"),
    "sort": ("-o",),
    "make": ("-f", "-C", "-I"),
    "pytest": ("-p", "-c"),
    "go": ("-o",),
}


#: Subcommands that run their arguments.
_RUNNERS: dict[str, tuple[str, ...]] = {
    "git": ("config", "submodule", "bisect", "filter-branch", "difftool", "mergetool", "alias"),
    "npm": ("exec", "x", "explore", "config", "set"),
    "pnpm": ("exec", "dlx", "config"),
    "yarn": ("exec", "dlx", "config"),
    "cargo": ("run",),
    "go": ("run", "generate", "tool"),
    "gh": ("api", "alias", "extension", "codespace"),
    "docker": ("run", "exec"),
    "kubectl": ("exec", "run", "debug"),
    "uv": ("run", "tool"),
    "poetry": ("run",),
    "dotnet": ("run", "exec"),
    "bundle": ("exec",),
    "mix": ("run",),
}


class Command(Struct, frozen=True, gc=False):
    """One command line, parsed in both ways."""

    text: str
    #: The commands of the strict parse. Empty if the line is opaque.
    parts: tuple[Words, ...]
    #: The words of the loose parse, split wherever a command may start.
    loose: tuple[Words, ...]


def read(text: str) -> Command:
    """Parse a command line."""
    return Command(text, _strict(text), _loose(text))


def _strict(text: str) -> tuple[Words, ...]:
    if len(text) > MAX_LENGTH or _CONTROL.search(text) or _CUT.search(text):
        return ()
    parts = [tuple(shlex.split(part)) for part in _split_commands(text)]
    return tuple(parts) if all(parts) else ()


def _split_commands(text: str) -> list[str]:
    """Return the text of each command, or nothing if the line is opaque."""
    commands: list[str] = []
    start = position = 0
    while position < len(text):
        piece = _PIECE.match(text, position)
        if piece is None:
            return []
        if piece.lastgroup == "join":
            commands.append(text[start:position])
            start = piece.end()
        position = piece.end()
    return [*commands, text[start:]]


def _loose(text: str) -> tuple[Words, ...]:
    plain = _HOME.sub("~", text.replace("\\\n", "").translate(_QUOTES))
    chunks = (tuple(chunk.split()) for chunk in _BREAKS.split(plain))
    return tuple(chunk for chunk in chunks if chunk)


def runs_others(words: Words) -> bool:
    """Return whether these words run another command: after `sudo`, in `sh -c`, after an assignment, in `uv run`."""
    name = posixpath.basename(words[0])
    if name in _RUNS_OTHERS or _VERSIONED.fullmatch(name) or _ASSIGNMENT.match(words[0]):
        return True
    return any(word in _RUNNERS.get(name, ()) for word in words[1:])


def is_family(words: Words) -> bool:
    """Return whether a rule may allow these words as a family: they must say what is run."""
    program, second = words[0], words[1] if len(words) > 1 else ""
    if program in _SUBCOMMANDS:
        return bool(second) and not second.startswith("-") and second not in _RUNNERS.get(program, ())
    if _VERSIONED.fullmatch(program):
        return len(words) > 2 and second == "-m"
    return not runs_others(words)


def family_of(words: Words) -> Words:
    """Return the family that "always" means for this command, or nothing if only the exact command may be allowed."""
    program, second, third = (*words, "", "")[:3]
    known = _SUBCOMMANDS.get(program, frozenset())
    if has_hatch(words):
        return ()
    if program in _PLAIN:
        return words[:1]
    if second == "-m" and third in _MODULES and _VERSIONED.fullmatch(program):
        return words[:3]
    if f"{second}/{third}" in known or (f"{second}/*" in known and third and not third.startswith("-")):
        return words[:3]
    return words[:2] if second in known else ()


def has_hatch(words: Words) -> bool:
    """Return whether an argument makes the program run or write something else.

    Many programs accept shortened options, such as `--upload-p`.
    """
    short = _SHORT_HATCHES.get(words[0], ())
    return any(word.startswith((*short, "ext::")) or _is_hatch(word, words[0]) for word in words[1:])


def _is_hatch(word: str, program: str) -> bool:
    name = word.partition("=")[0].lower()
    if program == "make" and _ASSIGNMENT.match(word):
        return True
    if name in _HATCHES:
        return True
    return len(name) > 2 and name.startswith("--") and any(hatch.startswith(name) for hatch in _HATCHES)


def begins(words: Words, family: Words) -> bool:
    """Return whether the command starts with exactly these words."""
    return words[: len(family)] == family


def contains(command: Command, family: Words) -> bool:
    """Return whether any command anywhere in the line may be of this family."""
    if any(_is_of(words, family) for words in (*command.parts, *command.loose)):
        return True
    hidden = command.loose if not command.parts or any(map(runs_others, command.parts)) else ()
    return any(
        _is_of(words[position : position + _MAX_WORDS], family)
        for words in hidden
        for position in _positions(words, family[0])
        if position
    )


def _positions(words: Words, program: str) -> Iterator[int]:
    """Return where this program is named."""
    name = _program(program)
    return (position for position, word in enumerate(words) if _program(word) == name)


def _program(word: str) -> str:
    return posixpath.basename(word).casefold()


def _is_of(words: Words, family: Words) -> bool:
    """Return whether a command is of this family.

    Options and their values may precede the subcommand: `git -C x push`.
    """
    if _program(words[0]) != _program(family[0]):
        return False
    options = [word for word in family[1:] if word.startswith("-")]
    subcommands = [word for word in family[1:] if not word.startswith("-")]
    if not all(any(word == option or word.startswith(f"{option}=") for word in words[1:]) for option in options):
        return False
    return _in_order(words, subcommands)


def _in_order(words: Words, subcommands: list[str]) -> bool:
    """Return whether the subcommands come first among the words, with only options and their values between them."""
    matched = 0
    for previous, word in zip(("", *words[1:]), words[1:]):
        if matched == len(subcommands):
            break
        if word == subcommands[matched]:
            matched += 1
        elif not word.startswith("-") and not previous.startswith("-"):
            return False
    return matched == len(subcommands)


def paths_in(words: Words) -> Iterator[str]:
    """Return everything in these words that may be a path.

    That is each word, the value after `=`, and the value attached to a short option.
    """
    for word in words:
        yield word
        if "=" in word:
            yield word.partition("=")[2]
        if word.startswith("-") and not word.startswith("--"):
            yield word[2:]
            yield word[word.find("/") :] if "/" in word else ""
