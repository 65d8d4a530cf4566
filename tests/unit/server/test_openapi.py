"""Test that openapi.json is complete, and with schemathesis that the server does what it says.

`QD_EXAMPLES=200 pytest -s` sends more requests.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from quarterdeck.harness import hooks
from quarterdeck.server.auth import SECRET, secret_for
from quarterdeck.server.openapi import openapi
from quarterdeck.server.routes import all_routes
from tests.support.live_server import Port

EXAMPLES = os.environ.get("QD_EXAMPLES", "3")


def document() -> dict[str, Any]:
    return msgspec.json.decode(msgspec.json.encode(openapi(all_routes())))


def references(value: Any) -> set[str]:
    return set(re.findall(r'"\$ref":"([^"]+)"', msgspec.json.encode(value).decode()))


def test_every_route_is_described_with_its_errors():
    found = document()
    for route in all_routes():
        operation = found["paths"][route.path][route.method.lower()]
        assert operation["operationId"] == route.name
        assert operation["summary"]
        assert str(route.status) in operation["responses"]
        assert {"400", "401", "403", "429", "503"} <= operation["responses"].keys()
        assert ("requestBody" in operation) == (route.body is not None)
    names = [one["operationId"] for item in found["paths"].values() for one in item.values()]
    assert len(names) == len(set(names))


def test_everything_at_the_server_is_described_and_nothing_else(tmp_path: Path):
    async def registered() -> set[tuple[str, str]]:
        port = Port(tmp_path / "home")
        await port.start()
        found = {(one.method, one.resource.canonical) for one in port.server.app.router.routes() if one.resource}
        await port.stop()
        return {(method, path) for method, path in found if method != "HEAD"}

    told = {(method.upper(), path) for path, item in document()["paths"].items() for method in item}
    assert told == uvloop.run(registered())


def test_a_body_may_be_late_or_too_large():
    for item in document()["paths"].values():
        for operation in item.values():
            assert ("requestBody" in operation) == ({"408", "413"} <= operation["responses"].keys())


def test_what_must_be_sent_has_an_example():
    for item in document()["paths"].values():
        for operation in item.values():
            if operation.get("requestBody", {}).get("required"):
                assert "example" in operation["requestBody"]["content"]["application/json"], operation["operationId"]


def test_every_reference_leads_somewhere():
    found = document()
    for reference in references(found):
        assert reference.removeprefix("#/components/schemas/") in found["components"]["schemas"]


def test_streams_and_the_socket_are_described():
    paths = document()["paths"]
    for path in ("/events", "/sessions/{id}/events"):
        answer = paths[path]["get"]["responses"]["200"]["content"]
        assert answer.keys() == {"text/event-stream", "application/json"}
    assert len(paths["/ws"]["get"]["x-messages"]["client"]) == 3
    assert paths["/healthz"]["get"]["security"] == []


def test_what_comes_later_is_absent():
    later = ("adopt", "release", "thinking", "tools")
    assert not [path for path in document()["paths"] if path.rpartition("/")[2] in later]


def test_schemathesis_finds_no_failure(tmp_path: Path):
    uvloop.run(_asked(tmp_path))


def _config(port: Port, session_id: str, others: dict[str, str]) -> str:
    """Return a configuration with ids of existing sessions, separate ones for routes that end a session, and secrets."""
    lines = ["[parameters]", f'"path.id" = "{session_id}"']
    for name, other in others.items():
        lines += ["[[operations]]", f'include-operation-id = "{name}"', f'parameters = {{ "path.id" = "{other}" }}']
    doors = {f"/ingest/{agent}": "" for agent in (*hooks.AGENTS, "otlp/v1/logs")}
    doors |= {f"/ingest/{agent}/{{id}}": session_id for agent in hooks.AGENTS}
    for path, name in doors.items():
        secret = secret_for(port.token, name)
        lines += ["[[operations]]", f'include-path = "{path}"', f'headers = {{ "{SECRET}" = "{secret}" }}']
    # A valid request may still name something that doesn't exist, or not be allowed now.
    lines += ["[checks]", 'positive_data_acceptance.expected-statuses = ["2xx", "3xx", "403", "404", "409"]']
    lines += ["[[operations]]", 'include-path = "/login"']  # A valid request without a valid token is refused.
    lines += ['checks.positive_data_acceptance.expected-statuses = ["303", "401"]']
    return "\n".join(lines)


async def _asked(folder: Path) -> None:
    port = Port(folder / "home")
    await port.start()
    # Schemathesis sends hundreds of wrong tokens and would be locked out.
    port.server.auth.failures.record = lambda _: 0
    session = await port.deck.create("test", "say hello; ask rm", cwd=str(folder))
    config = folder / "schemathesis.toml"
    ends = ("delete_sessions_id", "post_sessions_id_cancel", "post_sessions_id_archive")
    others = {name: (await port.deck.create("test", cwd=str(folder))).id for name in ends}
    config.write_text(_config(port, session.id, others), encoding="utf-8")
    command = [
        str(Path(sys.executable).parent / "schemathesis"),
        f"--config-file={config}",
        "run",
        f"{port.url}/openapi.json",
        f"--header=Authorization: Bearer {port.token}",
        "--header=Accept: application/json",
        "--exclude-path=/ws",  # Schemathesis can't open WebSockets.
        "--phases=examples,coverage,fuzzing",
        "--checks=all",
        "--seed=1",
        f"--max-examples={EXAMPLES}",
        "--generation-database=none",
        "--request-timeout=30",
        "--no-color",
    ]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    said, _ = await process.communicate()
    await port.stop()
    sys.stdout.write(said.decode()[-1500:])
    assert process.returncode == 0, said.decode()
