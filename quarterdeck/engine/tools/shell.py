"""The shell tool: run a command line in the working directory, optionally in a bubblewrap sandbox.

With `sandbox = "bwrap"` a command can write to the working directory and the allowed folders only. Everything else is
read-only, /tmp is empty and private, and the command has its own process namespace. The network stays reachable.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Literal

from msgspec import Meta

from quarterdeck.engine.tools.base import Outcome, Tool, ToolContext
from quarterdeck.engine.tools.function import tool
from quarterdeck.engine.tools.output import CommandOutput, Limits
from quarterdeck.engine.tools.text import pluralize
from quarterdeck.engine.tools.threads import run_in_thread
from quarterdeck.errors import QuarterdeckError
from quarterdeck.process.child import DEFAULT_LINGER_S, Child, finish_uncancelled

#: How long a command may take to exit after SIGTERM: when it timed out or wrote too much, and when it was cancelled.
#: A cancelled one gets less, because the user or a steering message is waiting.
_TIMEOUT_GRACE_S, _CANCEL_GRACE_S = 1.0, 0.03

#: How long background processes may outlive the command before they are killed.
_LINGER_S = DEFAULT_LINGER_S

_SANDBOX_BASE = ("--ro-bind", "/", "/", "--tmpfs", "/tmp")
#: These come after the writable folders, so none of those can cover them.
_SANDBOX_TOP = ("--dev", "/dev", "--proc", "/proc", "--unshare-pid", "--unshare-ipc")

#: Why a command was ended: by itself, at its time limit, or because it wrote too much.
_Ending = Literal["exited", "timed out", "too much output"]


class CommandRefused(QuarterdeckError):
    """The system can't run the command."""

    code = "command_refused"


class SandboxUnavailable(QuarterdeckError):
    """A sandbox is configured and doesn't work. The command isn't run, because outside of it would be less safe."""

    code = "sandbox_unavailable"


# -------------------------------------------------------------------------------------------------------- the tool


def shell_tool(limits: Limits = Limits()) -> Tool:  # noqa: B008  # frozen
    """Make the shell tool with other output limits than the default ones."""

    @tool(needs_approval=True, writes=True)
    async def shell(
        command: str,
        context: ToolContext,
        timeout: Annotated[float, Meta(gt=0, le=3_600)] = 120,  # noqa: ASYNC109  # the model's, not the caller's
    ) -> Outcome:
        """Run a command line in the working directory. Returns its output and exit code.

        The command gets no input. Everything it starts is killed when it exits, background processes included. Long
        output is shortened; the result then names a file with all of it.

        Args:
            command: the command line, run by bash
            timeout: seconds after which the command is killed
        """
        argv = await run_in_thread(wrap_in_sandbox, [_shell_path(), "-c", command], context)
        output = CommandOutput(context, limits)
        child = _spawn(argv, context, output)
        try:
            ending = await _wait_for_end(child, output, timeout)
        except asyncio.CancelledError:
            await finish_uncancelled(child.end(_CANCEL_GRACE_S))
            output.finish()
            raise
        return _outcome(child, output, ending, timeout, limits)

    return shell


def _shell_path() -> str:
    return "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"


def _spawn(argv: list[str], context: ToolContext, output: CommandOutput) -> Child:
    try:
        return Child.spawn(argv, str(context.cwd), context.environment, output.add, linger=_LINGER_S)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CommandRefused(f"can't run the command: {reason}", "Change the command.") from None


async def _wait_for_end(child: Child, output: CommandOutput, timeout: float) -> _Ending:  # noqa: ASYNC109
    """Wait until the command exits. End it when its time is over or it writes too much."""
    overflowed = asyncio.ensure_future(output.overflowed.wait())
    try:
        done, _ = await asyncio.wait([child.exited, overflowed], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        overflowed.cancel()
    if child.exited in done:
        return "exited"
    await child.end(_TIMEOUT_GRACE_S)
    return "too much output" if done else "timed out"


def _outcome(child: Child, output: CommandOutput, ending: _Ending, seconds: float, limits: Limits) -> Outcome:
    code = child.exited.result()
    text = output.finish()
    lines = [text.rstrip("\n")] if text else []
    if child.left_behind and ending == "exited":
        lines.append(f"[killed {pluralize(child.left_behind, 'background process', 'background processes')}]")
    if ending == "timed out":
        lines.append(f"[killed after the time limit of {seconds:g} seconds]")
    elif ending == "too much output":
        lines.append(f"[killed after {limits.total} bytes of output]")
    else:
        lines.append(f"[exit code {code}]" if code >= 0 else f"[killed by {_signal_name(-code)}]")
    return Outcome("\n".join(lines), ok=code == 0 and ending == "exited", path=output.path)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


shell = shell_tool()


# --------------------------------------------------------------------------------------------------------- sandbox


def wrap_in_sandbox(argv: Sequence[str], context: ToolContext) -> list[str]:
    """Return the command as it has to be started in this context's sandbox.

    Raises:
        SandboxUnavailable: the sandbox is unknown, not installed, or doesn't work on this machine.
    """
    if not context.sandbox:
        return list(argv)
    if context.sandbox != "bwrap":
        raise SandboxUnavailable(f"unknown sandbox {context.sandbox!r}", 'Use "bwrap", or "" for no sandbox.')
    program = shutil.which("bwrap")
    if program is None:
        raise SandboxUnavailable(
            "commands must run in bubblewrap, but bwrap isn't installed",
            "Ask the user to install the package bubblewrap, or to set sandbox to an empty string.",
        )
    if problem := _find_bwrap_problem(program):
        raise SandboxUnavailable(
            f"commands must run in bubblewrap, but it doesn't work here: {problem}",
            "Ask the user to allow user namespaces, or to set sandbox to an empty string.",
        )
    mounts = (*_SANDBOX_BASE, *_writable_mounts(context), *_SANDBOX_TOP)
    return [program, *mounts, "--die-with-parent", "--chdir", str(context.cwd), "--", *argv]


def _writable_mounts(context: ToolContext) -> list[str]:
    # Shorter paths first, so a folder inside another isn't covered by it.
    folders = sorted({str(path.resolve()) for path in (context.cwd, *context.allowed_paths)}, key=len)
    return [argument for folder in folders for argument in ("--bind-try", folder, folder)]


@cache
def _find_bwrap_problem(program: str) -> str:
    """Return why bubblewrap can't run anything on this machine, or "". Tested once per process."""
    try:
        completed = subprocess.run(
            [program, *_SANDBOX_BASE, *_SANDBOX_TOP, "--", "/bin/true"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if not completed.returncode:
        return ""
    return completed.stderr.strip() or f"it exited with code {completed.returncode}"
