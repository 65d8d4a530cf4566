"""Quarterdeck: the command deck for coding agents.

Everything public is a name of this module and is listed in `__all__`. A name is imported when it is first used
and not before, so that `import quarterdeck` and every `qd` command start quickly whatever the library grows to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quarterdeck.version import __version__

# To publish a name: one line here, and the same import below for type checkers. A test compares the two.
_EXPORTS: dict[str, str] = {
    "Agent": "quarterdeck.engine.agent",
    "AgentDown": "quarterdeck.engine.errors",
    "AgentGone": "quarterdeck.engine.errors",
    "AgentStatus": "quarterdeck.engine.agent",
    "AlreadyDecided": "quarterdeck.errors",
    "AsyncClient": "quarterdeck.client.client",
    "Badge": "quarterdeck.kernel.roster",
    "CannotDo": "quarterdeck.harness.drive",
    "ChangedFile": "quarterdeck.deck.changes.diff",
    "Changes": "quarterdeck.kernel.profile",
    "Client": "quarterdeck.client.client",
    "Decided": "quarterdeck.kernel.answers",
    "Deck": "quarterdeck.deck.deck",
    "DeckClosed": "quarterdeck.deck.deck",
    "Details": "quarterdeck.kernel.summary",
    "Diff": "quarterdeck.deck.changes.diff",
    "Done": "quarterdeck.kernel.answers",
    "Dropped": "quarterdeck.kernel.answers",
    "Entry": "quarterdeck.kernel.timeline",
    "Event": "quarterdeck.events",
    "Filter": "quarterdeck.kernel.roster",
    "GitFailed": "quarterdeck.deck.changes.git",
    "GitMissing": "quarterdeck.deck.changes.git",
    "Hands": "quarterdeck.engine.tools.base",
    "HomeInUse": "quarterdeck.deck.deck",
    "IdempotencyMismatch": "quarterdeck.deck.receipts",
    "Image": "quarterdeck.events",
    "InvalidCommand": "quarterdeck.kernel.commands",
    "InvalidInput": "quarterdeck.deck.inputs",
    "InvalidMcpServer": "quarterdeck.engine.tools.mcp.settings",
    "InvalidOption": "quarterdeck.engine.errors",
    "InvalidRule": "quarterdeck.policy",
    "InvalidSetting": "quarterdeck.deck.settings",
    "InvalidTool": "quarterdeck.engine.tools.function",
    "LogUnavailable": "quarterdeck.log.base",
    "McpNotInstalled": "quarterdeck.engine.tools.mcp.connection",
    "McpServers": "quarterdeck.engine.tools.mcp.servers",
    "Message": "quarterdeck.engine.message",
    "ModelError": "quarterdeck.engine.model",
    "NewerLog": "quarterdeck.log.base",
    "NoRepository": "quarterdeck.deck.changes.watch",
    "NoSnapshot": "quarterdeck.deck.changes.watch",
    "NoSuchFolder": "quarterdeck.deck.inputs",
    "NoSuchGate": "quarterdeck.errors",
    "NoSuchSession": "quarterdeck.log.base",
    "NoSuchText": "quarterdeck.deck.keeping",
    "NotAllowed": "quarterdeck.errors",
    "NotInstalled": "quarterdeck.harness.drive",
    "NothingKept": "quarterdeck.engine.errors",
    "Outcome": "quarterdeck.engine.tools.base",
    "OutsideWorkspace": "quarterdeck.deck.inputs",
    "Page": "quarterdeck.kernel.roster",
    "Plugin": "quarterdeck.engine.plugins.base",
    "PromptRefused": "quarterdeck.engine.errors",
    "QuarterdeckError": "quarterdeck.errors",
    "QueueFull": "quarterdeck.errors",
    "Receipt": "quarterdeck.kernel.answers",
    "RetryPolicy": "quarterdeck.engine.options",
    "RulesUnreadable": "quarterdeck.deck.rules",
    "SessionHandle": "quarterdeck.deck.handle",
    "SessionRefused": "quarterdeck.engine.errors",
    "Settings": "quarterdeck.deck.settings",
    "StaleFence": "quarterdeck.log.base",
    "Status": "quarterdeck.kernel.answers",
    "Steered": "quarterdeck.kernel.answers",
    "SteeringRefused": "quarterdeck.engine.errors",
    "SubAgent": "quarterdeck.engine.options",
    "Subscription": "quarterdeck.engine.subscription",
    "Summary": "quarterdeck.kernel.summary",
    "TooLarge": "quarterdeck.deck.inputs",
    "Tool": "quarterdeck.engine.tools.base",
    "TurnNotFinished": "quarterdeck.engine.errors",
    "UnknownAgent": "quarterdeck.harness.registry",
    "View": "quarterdeck.kernel.view",
    "Why": "quarterdeck.kernel.view",
    "builtin_tools": "quarterdeck.engine.tools",
    "create_agent": "quarterdeck.engine.opening",
    "open": "quarterdeck.deck.opening",
    "resume": "quarterdeck.engine.opening",
    "tool": "quarterdeck.engine.tools.function",
}

# Checkers want this list written out; it would be a third place to keep, and the "as" below tells them the same.
__all__ = ["__version__", *_EXPORTS]  # noqa: PLE0604 # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    # "as" the same name is how a typed package says that it passes a name on.
    from quarterdeck.client.client import AsyncClient as AsyncClient
    from quarterdeck.client.client import Client as Client
    from quarterdeck.deck.changes.diff import ChangedFile as ChangedFile
    from quarterdeck.deck.changes.diff import Diff as Diff
    from quarterdeck.deck.changes.git import GitFailed as GitFailed
    from quarterdeck.deck.changes.git import GitMissing as GitMissing
    from quarterdeck.deck.changes.watch import NoRepository as NoRepository
    from quarterdeck.deck.changes.watch import NoSnapshot as NoSnapshot
    from quarterdeck.deck.deck import Deck as Deck
    from quarterdeck.deck.deck import DeckClosed as DeckClosed
    from quarterdeck.deck.deck import HomeInUse as HomeInUse
    from quarterdeck.deck.handle import SessionHandle as SessionHandle
    from quarterdeck.deck.inputs import InvalidInput as InvalidInput
    from quarterdeck.deck.inputs import NoSuchFolder as NoSuchFolder
    from quarterdeck.deck.inputs import OutsideWorkspace as OutsideWorkspace
    from quarterdeck.deck.inputs import TooLarge as TooLarge
    from quarterdeck.deck.keeping import NoSuchText as NoSuchText
    from quarterdeck.deck.opening import open as open  # noqa: A004
    from quarterdeck.deck.receipts import IdempotencyMismatch as IdempotencyMismatch
    from quarterdeck.deck.rules import RulesUnreadable as RulesUnreadable
    from quarterdeck.deck.settings import InvalidSetting as InvalidSetting
    from quarterdeck.deck.settings import Settings as Settings
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
    from quarterdeck.engine.message import Message as Message
    from quarterdeck.engine.model import ModelError as ModelError
    from quarterdeck.engine.opening import create_agent as create_agent
    from quarterdeck.engine.opening import resume as resume
    from quarterdeck.engine.options import RetryPolicy as RetryPolicy
    from quarterdeck.engine.options import SubAgent as SubAgent
    from quarterdeck.engine.plugins.base import Plugin as Plugin
    from quarterdeck.engine.subscription import Subscription as Subscription
    from quarterdeck.engine.tools import builtin_tools as builtin_tools
    from quarterdeck.engine.tools.base import Hands as Hands
    from quarterdeck.engine.tools.base import Outcome as Outcome
    from quarterdeck.engine.tools.base import Tool as Tool
    from quarterdeck.engine.tools.function import InvalidTool as InvalidTool
    from quarterdeck.engine.tools.function import tool as tool
    from quarterdeck.engine.tools.mcp.connection import McpNotInstalled as McpNotInstalled
    from quarterdeck.engine.tools.mcp.servers import McpServers as McpServers
    from quarterdeck.engine.tools.mcp.settings import InvalidMcpServer as InvalidMcpServer
    from quarterdeck.errors import AlreadyDecided as AlreadyDecided
    from quarterdeck.errors import NoSuchGate as NoSuchGate
    from quarterdeck.errors import NotAllowed as NotAllowed
    from quarterdeck.errors import QuarterdeckError as QuarterdeckError
    from quarterdeck.errors import QueueFull as QueueFull
    from quarterdeck.events import Event as Event
    from quarterdeck.events import Image as Image
    from quarterdeck.harness.drive import CannotDo as CannotDo
    from quarterdeck.harness.drive import NotInstalled as NotInstalled
    from quarterdeck.harness.registry import UnknownAgent as UnknownAgent
    from quarterdeck.kernel.answers import Decided as Decided
    from quarterdeck.kernel.answers import Done as Done
    from quarterdeck.kernel.answers import Dropped as Dropped
    from quarterdeck.kernel.answers import Receipt as Receipt
    from quarterdeck.kernel.answers import Status as Status
    from quarterdeck.kernel.answers import Steered as Steered
    from quarterdeck.kernel.commands import InvalidCommand as InvalidCommand
    from quarterdeck.kernel.profile import Changes as Changes
    from quarterdeck.kernel.roster import Badge as Badge
    from quarterdeck.kernel.roster import Filter as Filter
    from quarterdeck.kernel.roster import Page as Page
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
    # Hidden from type checkers: to them a module with __getattr__ has every name, and a misspelt one passes.
    def __getattr__(name: str) -> object:
        if name not in _EXPORTS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(_EXPORTS[name]), name)
        globals()[name] = value  # the next use finds it without coming here
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
