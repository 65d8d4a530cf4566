"""Test that pages of other sites can do nothing in a browser: Host, Origin, the cookie."""

from __future__ import annotations

from http.cookies import SimpleCookie
from pathlib import Path

import aiohttp
import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from quarterdeck.server.auth import Auth, host_name
from quarterdeck.server.errors import ForeignHost, ForeignOrigin
from quarterdeck.server.tokens import Tokens
from tests.conformance.marks import case
from tests.support.http_api import RunningServer, serving

_FOREIGN = (
    "null",
    "",
    "http://evil.example",
    "https://evil.example",
    "http://evil.127.0.0.1:{port}",
    "http://127.0.0.1.evil.example:{port}",
    "http://127.0.0.1:{port}.evil.example",
    "http://127.0.0.1:1",
    "http://127.0.0.1",
    "http://localhost:{port}",
    "http://[::1]:{port}",
    "http://127.0.0.1.:{port}",
    "http://127.0.0.1:{port}/",
    "http://127.0.0.1:{port}@evil.example",
    "http://evil.example#127.0.0.1:{port}",
    "http://[::1",
    "ftp://127.0.0.1:{port}",
    "chrome-extension://127.0.0.1:{port}",
    "file://",
)
_CREATE = {"agent": "test"}


def _origins(house: RunningServer) -> list[str]:
    return [one.replace("{port}", str(house.port)) for one in _FOREIGN]


async def _upgraded(house: RunningServer, headers: dict[str, str]) -> int:
    """Try to open the WebSocket and return the status."""
    try:
        async with house.client.ws_connect(f"{house.address}/ws", headers=headers):
            return 101
    except aiohttp.WSServerHandshakeError as error:
        return error.status


