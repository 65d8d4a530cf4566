"""Run clients in another process, so that their work isn't counted as the server's.

    python -m bench.crowd read URL TOKEN PATH COUNT [MESSAGE]    COUNT readers; with a message, WebSockets that send it
    python -m bench.crowd ask URL                                send requests as standard input says, one JSON task a line

It prints one line when all clients are connected, and one line for every finished task.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import uvloop

#: This text in a request is replaced with the request's number, because some requests have no effect if repeated.
NUMBER = b"@@@@@@@@"


async def _drain(content: aiohttp.StreamReader) -> None:
    async for _ in content.iter_any():
        pass


async def _read(url: str, token: str, path: str, count: int, message: str) -> None:
    """Read everything and discard it."""
    headers = {"Authorization": f"Bearer {token}"}
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(headers=headers, connector=connector, timeout=timeout) as client:
        readers: list[Any] = []
        for _ in range(count):
            if message:
                web_socket = await client.ws_connect(url + path, max_msg_size=0)
                await web_socket.send_str(message)
                readers.append(_messages(web_socket))
            else:
                answer = await client.get(url + path)
                readers.append(_drain(answer.content))
        _say("connected")
        await asyncio.gather(*readers)


async def _messages(web_socket: aiohttp.ClientWebSocketResponse) -> None:
    async for _ in web_socket:
        pass


def _ask(url: str) -> None:
    """Send one request after another over one connection, as a hook or a page does. Raw sockets keep the client cheap."""
    where = urlsplit(url)
    line = socket.create_connection((where.hostname or "", where.port or 0))
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _say("connected")
    number = 0
    for text in sys.stdin:
        task = json.loads(text)
        head = "".join(f"{name}: {value}\r\n" for name, value in task["headers"].items())
        body = task["body"].encode()
        start = f"{task['method']} {task['path']} HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Length: {len(body)}\r\n"
        request = f"{start}{head}\r\n".encode() + body
        for _ in range(task["times"]):
            number += 1
            line.sendall(request.replace(NUMBER, b"%08d" % number))
            _taken(line, task["status"])
        _say("done")


def _taken(line: socket.socket, status: int) -> None:
    data = line.recv(1 << 20)
    while b"\r\n\r\n" not in data:
        data += line.recv(1 << 20)
    head, _, body = data.partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status, data[:2000]
    size = int(head.lower().partition(b"content-length: ")[2].split()[0]) if b"ontent-Length" in head else 0
    while len(body) < size:
        body += line.recv(1 << 20)


def _say(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


class Crowd:
    """Control the client process from the process that measures."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, *arguments: str) -> Crowd:
        command = [sys.executable, "-m", "bench.crowd", *arguments]
        process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        crowd = cls(process)
        await crowd._answered()
        return crowd

    async def ask(self, **task: Any) -> None:
        """Run a task. Return when all of its requests are answered."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(task).encode() + b"\n")
        await self._answered()

    async def _answered(self) -> None:
        assert self._process.stdout is not None
        said = await self._process.stdout.readline()
        assert said, "the clients ended"

    async def stop(self) -> None:
        self._process.kill()
        await self._process.wait()


def main() -> None:
    what, *rest = sys.argv[1:]
    if what == "ask":
        _ask(rest[0])
    else:
        url, token, path, count, *message = rest
        uvloop.run(_read(url, token, path, int(count), message[0] if message else ""))


if __name__ == "__main__":
    main()
