"""Test `GET /metrics`: a valid and complete page that needs a token."""

from __future__ import annotations

from pathlib import Path

import pytest

from quarterdeck.log.counters import LATENCY_BOUNDS_S, AppendCounters
from tests.support.decks import eventually, gate_of, until
from tests.support.live_server import WsTap, served
from tests.support.observed_agents import observed, parsed


async def test_it_needs_a_token_and_says_which_format_it_is(tmp_path: Path) -> None:
    async with observed(tmp_path) as here:
        async with here.stranger.get(f"{here.url}/metrics") as refused:
            assert refused.status == 401
        async with here.client.get(f"{here.url}/metrics") as response:
            assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            found = parsed(await response.text())
    assert found["quarterdeck_open_gates"] == 0
    assert found["process_resident_memory_bytes"] > 1_000_000
    assert found["quarterdeck_uptime_seconds"] > 0
    assert [name for name in found if name.startswith('quarterdeck_build_info{version="')]


async def test_sessions_processes_gates_events_and_commands_are_counted(tmp_path: Path) -> None:
    async with observed(tmp_path) as here:
        waiting = await here.post("/sessions", agent="test", prompt="ask ls", cwd=str(tmp_path))
        idle = await here.post("/sessions", agent="test", cwd=str(tmp_path))
        session = here.deck.session(waiting["id"])
        gate = await gate_of(session)
        during = await here.metrics()
        await here.post(f"/sessions/{session.id}/approve", gate_id=gate.id)
        await here.post(f"/sessions/{session.id}/approve", gate_id=gate.id)
        await until(session, lambda view: not view.state.turn.is_open)
        await here.post(f"/sessions/{idle['id']}/archive")
        after = await here.metrics()
        in_log = len(await here.deck.services.log.read_all())
    assert during['quarterdeck_sessions{lifecycle="active",phase="waiting_approval"}'] == 1
    assert during['quarterdeck_sessions{lifecycle="active",phase="idle"}'] == 1
    assert (during["quarterdeck_open_gates"], during["quarterdeck_processes"]) == (1, 1)
    assert after["quarterdeck_open_gates"] == 0
    assert after['quarterdeck_sessions{lifecycle="archived",phase="idle"}'] == 1
    assert after['quarterdeck_commands_total{command="create",outcome="done"}'] == 2
    assert after['quarterdeck_commands_total{command="approve",outcome="done"}'] == 1
    assert after['quarterdeck_commands_total{command="approve",outcome="already_decided"}'] == 1
    assert after["quarterdeck_events_appended_total"] >= in_log
    assert 0 < after["quarterdeck_append_seconds_count"] <= after["quarterdeck_events_appended_total"]
    assert after["quarterdeck_append_seconds_sum"] > 0
    assert after['quarterdeck_http_requests_total{method="POST",route="/sessions",status="201"}'] == 2
    assert after['quarterdeck_http_requests_total{method="POST",route="/sessions/{id}/approve",status="409"}'] == 1
    assert after['quarterdeck_http_requests_total{method="GET",route="/metrics",status="200"}'] == 1


async def test_sessions_at_rest_are_counted_as_they_are_shown(tmp_path: Path) -> None:
    async with observed(tmp_path) as here:
        for prompt in ("say one", "error two", "say three"):
            created = await here.post("/sessions", agent="test", prompt=prompt, cwd=str(tmp_path))
            session = here.deck.session(created["id"])
            await until(session, lambda view: view.index > 3 and not view.state.turn.is_open)
    async with observed(tmp_path) as here:
        shown = [here.deck.view(name).state for name in here.deck.session_ids()]
        first = await here.metrics()
        again = await here.metrics()
        await here.deck.delete(here.deck.session_ids()[0])
        less = await here.metrics()
    kinds = [f'quarterdeck_sessions{{lifecycle="{one.lifecycle.value}",phase="{one.phase.value}"}}' for one in shown]
    assert {name: kinds.count(name) for name in kinds} == {n: v for n, v in first.items() if n in kinds}
    assert _sessions(first) == _sessions(again) == 3
    assert _sessions(less) == 2


def _sessions(found: dict[str, float]) -> float:
    return sum(value for name, value in found.items() if name.startswith("quarterdeck_sessions{"))


