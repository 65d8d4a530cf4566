"""Check the public names: this file lists them, and all ways to import them must agree."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import quarterdeck

# Adding a name here is a decision; removing one breaks users' code.
PUBLIC = [
    "Agent",
    "AgentDown",
    "AgentGone",
    "AgentOptions",
    "AgentStatus",
    "AlreadyDecided",
    "AsyncClient",
    "Badge",
    "CannotDo",
    "ChangedFile",
    "Changes",
    "Client",
    "Decided",
    "Deck",
    "DeckClosed",
    "Details",
    "Diff",
    "Done",
    "Dropped",
    "Entry",
    "Event",
    "Filter",
    "GitFailed",
    "GitMissing",
    "HomeInUse",
    "IdempotencyMismatch",
    "Image",
    "InvalidCommand",
    "InvalidInput",
    "InvalidMcpServer",
    "InvalidOption",
    "InvalidRule",
    "InvalidSetting",
    "InvalidTool",
    "LogUnavailable",
    "McpNotInstalled",
    "McpServers",
    "Message",
    "ModelError",
    "NewerLog",
    "NoRepository",
    "NoSnapshot",
    "NoSuchFolder",
    "NoSuchGate",
    "NoSuchSession",
    "NoSuchText",
    "NotAllowed",
    "NotInstalled",
    "NothingKept",
    "Outcome",
    "OutsideWorkspace",
    "Page",
    "Plugin",
    "PromptRefused",
    "QuarterdeckError",
    "QueueFull",
    "Receipt",
    "RetryPolicy",
    "RulesUnreadable",
    "SessionHandle",
    "SessionRefused",
    "Settings",
    "StaleFence",
    "Status",
    "Steered",
    "SteeringRefused",
    "SubAgent",
    "Subscription",
    "Summary",
    "TooLarge",
    "Tool",
    "ToolContext",
    "TurnNotFinished",
    "UnknownAgent",
    "View",
    "Why",
    "__version__",
    "builtin_tools",
    "create_agent",
    "open",
    "resume",
    "tool",
]


def type_checking_imports() -> dict[str, str]:
    """Return the names that type checkers see, each with its module."""
    tree = ast.parse(Path(quarterdeck.__file__).read_text(encoding="utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    assert all(alias.asname == alias.name for node in imports for alias in node.names), "import X as X"
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def modules_after(statement: str) -> set[str]:
    """Return the top-level modules that a new interpreter has loaded after the statement."""
    code = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    # -I ignores PYTHON* variables and the user's site-packages, which could load other modules.
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_public_names_are_the_listed_ones():
    assert sorted(quarterdeck.__all__) == sorted(PUBLIC)
    assert dir(quarterdeck) == sorted(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_resolves(name: str):
    assert getattr(quarterdeck, name) is not None


def test_type_checkers_see_what_the_interpreter_finds():
    assert type_checking_imports() == quarterdeck._EXPORTS


@pytest.mark.parametrize(("name", "module"), quarterdeck._EXPORTS.items())
def test_a_lazy_name_is_the_same_object_as_in_its_module(name: str, module: str):
    assert quarterdeck.__getattr__(name) is getattr(importlib.import_module(module), name)


def test_an_unknown_name_is_an_attribute_error_that_names_it():
    with pytest.raises(AttributeError, match="'quarterdeck' has no attribute 'no_such_name'"):
        quarterdeck.no_such_name  # noqa: B018


def test_star_import_gives_exactly_the_public_names():
    namespace: dict[str, object] = {}
    exec("from quarterdeck import *", namespace)
    assert sorted(namespace.keys() - {"__builtins__"}) == sorted(PUBLIC)


def test_importing_the_package_alone_imports_nothing_heavy():
    loaded = modules_after("import quarterdeck")
    assert "quarterdeck" in loaded
    assert not loaded & {"msgspec", "click", "asyncio", "immutables", "pyrsistent", "json"}
