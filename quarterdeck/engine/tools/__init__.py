"""The tools of the built-in agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quarterdeck.engine.tools.base import Tool


def builtin_tools() -> list[Tool]:
    """Return the standard tools. They are imported here, so a program that doesn't use them starts faster."""
    from quarterdeck.engine.tools.files import edit_file, read_file, write_file
    from quarterdeck.engine.tools.interaction_tools import ask_user, compact_conversation, task, write_todos
    from quarterdeck.engine.tools.search import glob, grep, ls
    from quarterdeck.engine.tools.shell import shell

    return [
        read_file,
        write_file,
        edit_file,
        ls,
        glob,
        grep,
        shell,
        task,
        write_todos,
        ask_user,
        compact_conversation,
    ]