class TestOrigin:
    @case("U-112")
    async def test_a_foreign_page_gets_nothing_over_http(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            for origin in _origins(house):
                read = await house.get("/sessions", headers={"Origin": origin})
                assert (read.status, read.code) == (403, "foreign_origin"), origin
                wrote = await house.post("/sessions", _CREATE, headers={"Origin": origin})
                assert (wrote.status, wrote.code) == (403, "foreign_origin"), origin
            assert (await house.get("/sessions")).json["sessions"] == []

    @case("U-112")
    async def test_a_foreign_page_gets_no_websocket(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            for origin in _origins(house):
                status = await _upgraded(house, {"Authorization": f"Bearer {house.token}", "Origin": origin})
                assert status == 403, origin

    async def test_our_own_page_does(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            for origin in (house.address, house.address.upper().replace("HTTP", "http")):
                assert (await house.get("/sessions", headers={"Origin": origin})).status == 200
                assert await _upgraded(house, {"Authorization": f"Bearer {house.token}", "Origin": origin}) == 101

    async def test_two_origins_are_none(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            own = f"Origin: {house.address}".encode()
            status = await house.asked_raw(
                b"GET /sessions HTTP/1.1",
                f"Host: {house.host}".encode(),
                f"Authorization: Bearer {house.token}".encode(),
                own,
                b"Origin: http://evil.example",
            )
            assert status == 403

    async def test_a_refused_page_is_told_no_cors_header(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            asked = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
            for method in ("OPTIONS", "GET", "POST"):
                answer = await house.ask(method, "/sessions", headers=asked)
                assert answer.status == 403
                assert not [name for name in answer.headers if name.lower().startswith("access-control-")]


class TestHost:
    async def test_a_name_that_was_pointed_here_is_refused(self, tmp_path: Path) -> None:
        """Refuse DNS rebinding: the browser uses the attacker's name, which resolves to our address."""
        async with serving(tmp_path) as house:
            for host in (
                "evil.example",
                f"evil.example:{house.port}",
                "127.0.0.1.evil.example",
                "evil.localhost",
                "0.0.0.0",
            ):
                answer = await house.get("/sessions", headers={"Host": host})
                assert (answer.status, answer.code) == (403, "foreign_host"), host
                same = {"Host": host, "Origin": f"http://{host}"}
                assert (await house.get("/healthz", headers=same)).status == 403
                assert await _upgraded(house, {**same, "Authorization": f"Bearer {house.token}"}) == 403

    async def test_no_host_or_two_are_refused(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            own, token = f"Host: {house.host}".encode(), f"Authorization: Bearer {house.token}".encode()
            assert await house.asked_raw(b"GET /sessions HTTP/1.1", own, token) == 200
            for start in (b"GET /sessions HTTP/1.1", b"GET /sessions HTTP/1.0"):
                assert await house.asked_raw(start, token) in (400, 403)
                assert await house.asked_raw(start, own, own, token) in (400, 403)
                assert await house.asked_raw(start, own, b"Host: evil.example", token) in (400, 403)
                assert await house.asked_raw(start, b"Host:", token) in (400, 403)

    async def test_the_name_in_a_whole_address_does_not_stand_for_the_host(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            whole = f"GET http://{house.host}/sessions HTTP/1.1".encode()
            token = f"Authorization: Bearer {house.token}".encode()
            assert await house.asked_raw(whole, b"Host: evil.example", token) == 403

    async def test_a_name_can_be_allowed(self, tmp_path: Path) -> None:
        async with serving(tmp_path, allowed=frozenset({"Deck.Example"})) as house:
            own = {"Host": f"deck.example:{house.port}", "Origin": f"http://deck.example:{house.port}"}
            assert (await house.get("/sessions", headers=own)).status == 200
            assert (await house.get("/sessions", headers={"Host": "www.deck.example"})).status == 403


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("localhost", "localhost"),
        ("LOCALHOST:4986", "localhost"),
        ("localhost.:4986", "localhost"),
        ("localhost..", "localhost."),
        ("127.0.0.1:4986", "127.0.0.1"),
        ("[::1]:4986", "::1"),
        ("[::1]", "::1"),
        ("[::1", None),
        ("[::1]x", None),
        ("localhost:port", None),
        ("localhost:", None),
        ("localhost:123456", None),
        ("localhost:٣", None),
        ("a b", None),
        ("localhost,evil", None),
        ("user@localhost", None),
        ("localhost/x", None),
        ("localhost\\x", None),
        ("", None),
        (".", None),
    ],
)
def test_the_name_in_a_host_header(header: str, name: str | None) -> None:
    assert host_name(header) == name


def _check(tmp_path: Path, host: str, origin: str) -> None:
    headers = CIMultiDict({"Host": host, "Origin": origin})
    Auth(Tokens(tmp_path), frozenset(), lambda: 0.0).check_origin(CIMultiDictProxy(headers))


def test_ipv6_pages_of_ours_are_known(tmp_path: Path) -> None:
    _check(tmp_path, "[::1]:4986", "http://[::1]:4986")
    with pytest.raises(ForeignHost):
        _check(tmp_path, "[::2]:4986", "http://[::2]:4986")
    with pytest.raises(ForeignOrigin):
        _check(tmp_path, "[::1]:4986", "http://[::1]:4987")


class TestCookie:
    async def _cookie(self, house: RunningServer) -> dict[str, str]:
        answer = await house.get(f"/login?token={house.token}", token=None, allow_redirects=False)
        assert answer.status == 303
        return {"Cookie": answer.headers["Set-Cookie"].split(";")[0]}

    async def test_the_login_moves_the_token_into_a_cookie_that_scripts_and_other_sites_do_not_get(
        self, tmp_path: Path
    ) -> None:
        async with serving(tmp_path) as house:
            answer = await house.get(f"/login?token={house.token}", token=None, allow_redirects=False)
            cookie = SimpleCookie(answer.headers["Set-Cookie"])["quarterdeck"]
            assert cookie["httponly"] is True
            assert cookie["samesite"] == "Strict"
            assert not cookie["domain"]
            assert answer.headers["Location"] == "/"
            assert answer.headers["Referrer-Policy"] == "no-referrer"
            assert answer.headers["Cache-Control"] == "no-store"
            assert house.token.encode() not in answer.body
            assert (await house.get("/sessions", token=None, headers=await self._cookie(house))).status == 200

    async def test_a_wrong_login_sets_nothing(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            for query in ("", "?token=", "?token=wrong", "?token=%00", "?token=%ff"):
                answer = await house.get(f"/login{query}", token=None, allow_redirects=False)
                assert (answer.status, answer.code) == (401, "no_token")
                assert "Set-Cookie" not in answer.headers

    async def test_a_form_of_another_site_does_nothing_with_the_cookie(self, tmp_path: Path) -> None:
        """Refuse CSRF: a form can send text/plain that is JSON, and the browser adds the cookie."""
        async with serving(tmp_path) as house:
            cookie = await self._cookie(house)
            for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/json"):
                for origin in (
                    {},
                    {"Origin": "null"},
                    {"Origin": "http://evil.example"},
                    {"Origin": "http://127.0.0.1:1"},
                ):
                    said = {**cookie, **origin, "Content-Type": kind}
                    answer = await house.ask("POST", "/sessions", None, said, data=b'{"agent": "test"}')
                    assert (answer.status, answer.code) == (403, "foreign_origin")
            assert (await house.get("/sessions")).json["sessions"] == []
            own = {**cookie, "Origin": house.address}
            assert (await house.post("/sessions", {"agent": "test"}, token=None, headers=own)).status == 201

    async def test_nothing_is_changed_by_a_get(self, tmp_path: Path) -> None:
        """Check that no GET changes anything, because a link or an image can send one with the cookie."""
        async with serving(tmp_path) as house:
            session = (await house.post("/sessions", {"agent": "test"})).json["id"]
            before = (await house.get(f"/sessions/{session}")).json
            cookie = await self._cookie(house)
            for route in house.server.routes:
                if route.method != "GET":
                    path = route.path.replace("{id}", session).replace("{item}", "x")
                    answer = await house.get(path, token=None, headers=cookie)
                    assert answer.status in (200, 404, 405), path
            assert (await house.get(f"/sessions/{session}")).json == before

    async def test_a_foreign_page_cannot_use_the_cookie_for_a_websocket(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            cookie = await self._cookie(house)
            assert await _upgraded(house, cookie) == 403
            for origin in _origins(house):
                assert await _upgraded(house, {**cookie, "Origin": origin}) == 403
            assert await _upgraded(house, {**cookie, "Origin": house.address}) == 101

    async def test_another_port_of_this_machine_loads_nothing_with_the_cookie(self, tmp_path: Path) -> None:
        """Refuse other ports: to a browser they are the same site, so it sends the cookie. Images have no Origin."""
        async with serving(tmp_path) as house:
            cookie = await self._cookie(house)
            for site in ("same-site", "cross-site"):
                for mode in ("no-cors", "cors", "websocket", ""):
                    said = {**cookie, "Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode}
                    answer = await house.get("/sessions", token=None, headers=said)
                    assert (answer.status, answer.code) == (403, "foreign_origin")
            link = {**cookie, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
            assert (await house.get("/", token=None, headers=link)).status == 200
            for site in ("same-origin", "none"):
                said = {**cookie, "Sec-Fetch-Site": site, "Sec-Fetch-Mode": "cors"}
                assert (await house.get("/sessions", token=None, headers=said)).status == 200

    async def test_a_header_counts_and_not_the_cookie_beside_it(self, tmp_path: Path) -> None:
        async with serving(tmp_path) as house:
            said = {**await self._cookie(house), "Authorization": "Basic abc"}
            assert (await house.get("/sessions", token=None, headers=said)).status == 401
