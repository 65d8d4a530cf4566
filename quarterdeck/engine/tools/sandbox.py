"""`sandbox = "bwrap"`: commands in bubblewrap.

The working directory and the allowed folders can be written, everything else is read-only, /tmp is empty and the
command's own, and so is its world of processes, which ends with it. The network is as it was.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from functools import cache

from quarterdeck.engine.tools.base import ToolContext
from quarterdeck.errors import QuarterdeckError

_BENEATH = ("--ro-bind", "/", "/", "--tmpfs", "/tmp")
#: Last, so that no folder that may be written covers them.
_ABOVE = ("--dev", "/dev", "--proc", "/proc", "--unshare-pid", "--unshare-ipc")


class SandboxUnavailable(QuarterdeckError):
    """A sandbox was asked for and there is none. Nothing was run: outside of it would not be what was asked for."""

    code = "sandbox_unavailable"


def wrapped(argv: Sequence[str], context: ToolContext) -> list[str]:
    """The command as it has to be started. SandboxUnavailable."""
    if not context.sandbox:
        return list(argv)
    if context.sandbox != "bwrap":
        raise SandboxUnavailable(f"there is no sandbox {context.sandbox!r}", 'Set it to "bwrap", or to "" for none.')
    program = shutil.which("bwrap")
    if program is None:
        raise SandboxUnavailable(
            "commands are to run in bubblewrap, and there is no program bwrap",
            "The person at the machine has to install the package bubblewrap, or to set sandbox to nothing.",
        )
    if trouble := _trouble(program):
        raise SandboxUnavailable(
            f"commands are to run in bubblewrap, and it does not work here: {trouble}",
            "The person at the machine has to allow user namespaces, or to set sandbox to nothing.",
        )
    world = (*_BENEATH, *_writable(context), *_ABOVE)
    return [program, *world, "--die-with-parent", "--chdir", str(context.cwd), "--", *argv]


def _writable(context: ToolContext) -> list[str]:
    """Shorter ones first, so that what lies in another is not covered by it."""
    folders = sorted({str(one.resolve()) for one in (context.cwd, *context.allowed_paths)}, key=len)
    return [word for one in folders for word in ("--bind-try", one, one)]


@cache
def _trouble(program: str) -> str:
    """Why nothing can be run in it on this machine; "" when it can. Asked once."""
    try:
        done = subprocess.run(
            [program, *_BENEATH, *_ABOVE, "--", "/bin/true"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stderr.strip() or f"it ended with {done.returncode}") if done.returncode else ""
