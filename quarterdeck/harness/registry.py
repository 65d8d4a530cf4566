"""The translators by agent name, each loaded only when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module

from quarterdeck.harness.base import Translator

#: agent name → "module:function"; the function makes a new translator.
TRANSLATORS = {
    "claude": "quarterdeck.harness.claude.translate:claude",
    "codex": "quarterdeck.harness.codex.translate:codex",
    "acp": "quarterdeck.harness.acp.translate:acp",
    "gemini": "quarterdeck.harness.acp.translate:gemini",
    "opencode": "quarterdeck.harness.acp.translate:opencode",
    "kilo": "quarterdeck.harness.acp.translate:kilo",
    "cline": "quarterdeck.harness.sayask.translate:cline",
    "sayask": "quarterdeck.harness.sayask.translate:sayask",
    "pi": "quarterdeck.harness.pi.translate:pi",
}


def translator(agent: str) -> Translator:
    """A new translator for this agent (`acp:COMMAND` is any ACP agent); KeyError for a name that nobody knows."""
    return _maker(TRANSLATORS["acp" if agent.startswith("acp:") else agent])()


@cache
def _maker(target: str) -> Callable[[], Translator]:
    module, _, function = target.partition(":")
    return getattr(import_module(module), function)
