"""Run a real MCP server, written with the official SDK: `python -m tests.support.mcp_server stdio`, or `http PORT`."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import time
from pathlib import Path

import anyio
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp_types import ToolAnnotations

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
server = MCPServer("test")


def note(path: str, text: str) -> None:
    Path(path).write_text(text)


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
def fail(why: str) -> str:
    """Fails."""
    raise ValueError(why)


@server.tool()
def picture() -> Image:
    """A picture."""
    return Image(data=PNG, format="png")


@server.tool()
def much(count: int) -> str:
    """Many lines."""
    return "".join(f"line {number}\n" for number in range(count))


@server.tool()
def die() -> str:
    """Ends the server in the middle of the call."""
    os._exit(3)


@server.tool()
async def wait(path: str) -> str:
    """Waits until it is cancelled, and says so in a file."""
    note(path, "waiting")
    try:
        await anyio.sleep_forever()
    except anyio.get_cancelled_exc_class():
        note(path, "cancelled")
        raise
    return ""


@server.tool()
def pid() -> int:
    """The server's own process."""
    return os.getpid()


@server.tool()
def environment(name: str) -> str:
    """A variable of the server's environment."""
    return os.environ.get(name, "")


@server.tool()
def header(name: str, ctx: Context) -> str:
    """A header of the request."""
    request = ctx.request_context.request
    return request.headers.get(name, "") if request is not None else ""


@server.tool()
def daemon() -> int:
    """Starts a process that leaves the server's session."""
    return subprocess.Popen(["sleep", "1000"], start_new_session=True).pid


@server.tool(name="odd name/with.dots" + "x" * 60)
def odd() -> str:
    """A name that no provider takes."""
    return "odd"


def main() -> None:
    match sys.argv[1]:
        case "stdio":
            server.run()
        case "http":
            server.run("streamable-http", port=int(sys.argv[2]))
        case "broken":
            sys.exit(f"cannot start with {os.environ.get('SECRET', '')}")
        case "silent":
            time.sleep(1000)
        case "noise":
            sys.stdout.write("this is no JSON\n" * 3)
            sys.stderr.write("x" * 300_000)
            server.run()


if __name__ == "__main__":
    main()
