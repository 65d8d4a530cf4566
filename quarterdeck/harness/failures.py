"""Classify a failure from the error text of an agent. Agents pass on what their provider said, each in its own words.

If the agent names an HTTP status, that decides. Otherwise the text does. A number in it counts as a status only at the
start of the text or after "status" or "HTTP", because other three-digit numbers are line numbers, ports and token counts;
only 401 means the same everywhere. Words are looked at last, narrower ones first.
"""

from __future__ import annotations

import re

from quarterdeck.events import FailureKind

_BY_STATUS: dict[int, FailureKind] = {
    401: "auth",
    402: "payment",
    403: "auth",
    408: "network",
    429: "rate_limit",
}
_USAGE_LIMIT_WORDS = ("usage limit", "usage_limit", "usagelimit")
#: The first kind whose word occurs decides.
_BY_WORD: tuple[tuple[FailureKind, tuple[str, ...]], ...] = (
    ("usage_limit", _USAGE_LIMIT_WORDS),
    ("payment", ("payment required", "insufficient credit", "insufficient_quota", "insufficient balance", "billing")),
    ("rate_limit", ("rate limit", "rate_limit", "ratelimit", "too many requests")),
    ("auth", ("unauthorized", "unauthenticated", "authentication", "invalid api key", "invalid_api_key", "api key")),
    ("invalid_model", ("model not found", "model_not_found", "unknown model", "invalid model", "no such model")),
    (
        "network",
        (
            "econnrefused",
            "econnreset",
            "enotfound",
            "etimedout",
            "epipe",
            "fetch failed",
            "network error",
            "connection error",
            "socket hang up",
            "connection refused",
            "timed out",
        ),
    ),
)
#: Kinds whose words are too common to count when the text has a status of its own.
_WIDE_KINDS = ("auth", "network")
_STATUS = re.compile(
    r"^\W*(?:error:?\s*)?([45]\d\d)\b|\b(?:status(?:\s?code)?|http(?:/\d\S*)?)\W{1,3}([45]\d\d)\b", re.IGNORECASE
)
_UNAUTHORIZED = re.compile(r"(?<!\d)401(?!\d)")
AUTH_PREFIX = "Authentication failed: "


def failure_kind(message: str, status: int = 0) -> FailureKind:
    """Return the kind of failure that an error text describes. `status` is the HTTP status if the agent names it."""
    head = message[:2000]
    status = status or status_in(head)
    lower = head.lower()
    if status == 429:
        return "usage_limit" if any(word in lower for word in _USAGE_LIMIT_WORDS) else "rate_limit"
    if status == 404 and "model" in lower:
        return "invalid_model"
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    for kind, words in _BY_WORD:
        if any(word in lower for word in words) and not (status and kind in _WIDE_KINDS):
            return kind
    return "api"


def status_in(message: str) -> int:
    """Return the HTTP status that a text names, or 0."""
    match = _STATUS.search(message)
    if match is not None:
        return int(match.group(1) or match.group(2))
    return 401 if _UNAUTHORIZED.search(message) else 0


def failure_message(kind: FailureKind, message: str) -> str:
    """Return the message for people. One about the login begins with "Authentication failed"."""
    if kind == "auth" and not message.startswith(AUTH_PREFIX):
        return AUTH_PREFIX + message
    return message