async def test_connections_and_what_they_are_given_are_counted(tmp_path: Path) -> None:
    async with observed(tmp_path) as here:
        created = await here.post("/sessions", agent="test", cwd=str(tmp_path))
        address = f"{here.url}/sessions/{created['id']}/events"
        async with here.client.get(address) as stream, here.client.ws_connect(f"{here.url}/ws") as socket:
            await socket.send_json({"op": "subscribe", "session": created["id"], "since": 0})
            while '"op":"event"' not in (await socket.receive()).data:
                pass
            await stream.content.readuntil(b"session_opened")
            during = await here.metrics()
        await eventually(lambda: not here.server.streams.count and not here.server.sockets.count)
        after = await here.metrics()
    for kind in ("sse", "ws"):
        assert during[f'quarterdeck_connections{{kind="{kind}"}}'] == 1
        assert during[f'quarterdeck_deliveries_total{{kind="{kind}"}}'] >= 1
        assert after[f'quarterdeck_connections{{kind="{kind}"}}'] == 0


async def test_a_websocket_that_is_cut_was_answered_all_the_same(tmp_path: Path) -> None:
    async with served(tmp_path) as port:
        tap = await WsTap.open(port)
        tap.cut()
        counted = port.server.access_log.requests
        await eventually(lambda: counted)
        assert dict(counted) == {("GET", "/ws", 101): 1}


async def test_a_log_that_refuses_shows(tmp_path: Path) -> None:
    async with observed(tmp_path) as here:
        created = await here.post("/sessions", agent="test", cwd=str(tmp_path))
        store = here.deck.services.log._writer._store  # type: ignore[attr-defined]
        store.execute("PRAGMA query_only = ON")
        refused = await here.renamed(created["id"], "later")
        during = await here.metrics()
        store.execute("PRAGMA query_only = OFF")
        await here.renamed(created["id"], "later")
        after = await here.metrics()
        lines = [line for line in here.lines() if line["logger"] == "quarterdeck.log"]
    assert refused["error"]["code"] == "log_unavailable"
    assert (during["quarterdeck_log_trouble"], during["quarterdeck_appends_refused_total"]) == (1, 1)
    assert (after["quarterdeck_log_trouble"], after["quarterdeck_appends_refused_total"]) == (0, 1)
    assert [(line["message"], line["session"]) for line in lines] == [
        ("the log refuses appends", created["id"]),
        ("the log accepts appends again", created["id"]),
    ]


async def test_strange_methods_and_addresses_do_not_become_labels(tmp_path: Path) -> None:
    async with observed(tmp_path) as here:
        for number, method in enumerate(("PROPFIND", "LOCK", "MKCOL", "PURGE", "SEARCH")):
            async with here.client.request(method, f"{here.url}/nothing/{number}") as response:
                assert response.status == 404
        found = await here.metrics()
    odd = {name: value for name, value in found.items() if "http_requests" in name and "other" in name}
    assert odd == {'quarterdeck_http_requests_total{method="other",route="other",status="404"}': 5}


@pytest.mark.parametrize(
    ("seconds", "place"), [(0.0, 0), (LATENCY_BOUNDS_S[0], 0), (0.0006, 1), (99.0, len(LATENCY_BOUNDS_S))]
)
def test_an_append_falls_into_its_bucket(seconds: float, place: int) -> None:
    counters = AppendCounters()
    counters.add(3, seconds)
    assert (counters.events, counters.latency_buckets.index(1), sum(counters.latency_buckets)) == (3, place, 1)


@pytest.mark.parametrize(
    "text",
    [
        "a 1",
        "# HELP a x\n# TYPE a gauge\na{b=c} 1\n",
        "# HELP a x\n# TYPE a gauge\nb 1\n",
        "# HELP a x\n# TYPE a counter\na 1\n",
        '# HELP a x\n# TYPE a gauge\na{b="c",b="d"} 1\n',
        "# HELP a x\n# TYPE a gauge\na 1\na 2\n",
    ],
)
def test_the_check_of_the_format_is_strict(text: str) -> None:
    with pytest.raises((AssertionError, KeyError)):
        parsed(text)
