"""Run many coding agents and always know what each one is doing.

Every public name is an attribute of this module and listed in `__all__`. A name is imported on first use, so that
`import quarterdeck` and every `qd` command start quickly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quarterdeck.version import __version__

# To export a name, add a line here and the same import below for type checkers. A test compares the two.
_EXPORTS: dict[str, str] = {
    "Agent": "quarterdeck.engine.agent",
    "AgentDown": "quarterdeck.engine.errors",
    "AgentGone": "quarterdeck.engine.errors",
    "AgentOptions": "quarterdeck.engine.options",
    "AgentStatus": "quarterdeck.engine.agent",
    "AlreadyDecided": "quarterdeck.errors",
    "AsyncClient": "quarterdeck.client.api",
    "Badge": "quarterdeck.kernel.session_list",
    "CannotDo": "quarterdeck.harness.driver",
    "ChangedFile": "quarterdeck.deck.git.diff",
    "Changes": "quarterdeck.kernel.profile",
    "Client": "quarterdeck.client.sync_client",
    "Decided": "quarterdeck.kernel.command_results",
    "Deck": "quarterdeck.deck.deck",
    "DeckClosed": "quarterdeck.deck.deck",
    "Details": "quarterdeck.kernel.summary",
    "Diff": "quarterdeck.deck.git.diff",
    "Done": "quarterdeck.kernel.command_results",
    "Dropped": "quarterdeck.kernel.command_results",
    "Entry": "quarterdeck.kernel.timeline",
    "Event": "quarterdeck.events",
    "Filter": "quarterdeck.kernel.session_list",
    "GitFailed": "quarterdeck.deck.git.run_git",
    "GitMissing": "quarterdeck.deck.git.run_git",
    "HomeInUse": "quarterdeck.deck.deck",
    "IdempotencyMismatch": "quarterdeck.deck.receipts",
    "Image": "quarterdeck.events",
    "InvalidCommand": "quarterdeck.kernel.commands",
    "InvalidInput": "quarterdeck.deck.validation",
    "InvalidMcpServer": "quarterdeck.config",
    "InvalidOption": "quarterdeck.engine.errors",
    "InvalidRule": "quarterdeck.policy",
    "InvalidSetting": "quarterdeck.config",
    "InvalidTool": "quarterdeck.engine.tools.function",
    "LogUnavailable": "quarterdeck.log.base",
    "McpNotInstalled": "quarterdeck.engine.tools.mcp.connection",
    "McpServers": "quarterdeck.engine.tools.mcp.servers",
    "Message": "quarterdeck.engine.model",
    "ModelError": "quarterdeck.engine.model",
    "NewerLog": "quarterdeck.log.base",
    "NoRepository": "quarterdeck.deck.git.tracker",
    "NoSnapshot": "quarterdeck.deck.git.tracker",
    "NoSuchFolder": "quarterdeck.deck.validation",
    "NoSuchGate": "quarterdeck.errors",
    "NoSuchSession": "quarterdeck.log.base",
    "NoSuchText": "quarterdeck.deck.commands.texts",
    "NotAllowed": "quarterdeck.errors",
    "NotInstalled": "quarterdeck.harness.driver",
    "NothingKept": "quarterdeck.engine.errors",
    "Outcome": "quarterdeck.engine.tools.base",
    "OutsideWorkspace": "quarterdeck.deck.validation",
    "Page": "quarterdeck.kernel.session_list",
    "Plugin": "quarterdeck.engine.plugins.base",
    "PromptRefused": "quarterdeck.engine.errors",
    "QuarterdeckError": "quarterdeck.errors",
    "QueueFull": "quarterdeck.errors",
    "Receipt": "quarterdeck.kernel.command_results",
    "RetryPolicy": "quarterdeck.engine.options",
    "RulesUnreadable": "quarterdeck.deck.rules",
    "SessionHandle": "quarterdeck.deck.session_api",
    "SessionRefused": "quarterdeck.engine.errors",
    "Settings": "quarterdeck.config",
    "StaleFence": "quarterdeck.log.base",
    "Status": "quarterdeck.kernel.command_results",
    "Steered": "quarterdeck.kernel.command_results",
    "SteeringRefused": "quarterdeck.engine.errors",
    "SubAgent": "quarterdeck.engine.options",
    "Subscription": "quarterdeck.engine.subscription",
    "Summary": "quarterdeck.kernel.summary",
    "TooLarge": "quarterdeck.deck.validation",
    "Tool": "quarterdeck.engine.tools.base",
    "ToolContext": "quarterdeck.engine.tools.base",
    "TurnNotFinished": "quarterdeck.engine.errors",
    "UnknownAgent": "quarterdeck.harness.registry",
    "View": "quarterdeck.kernel.view",
    "Why": "quarterdeck.kernel.view",
    "builtin_tools": "quarterdeck.engine.tools",
    "create_agent": "quarterdeck.engine.factory",
    "open": "quarterdeck.deck.opening",
    "resume": "quarterdeck.engine.factory",
    "tool": "quarterdeck.engine.tools.function",
}

# Type checkers want a literal list. That would be a third copy, and the `as` imports below give them the same names.
__all__ = ["__version__", *_EXPORTS]  # noqa: PLE0604 # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    # Importing a name `as` itself marks it as re-exported in a typed package.
    from quarterdeck.client.api import AsyncClient as AsyncClient
    from quarterdeck.client.sync_client import Client as Client
    from quarterdeck.config import InvalidMcpServer as InvalidMcpServer
    from quarterdeck.config import InvalidSetting as InvalidSetting
    from quarterdeck.config import Settings as Settings
    from quarterdeck.deck.commands.texts import NoSuchText as NoSuchText
    from quarterdeck.deck.deck import Deck as Deck
    from quarterdeck.deck.deck import DeckClosed as DeckClosed
    from quarterdeck.deck.deck import HomeInUse as HomeInUse
    from quarterdeck.deck.git.diff import ChangedFile as ChangedFile
    from quarterdeck.deck.git.diff import Diff as Diff
    from quarterdeck.deck.git.run_git import GitFailed as GitFailed
    from quarterdeck.deck.git.run_git import GitMissing as GitMissing
    from quarterdeck.deck.git.tracker import NoRepository as NoRepository
    from quarterdeck.deck.git.tracker import NoSnapshot as NoSnapshot
    from quarterdeck.deck.opening import open as open  # noqa: A004
    from quarterdeck.deck.receipts import IdempotencyMismatch as IdempotencyMismatch
    from quarterdeck.deck.rules import RulesUnreadable as RulesUnreadable
    from quarterdeck.deck.session_api import SessionHandle as SessionHandle
    from quarterdeck.deck.validation import InvalidInput as InvalidInput
    from quarterdeck.deck.validation import NoSuchFolder as NoSuchFolder
    from quarterdeck.deck.validation import OutsideWorkspace as OutsideWorkspace
    from quarterdeck.deck.validation import TooLarge as TooLarge
    from quarterdeck.engine.agent import Agent as Agent
    from quarterdeck.engine.agent import AgentStatus as AgentStatus
    from quarterdeck.engine.errors import AgentDown as AgentDown
    from quarterdeck.engine.errors import AgentGone as AgentGone
    from quarterdeck.engine.errors import InvalidOption as InvalidOption
    from quarterdeck.engine.errors import NothingKept as NothingKept
    from quarterdeck.engine.errors import PromptRefused as PromptRefused
    from quarterdeck.engine.errors import SessionRefused as SessionRefused
    from quarterdeck.engine.errors import SteeringRefused as SteeringRefused
    from quarterdeck.engine.errors import TurnNotFinished as TurnNotFinished
    from quarterdeck.engine.factory import create_agent as create_agent
    from quarterdeck.engine.factory import resume as resume
    from quarterdeck.engine.model import Message as Message
    from quarterdeck.engine.model import ModelError as ModelError
    from quarterdeck.engine.options import AgentOptions as AgentOptions
    from quarterdeck.engine.options import RetryPolicy as RetryPolicy
    from quarterdeck.engine.options import SubAgent as SubAgent
    from quarterdeck.engine.plugins.base import Plugin as Plugin
    from quarterdeck.engine.subscription import Subscription as Subscription
    from quarterdeck.engine.tools import builtin_tools as builtin_tools
    from quarterdeck.engine.tools.base import Outcome as Outcome
    from quarterdeck.engine.tools.base import Tool as Tool
    from quarterdeck.engine.tools.base import ToolContext as ToolContext
    from quarterdeck.engine.tools.function import InvalidTool as InvalidTool
    from quarterdeck.engine.tools.function import tool as tool
    from quarterdeck.engine.tools.mcp.connection import McpNotInstalled as McpNotInstalled
    from quarterdeck.engine.tools.mcp.servers import McpServers as McpServers
    from quarterdeck.errors import AlreadyDecided as AlreadyDecided
    from quarterdeck.errors import NoSuchGate as NoSuchGate
    from quarterdeck.errors import NotAllowed as NotAllowed
    from quarterdeck.errors import QuarterdeckError as QuarterdeckError
    from quarterdeck.errors import QueueFull as QueueFull
    from quarterdeck.events import Event as Event
    from quarterdeck.events import Image as Image
    from quarterdeck.harness.driver import CannotDo as CannotDo
    from quarterdeck.harness.driver import NotInstalled as NotInstalled
    from quarterdeck.harness.registry import UnknownAgent as UnknownAgent
    from quarterdeck.kernel.command_results import Decided as Decided
    from quarterdeck.kernel.command_results import Done as Done
    from quarterdeck.kernel.command_results import Dropped as Dropped
    from quarterdeck.kernel.command_results import Receipt as Receipt
    from quarterdeck.kernel.command_results import Status as Status
    from quarterdeck.kernel.command_results import Steered as Steered
    from quarterdeck.kernel.commands import InvalidCommand as InvalidCommand
    from quarterdeck.kernel.profile import Changes as Changes
    from quarterdeck.kernel.session_list import Badge as Badge
    from quarterdeck.kernel.session_list import Filter as Filter
    from quarterdeck.kernel.session_list import Page as Page
    from quarterdeck.kernel.summary import Details as Details
    from quarterdeck.kernel.summary import Summary as Summary
    from quarterdeck.kernel.timeline import Entry as Entry
    from quarterdeck.kernel.view import View as View
    from quarterdeck.kernel.view import Why as Why
    from quarterdeck.log.base import LogUnavailable as LogUnavailable
    from quarterdeck.log.base import NewerLog as NewerLog
    from quarterdeck.log.base import NoSuchSession as NoSuchSession
    from quarterdeck.log.base import StaleFence as StaleFence
    from quarterdeck.policy import InvalidRule as InvalidRule
else:
    # Hidden from type checkers: they assume that a module with __getattr__ has every name, and would accept typos.
    def __getattr__(name: str) -> object:
        if name not in _EXPORTS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(_EXPORTS[name]), name)
        globals()[name] = value  # Later lookups no longer call __getattr__.
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
