"""Quarterdeck: the command deck for coding agents.

Everything public is a name of this module and is listed in `__all__`. A name is imported when it is first used
and not before, so that `import quarterdeck` and every `qd` command start quickly whatever the library grows to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

# To publish a name: one line here, and the same import below for type checkers. A test compares the two.
_EXPORTS: dict[str, str] = {
    "AsyncClient": "quarterdeck.client.client",
    "Client": "quarterdeck.client.client",
    "Deck": "quarterdeck.deck.deck",
    "QuarterdeckError": "quarterdeck.errors",
    "SessionHandle": "quarterdeck.deck.handle",
    "Settings": "quarterdeck.deck.settings",
    "open": "quarterdeck.deck.opening",
}

# Checkers want this list written out; it would be a third place to keep, and the "as" below tells them the same.
__all__ = ["__version__", *_EXPORTS]  # noqa: PLE0604 # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    # "as" the same name is how a typed package says that it passes a name on.
    from quarterdeck.client.client import AsyncClient as AsyncClient
    from quarterdeck.client.client import Client as Client
    from quarterdeck.deck.deck import Deck as Deck
    from quarterdeck.deck.handle import SessionHandle as SessionHandle
    from quarterdeck.deck.opening import open as open  # noqa: A004
    from quarterdeck.deck.settings import Settings as Settings
    from quarterdeck.errors import QuarterdeckError as QuarterdeckError
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
