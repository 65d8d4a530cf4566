"""Check the rules of CONTRIBUTING.md that a program can check."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "quarterdeck"

LONGEST_FILE = 1_000
LONGEST_FUNCTION = 80
DEEPEST_INHERITANCE = 3

# These are written in pieces so that this file doesn't contain the names that it forbids.
REGISTRY_HOSTS = [
    name + "." + end
    for name, end in [
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("npmjs", "org"),
        ("npmjs", "com"),
        ("yarnpkg", "com"),
        ("deb.debian", "org"),
    ]
]
MACHINE_PATHS = [
    "/" + "/".join(parts) for parts in [("root", ""), ("work", "main"), ("work", "shared"), ("opt", "wheels")]
]

#: Folders that hold people's files. System folders such as /bin, /usr and /dev don't identify a person.
_PERSONAL_FOLDERS = re.compile(
    rb"(?<![\w.~$/-])/(?:home(?!/dev\b)|root|Users|work|tmp|var|opt|srv|mnt|data)(?:/[\w.-]+)*"
    # The same folder in a name that Claude Code and pi derive from it, and as OpenCode shows it relative to /.
    rb"|/-+(?:home(?!-dev\b)|work)-[\w-]+|\bwork/research\b"
)
#: Codex calls its main agent `/root`, which isn't a folder.
_CODEX_MAIN_AGENT = b'"agent_name": "/root"'


class Function(NamedTuple):
    name: str
    lines: int
    annotated: bool


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = node.body[0]
    if ast.get_docstring(node, clean=False) is None:
        return 0
    return (first.end_lineno or first.lineno) - first.lineno + 1


def functions_of(path: Path) -> Iterator[Function]:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1 - docstring_lines(node)
            yield Function(f"{module}:{node.name}", length, node.returns is not None)


@functools.cache
def functions() -> list[Function]:
    return [function for path in sources() for function in functions_of(path)]


@functools.cache
def repository_files() -> list[Path]:
    """Return the files that are committed, or would be by `git add --all`."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    done = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("these are rules for what is committed, and this is no git work tree")
    return [path for name in done.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def inheritance_depths() -> dict[str, int]:
    """Return how many classes of ours each class inherits from, in a row, itself included."""
    bases = {
        node.name: [base.id for base in node.bases if isinstance(base, ast.Name)]
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    }

    def depth(name: str) -> int:
        return 1 + max((depth(base) for base in bases[name] if base in bases and base != name), default=0)

    return {name: depth(name) for name in bases}


class TestSizes:
    @pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
    def test_no_file_is_too_long(self, path: Path):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE

    def test_no_function_is_too_long(self):
        assert [f for f in functions() if f.lines > LONGEST_FUNCTION] == []

    def test_no_inheritance_is_too_deep(self):
        assert {name: depth for name, depth in inheritance_depths().items() if depth > DEEPEST_INHERITANCE} == {}

    def test_every_function_says_what_it_returns(self):
        assert [f.name for f in functions() if not f.annotated] == []


#: Names that say nothing about what they hold (CONTRIBUTING.md, "How we name").
EMPTY_NAMES = frozenset({"found", "one", "told", "place", "kept", "made", "wanted", "given", "said"})


def empty_names(path: Path) -> list[str]:
    """Return the variables, parameters and attributes of a file that have one of the refused names."""
    refused: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.attr
        else:
            continue
        if name in EMPTY_NAMES:
            refused.append(f"{path.relative_to(ROOT)}:{node.lineno} {name}")
    return refused


class TestNames:
    #: `told` of tool_execution_end is a field of stored events, and can't be renamed.
    STORED = frozenset({"quarterdeck/events/bodies.py"})

    def test_names_say_what_they_hold(self):
        files = [path for path in sources() if str(path.relative_to(ROOT)) not in self.STORED]
        assert [name for path in files for name in empty_names(path)] == []


class TestThePureCoreDoesNoInputOrOutput:
    """The import rules cover modules. These builtins need no import, so they are checked here."""

    FORBIDDEN = frozenset({"open", "print", "input", "breakpoint", "exec", "eval", "__import__"})

    @pytest.mark.parametrize("path", sorted((PACKAGE / "kernel").rglob("*.py")), ids=lambda path: path.name)
    def test_no_builtin_reaches_out(self, path: Path):
        calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        named = {call.func.id for call in calls if isinstance(call.func, ast.Name)}
        assert named & self.FORBIDDEN == set()


class TestNothingNamesAMachine:
    """A clone must work on any machine and against any index, so no file may name one."""

    @pytest.mark.parametrize("forbidden", [*REGISTRY_HOSTS, *MACHINE_PATHS])
    def test_no_file_names_a_registry_or_a_path_of_somebodys_machine(self, forbidden: str):
        needle = forbidden.encode()
        assert [str(path.relative_to(ROOT)) for path in repository_files() if needle in path.read_bytes()] == []

    def test_recordings_name_no_folder_of_a_person_but_home_dev(self):
        folders: dict[str, set[bytes]] = {}
        for path in sorted((ROOT / "tests/conformance/traces").rglob("*.json*")):
            content = path.read_bytes().replace(_CODEX_MAIN_AGENT, b"")
            folders[str(path.relative_to(ROOT))] = set(_PERSONAL_FOLDERS.findall(content))
        assert {path: names for path, names in folders.items() if names} == {}

    def test_fakes_name_no_home_but_home_dev(self):
        other_home = re.compile(rb"/(?:home/(?!dev\b)[a-z]+|Users/[A-Za-z]+)")
        files = [*(ROOT / "tests").rglob("*.py"), *(PACKAGE / "testing").rglob("*.py"), *(ROOT / "bench").rglob("*.py")]
        homes = {str(path.relative_to(ROOT)): set(other_home.findall(path.read_bytes())) for path in sorted(files)}
        assert {path: names for path, names in homes.items() if names} == {}

    @pytest.mark.parametrize("path", sorted(ROOT.glob("requirements*.txt")), ids=lambda path: path.name)
    def test_a_lock_file_has_hashes_and_no_address(self, path: Path):
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
        assert not re.search(r"://|@|--(extra-)?index|--find-links|--trusted", "\n".join(lines))
        pinned = [line for line in lines if line and not line.startswith(" ")]
        assert pinned
        assert all(re.match(r"[a-z0-9._-]+==\S+ .*\\$", line) for line in pinned)
        assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", "\n".join(lines))) >= len(pinned)


class TestTheCommandsInTheDocsExist:
    @pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
    def test_every_make_target_that_is_named(self, name: str):
        named = set(re.findall(r"(?:^|`)make ([a-z-]+)", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE))
        assert named <= make_targets()

    def test_the_readme_starts_with_up_and_test(self):
        assert {"make up", "make test"} <= set(
            re.findall(r"make [a-z-]+", (ROOT / "README.md").read_text(encoding="utf-8"))
        )

    def test_ci_runs_what_a_person_runs(self):
        assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
