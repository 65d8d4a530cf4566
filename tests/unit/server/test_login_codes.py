"""Test one-time codes for a browser's login."""

from __future__ import annotations

from quarterdeck.server.auth import LoginCodes


class Now:
    at = 0.0

    def __call__(self) -> float:
        return self.at


def test_once():
    codes = LoginCodes(Now())
    code = codes.create("token")
    assert "token" not in code
    assert [codes.redeem(code), codes.redeem(code), codes.redeem("")] == ["token", "", ""]


def test_not_for_long():
    now = Now()
    codes = LoginCodes(now)
    early, late = codes.create("a"), codes.create("b")
    now.at = LoginCodes.LIFETIME_S - 0.1
    assert codes.redeem(early) == "a"
    now.at = LoginCodes.LIFETIME_S
    assert codes.redeem(late) == ""


def test_they_do_not_pile_up():
    codes = LoginCodes(Now())
    made = [codes.create(str(number)) for number in range(150)]
    assert [bool(codes.redeem(code)) for code in made] == [False] * 50 + [True] * 100
