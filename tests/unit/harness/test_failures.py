"""Test which kind of failure an error text describes."""

from __future__ import annotations

import pytest

from quarterdeck.harness.failures import AUTH_PREFIX, failure_kind, failure_message, status_in


@pytest.mark.parametrize(
    ("message", "status", "kind"),
    [
        ("400 bad request", 0, "api"),
        ("anything", 401, "auth"),
        ("it says 401 somewhere", 0, "auth"),
        ("forbidden", 403, "auth"),
        ("402: pay first", 0, "payment"),
        ("404: no such model", 0, "invalid_model"),
        ("404: no such page", 0, "api"),
        ("HTTP 429", 0, "rate_limit"),
        ("status code: 429, usage limit reached", 0, "usage_limit"),
        ("Error: 500 fake", 0, "api"),
        ("500 because of billing", 0, "payment"),
        ("500 authentication service is down", 0, "api"),
        ("Too many requests", 0, "rate_limit"),
        ("Your usage limit is reached", 0, "usage_limit"),
        ("Invalid API key", 0, "auth"),
        ("Unknown model x", 0, "invalid_model"),
        ("fetch failed", 0, "network"),
        ("request timed out", 408, "network"),
        ("whatever", 0, "api"),
        ("", 0, "api"),
    ],
)
def test_kinds(message: str, status: int, kind: str) -> None:
    assert failure_kind(message, status) == kind


@pytest.mark.parametrize("text", ["error in line 402 of x", "port 500", "used 429 tokens", "14012", "4015", "x401x2"])
def test_other_numbers_are_no_status(text: str) -> None:
    assert status_in(text) == (401 if "x401" in text else 0)


def test_a_failed_login_says_so_once() -> None:
    once = failure_message("auth", "401 no")
    assert once == AUTH_PREFIX + "401 no"
    assert failure_message("auth", once) == once
    assert failure_message("api", "500") == "500"
