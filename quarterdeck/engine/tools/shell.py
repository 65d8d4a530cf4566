"""shell: one command line, in the working directory, with no input."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Annotated

from msgspec import Meta

from quarterdeck.engine.tools.base import Outcome, Tool, ToolContext
from quarterdeck.engine.tools.function import tool
from quarterdeck.engine.tools.output import Collected, Limits
from quarterdeck.engine.tools.sandbox import wrapped
from quarterdeck.engine.tools.text import counted
from quarterdeck.engine.tools.threads import in_thread
from quarterdeck.errors import QuarterdeckError
from quarterdeck.process.child import Child, to_its_end

#: How long a command has to leave by itself: when its time is over, and when a person or a steering text ended it.
_LATE_GRACE_S, _CANCEL_GRACE_S = 1.0, 0.03


class CommandRefused(QuarterdeckError):
    """The system will not run it."""

    code = "command_refused"


def shell_tool(limits: Limits = Limits()) -> Tool:  # noqa: B008  # frozen
    """The tool, with other limits than the usual ones."""

    @tool(needs_approval=True, writes=True)
    async def shell(
        command: str,
        context: ToolContext,
        timeout: Annotated[float, Meta(gt=0, le=3_600)] = 120,  # noqa: ASYNC109  # the model's, not the caller's
    ) -> Outcome:
        """Runs a command line in the working directory and gives its output and exit code.

        It has no input. Everything it started ends with it, also what was put into the background. Much output is shown in
        part and kept whole in a file.

        Args:
            command: what bash is to run
            timeout: after how many seconds it is ended
        """
        argv = await in_thread(wrapped, [_shell(), "-c", command], context)
        output = Collected(context, limits)
        child = _started(argv, context, output)
        try:
            why = await _ended(child, output, timeout)
        except asyncio.CancelledError:
            await to_its_end(child.end(_CANCEL_GRACE_S))
            output.finish()
            raise
        return _told(child, output, why, timeout, limits)

    return shell


def _shell() -> str:
    return "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"


def _started(argv: list[str], context: ToolContext, output: Collected) -> Child:
    try:
        return Child.start(argv, str(context.cwd), context.environment, output.hear)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise CommandRefused(f"the command cannot be run: {why}", "Change the command.") from None


async def _ended(child: Child, output: Collected, timeout: float) -> str:  # noqa: ASYNC109
    """Waits for its end, or brings it about: "" when it came by itself, else why not."""
    overflowed = asyncio.ensure_future(output.overflowed.wait())
    try:
        done, _ = await asyncio.wait([child.exited, overflowed], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        overflowed.cancel()
    if child.exited in done:
        return ""
    await child.end(_LATE_GRACE_S)
    return "overflow" if done else "late"


def _told(child: Child, output: Collected, why: str, seconds: float, limits: Limits) -> Outcome:
    code = child.exited.result()
    text = output.finish()
    notes = [text.rstrip("\n")] if text else []
    if child.left_behind and not why:
        left = counted(child.left_behind, "process", "processes")
        notes.append(f"[ended with the command: {left} in the background]")
    notes.append(_last_line(code, why, seconds, limits))
    return Outcome("\n".join(notes), ok=code == 0 and not why, path=output.path)


def _last_line(code: int, why: str, seconds: float, limits: Limits) -> str:
    if why == "late":
        return f"[ended after {seconds:g} seconds, which was its time limit]"
    if why:
        return f"[ended after {limits.total} bytes of output]"
    return f"[exit code {code}]" if code >= 0 else f"[ended by {_signal(-code)}]"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


shell = shell_tool()
