"""What the plugins that keep calls from running share: where a call is made, and what happens when they break."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

from quarterdeck.engine.plugins.base import Answers, BlockTool, Context, Emit, Plugin
from quarterdeck.events import Notice
from quarterdeck.policy import Workspace


def place_of(context: Context) -> Workspace:
    """The place of this session, with the real file system behind it; for one judgement, which asks of a path once."""
    return Workspace(
        session_id=context.session_id,
        cwd=str(context.cwd),
        home=os.environ.get("HOME") or str(Path.home()),
        resolve=cache(_resolved),
    )


def _resolved(path: str) -> str:
    return os.path.realpath(path)


def closed_on_failure(plugin: Plugin, tool: str, judge: Callable[[], Answers]) -> Answers:
    """What the judge says. A hook that raises counts as Continue, and a fence that breaks must not be an open door."""
    try:
        return judge()
    except Exception as fault:
        told = f"{plugin.name} could not judge a call of {tool}, so it did not run: {type(fault).__name__}: {fault}"
        return (Emit(Notice(text=told, level="error", source=plugin.name)), BlockTool(told))
