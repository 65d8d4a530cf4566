"""Share code between the plugins that judge tool calls: where a call runs, and what happens if a judgement fails."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

from quarterdeck.engine.plugins.base import Answers, BlockTool, Context, Emit, Plugin
from quarterdeck.events import Notice
from quarterdeck.policy import Workspace


def workspace_of(context: Context) -> Workspace:
    """Return where a call runs: the session's folder, the home folder, and how links are resolved.

    Use it for one judgement only: resolved paths are cached, so a link that changes later would go unnoticed.
    """
    return Workspace(
        session_id=context.session_id,
        cwd=str(context.cwd),
        home=os.environ.get("HOME") or str(Path.home()),
        resolve=cache(_resolve),
    )


def _resolve(path: str) -> str:
    return os.path.realpath(path)


def block_on_failure(plugin: Plugin, tool: str, judge: Callable[[], Answers]) -> Answers:
    """Return the judgement of a call, and block the call if judging it raises.

    The engine takes a hook that raises as `Continue`. For a plugin that protects something, that would let the call run.
    """
    try:
        return judge()
    except Exception as error:
        text = f"{plugin.name} couldn't judge a call of {tool}, so it was blocked: {type(error).__name__}: {error}"
        return (Emit(Notice(text=text, level="error", source=plugin.name)), BlockTool(text))
