"""Codes that stand for a token, once and not for long."""

from __future__ import annotations

from quarterdeck.server.codes import LIFE_S, Codes


class Now:
    at = 0.0

    def __call__(self) -> float:
        return self.at


def test_once():
    codes = Codes(Now())
    code = codes.made("token")
    assert "token" not in code
    assert [codes.taken(code), codes.taken(code), codes.taken("")] == ["token", "", ""]


def test_not_for_long():
    now = Now()
    codes = Codes(now)
    early, late = codes.made("a"), codes.made("b")
    now.at = LIFE_S - 0.1
    assert codes.taken(early) == "a"
    now.at = LIFE_S
    assert codes.taken(late) == ""


def test_they_do_not_pile_up():
    codes = Codes(Now())
    made = [codes.made(str(number)) for number in range(150)]
    assert [bool(codes.taken(code)) for code in made] == [False] * 50 + [True] * 100
