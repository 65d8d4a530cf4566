"""What kind of failure an error text means. Agents pass on what their provider said, each in its own words.

A status that the agent names as such decides. Else the text does: a number is taken for a status only where a status
stands (at the text's beginning, or after "status" or "HTTP"), because other three-digit numbers are line numbers, ports
and token counts; only 401 means the same everywhere. Then words decide, the narrower ones first.
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
#: Narrower words first; the first hit decides.
_BY_WORD: tuple[tuple[FailureKind, tuple[str, ...]], ...] = (
    ("usage_limit", ("usage limit", "usage_limit", "usagelimit")),
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
_NUMBER = re.compile(r"[45]\d\d")
#: A status where a status stands.
_STATUS = re.compile(
    r"^\W*(?:error:?\s*)?([45]\d\d)\b|\b(?:status(?:\s?code)?|http(?:/\d\S*)?)\W{1,3}([45]\d\d)\b", re.IGNORECASE
)
_UNAUTHORIZED = re.compile(r"(?<!\d)401(?!\d)")
AUTH_PREFIX = "Authentication failed: "


def failure_kind(message: str, status: int = 0) -> FailureKind:
    """The kind of failure behind an agent's error text."""
    head = message[:2000]
    status = status or status_in(head)
    lower = head.lower()
    if status == 429:
        return "usage_limit" if _has(lower, _BY_WORD[0][1]) else "rate_limit"
    if status == 404 and "model" in lower:
        return "invalid_model"
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return _by_words(lower, "api") if not status else _by_words(lower, "api", narrow=True)


def status_in(message: str) -> int:
    """The HTTP status that a text names; 0 when it names none."""
    if _NUMBER.search(message) is None:  # most texts name no number, and looking for where one stands is dear
        return 0
    found = _STATUS.search(message)
    if found is not None:
        return int(found.group(1) or found.group(2))
    return 401 if _UNAUTHORIZED.search(message) else 0


def told(kind: FailureKind, message: str) -> str:
    """The message as a person reads it: one about the login says so, once."""
    if kind == "auth" and not message.startswith(AUTH_PREFIX):
        return AUTH_PREFIX + message
    return message


def _by_words(lower: str, default: FailureKind, narrow: bool = False) -> FailureKind:
    """The kind by its words. Beside a status that says nothing special only the narrow words count."""
    for kind, words in _BY_WORD:
        if narrow and kind in ("auth", "network"):
            continue
        if _has(lower, words):
            return kind
    return default


def _has(text: str, words: tuple[str, ...]) -> bool:
    for word in words:
        if word in text:
            return True
    return False
