"""Command lines, read twice: strictly, for what allows, and loosely, for what denies.

Strictly, a line is plain words joined by `;`, `&`, `&&`, `|` or `||`, and gives its commands as lists of words. Anything
else (a redirection, a substitution, `$`, a wildcard, a bracket, a comment, a line break, an open quote) and the line is
*opaque*: it has no commands that we would vouch for. This is far less than a shell understands, on purpose: where two
readings are possible, ours must never be the harmless one.

Loosely, a line is whatever words remain when quotes and operators are taken away, so that a denied command is found in
substitutions, behind `sudo` and in the argument of `sh -c`. It finds too much rather than too little.

A *family* is a program with its subcommand: `git status`, `npm run build`, `ls`. A program that runs others (`sudo`,
`env`, `xargs`, `sh`, `python`, `ssh`) says nothing by its name, so it is no family; and of programs that we do not know
we do not know whether their first word says anything.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator
from typing import TypeAlias

from msgspec import Struct

Words: TypeAlias = tuple[str, ...]

LONGEST = 20_000
#: How many words behind a program may belong to it, where commands cannot be told apart.
_FAR = 500

_PIECE = re.compile(
    r"""(?P<blank>[ \t]+)
    | (?P<join>&&|\|\||[;&|])
    | (?P<word>(?!\#)(?:[^\s'"\\;&|<>()`${}*?\[]|'[^']*'|"(?:[^"`$\\]|\\[^`$])*"|\\.)+)""",
    re.VERBOSE,
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
#: Some agents show a long command cut short. `go test ./...` is whole.
_CUT = re.compile(r"(?:…|(?<!/)\.\.\.)\s*$")
_BREAKS = re.compile(r"[;&|()<>{}`$\x00-\x08\x0a-\x1f]+")
#: What a path may begin with in place of `~`; taken apart at its `$` it would be no path any more.
_HOME = re.compile(r"\$(?:HOME\b|\{HOME\})")
_QUOTES = str.maketrans("", "", "'\"\\")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")

#: Programs that run what their arguments say, and words of the shell that are followed by another command.
_RUNS_OTHERS = _words(
    """sudo doas su env xargs parallel find fd ssh exec eval command builtin source . nohup nice ionice time timeout
    watch setsid stdbuf strace ltrace gdb script expect flock chroot unshare nsenter chrt taskset systemd-run at batch
    sh bash zsh dash ksh fish csh tcsh busybox pwsh powershell cmd node nodejs deno bun ruby perl php lua Rscript osascript
    awk gawk mawk sed ed vi vim nvim emacs less more man tclsh npx bunx pnpx uvx pipx direnv entr tmux screen docker
    podman kubectl make trap alias coproc function if then else elif while until for do case select ! { [[
    export set declare typeset local readonly unset hash enable bind cd pushd popd umask"""
)
_VERSIONED = re.compile(r"(?:python|pypy|perl|ruby|node|php|lua)[\d.]*w?")

#: Programs whose next words say what they do, and of those the ones that "always" may mean. `run/*` takes any name.
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
#: Programs that only show something, or check the code: their name alone is the family.
_PLAIN = _words(
    """ls pwd cat head tail wc grep rg echo printf which date whoami id uname tree stat file du df diff cmp sort uniq cut
    tr basename dirname realpath readlink true false test sleep ps hostname jq nl column md5sum sha256sum
    pytest ruff mypy pyright eslint prettier tsc jest vitest rspec phpunit black flake8 isort shellcheck"""
)
_MODULES = _words("pytest unittest ruff mypy pyright black isort flake8 coverage")
#: Options by which otherwise harmless programs run a program, or write a file, of somebody's choice.
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


#: Subcommands that run what follows them.
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
    """One command line. No `parts`: it was not understood. `loose` are words between anything that may begin a command."""

    text: str
    parts: tuple[Words, ...]
    loose: tuple[Words, ...]


def read(text: str) -> Command:
    """This command line, both ways."""
    return Command(text, _strict(text), _loose(text))


def _strict(text: str) -> tuple[Words, ...]:
    if len(text) > LONGEST or _CONTROL.search(text) or _CUT.search(text):
        return ()
    parts = [tuple(shlex.split(part)) for part in _split(text)]
    return tuple(parts) if all(parts) else ()


def _split(text: str) -> list[str]:
    """The text of each command; none where something is not understood."""
    parts: list[str] = []
    begin = place = 0
    while place < len(text):
        found = _PIECE.match(text, place)
        if found is None:
            return []
        if found.lastgroup == "join":
            parts.append(text[begin:place])
            begin = found.end()
        place = found.end()
    return [*parts, text[begin:]]


def _loose(text: str) -> tuple[Words, ...]:
    plain = _HOME.sub("~", text.replace("\\\n", "").translate(_QUOTES))
    chunks = (tuple(chunk.split()) for chunk in _BREAKS.split(plain))
    return tuple(chunk for chunk in chunks if chunk)


def runs_others(words: Words) -> bool:
    """Whether what is really run stands further on: behind `sudo`, in `sh -c`, after an assignment, in `uv run`."""
    name = posixpath.basename(words[0])
    if name in _RUNS_OTHERS or _VERSIONED.fullmatch(name) or _ASSIGNMENT.match(words[0]):
        return True
    return any(word in _RUNNERS.get(name, ()) for word in words[1:])


def is_family(words: Words) -> bool:
    """Whether these words may stand in a rule that allows: they must say what is run."""
    program, second = words[0], words[1] if len(words) > 1 else ""
    if program in _SUBCOMMANDS:
        return bool(second) and not second.startswith("-") and second not in _RUNNERS.get(program, ())
    if _VERSIONED.fullmatch(program):
        return len(words) > 2 and second == "-m"
    return not runs_others(words)


def family_of(words: Words) -> Words:
    """The family that "always" means for this command; empty when only the exact command can be meant."""
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
    """Whether an argument makes the program run or write something else. Options may be shortened, as in `--upload-p`."""
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
    """Strictly: the command begins with exactly these words."""
    return words[: len(family)] == family


def contains(command: Command, family: Words) -> bool:
    """Loosely: some command of the line is of this family."""
    if any(_is_of(words, family) for words in (*command.parts, *command.loose)):
        return True
    hidden = command.loose if not command.parts or any(map(runs_others, command.parts)) else ()
    return any(_is_of(words[at : at + _FAR], family) for words in hidden for at in _places(words, family[0]) if at)


def _places(words: Words, program: str) -> Iterator[int]:
    """Where this program is named; a command may have thousands of words."""
    wanted = _program(program)
    return (at for at, word in enumerate(words) if _program(word) == wanted)


def _program(word: str) -> str:
    return posixpath.basename(word).casefold()


def _is_of(words: Words, family: Words) -> bool:
    """Options, and what may be their values, may stand between program and subcommand: `git -C x push`."""
    if _program(words[0]) != _program(family[0]):
        return False
    options = [word for word in family[1:] if word.startswith("-")]
    rest = [word for word in family[1:] if not word.startswith("-")]
    if not all(any(word == one or word.startswith(f"{one}=") for word in words[1:]) for one in options):
        return False
    return _in_order(words, rest)


def _in_order(words: Words, wanted: list[str]) -> bool:
    found = 0
    for before, word in zip(("", *words[1:]), words[1:]):
        if found == len(wanted):
            break
        if word == wanted[found]:
            found += 1
        elif not word.startswith("-") and not before.startswith("-"):
            return False
    return found == len(wanted)


def paths_in(words: Words) -> Iterator[str]:
    """What in these words may be a path: each word, the value of an option, what is glued to a short one."""
    for word in words:
        yield word
        if "=" in word:
            yield word.partition("=")[2]
        if word.startswith("-") and not word.startswith("--"):
            yield word[2:]
            yield word[word.find("/") :] if "/" in word else ""
