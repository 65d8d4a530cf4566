"""Classify failures of model services, so the user knows what to do about each.

Pure: the current time is a parameter. Error messages never contain a key, even if the service quotes it.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast

import msgspec
from msgspec import Struct

from quarterdeck.engine.model import ModelError

_MESSAGE_LENGTH = 600
#: A longer wait isn't a rate limit to sit out, but a usage limit that the user has to decide about.
_LONGEST_WAIT_S = 600.0
#: Upper limit for times that services name, so that they can be stored.
_YEAR_S = 366 * 86_400.0

# How services say what went wrong. In _OVERFLOW, in this order: Anthropic, OpenAI, Gemini, vLLM and others that report
# counts, llama.cpp, Mistral, Groq, and services that only use a keyword.
_OVERFLOW = re.compile(
    r"prompt is too long|input length and `?max_tokens`? exceed|request_too_large"
    r"|context_length_exceeded|maximum context length|exceeds the context window|context window"
    r"|input token count.{0,40}exceeds|exceeds the maximum number of tokens"
    r"|maximum (input|model) length|longer than the maximum|max_new_tokens|inputs? tokens? \+"
    r"|exceed_context_size|exceeds the available context size"
    r"|too large for model with|reduce the length of (the|your) (messages|prompt|input)"
    r"|context[ _-](length|size|limit)|string_above_max_length|too many (input )?tokens in",
    re.IGNORECASE,
)
_KEY = re.compile(r"api[ _-]key[ _](not[ _]valid|invalid)|invalid[ _]api[ _]key|unauthenticated", re.IGNORECASE)
_PAYMENT = re.compile(
    r"credit balance|insufficient (credits?|balance)|billing_error|payment[ _]required|billing is not", re.IGNORECASE
)
_USAGE = re.compile(r"insufficient_quota|usage[ _]limit|perday|spend(ing)? limit", re.IGNORECASE)
_MODEL = re.compile(
    r"model_not_found|not a valid model|invalid model|(the )?model .{0,80}(does not exist|not found)|unknown model",
    re.IGNORECASE,
)
#: HTTP status for the types of errors that arrive inside a stream, where there is no status.
_STREAM_STATUSES = {
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "resource_exhausted": 429,
    "insufficient_quota": 429,
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    "invalid_argument": 400,
    "context_length_exceeded": 400,
    "overloaded_error": 529,
}
_REGAIN_ACCESS = re.compile(r"regain access on (\d{4}-\d\d-\d\d) at (\d\d:\d\d) UTC")
_TRY_AGAIN = re.compile(r"(?:try again|retry) in ((?:[\d.]+(?:ms|[hms]))+)")
_DURATION = re.compile(r"([\d.]+)(ms|h|m|s)")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class ReportedError(Struct, frozen=True):
    """An error as a service reported it, independent of the format."""

    status: int
    message: str = ""
    #: All machine-readable words: type, code, status, reasons in the details.
    codes: str = ""
    retry_after: float | None = None


class Service(Struct, frozen=True):
    """The service and model of a request, for error messages."""

    name: str
    model: str
    #: How to set a key for this service.
    key_hint: str
    #: Texts that must not appear in messages.
    secrets: tuple[str, ...] = ()

    def remove_secrets(self, text: str) -> str:
        """Replace keys in a text. Services quote them whole or abbreviated, so words that start or end alike go too."""
        for secret in self.secrets:
            text = text.replace(secret, "[key]")
            if len(secret) >= 8:
                start, end = re.escape(secret[:6]), re.escape(secret[-4:])
                text = re.sub(rf"\S*{start}\S*|\S*\*\S*{end}\S*", "[key]", text)
        return text


# ---------------------------------------------------------------------------------------------------------- parsing


def parse_error_response(status: int, body: bytes, headers: Mapping[str, str], now: float) -> ReportedError:
    """Read the error from a response: JSON in any of the known forms, or plain text."""
    error = _find_error(body)
    retry_after = _retry_after_of(headers, now)
    if error is None:
        text = body.decode("utf-8", "replace").strip()
        is_html = text[:1] == "<"
        return ReportedError(status, "" if is_html else text[:_MESSAGE_LENGTH], retry_after=retry_after)
    return _parse_error(status, error, retry_after)


def parse_stream_error(error: Mapping[str, Any]) -> ReportedError:
    """Read an error that arrived as an event of a stream."""
    reported = _parse_error(0, error, None)
    code = error.get("code")
    status = code if isinstance(code, int) else 0
    if not status:
        words = reported.codes.lower().split()
        status = next((_STREAM_STATUSES[word] for word in words if word in _STREAM_STATUSES), 500)
    return msgspec.structs.replace(reported, status=status)


def _find_error(body: bytes) -> dict[str, Any] | None:
    try:
        value: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    if isinstance(value, list) and value:
        value = cast("list[Any]", value)[0]
    if not isinstance(value, dict):
        return None
    whole = cast("dict[str, Any]", value)
    error = whole.get("error", whole)
    return cast("dict[str, Any] | None", error) if error is None or isinstance(error, dict) else {"message": error}


def _parse_error(status: int, error: Mapping[str, Any], retry_after: float | None) -> ReportedError:
    message = error.get("message") or error.get("detail") or error.get("error") or ""
    codes = [str(error[name]) for name in ("type", "code", "status") if error.get(name)]
    details: list[Any] = error.get("details") or [] if isinstance(error.get("details"), list) else []
    for item in details:
        if isinstance(item, dict):
            detail = cast("dict[str, Any]", item)
            codes += [str(detail[name]) for name in ("reason", "violations") if name in detail]
            if retry_after is None:
                retry_after = _parse_duration(str(detail.get("retryDelay", "")))
    text = message if isinstance(message, str) else msgspec.json.encode(message).decode()
    if retry_after is None and (match := _TRY_AGAIN.search(text)):
        retry_after = _parse_duration(match[1])
    return ReportedError(status, text[:_MESSAGE_LENGTH], " ".join(codes), retry_after)


# ------------------------------------------------------------------------------------------------ when to try again


def _retry_after_of(headers: Mapping[str, str], now: float) -> float | None:
    milliseconds = _parse_number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after", "")
    if not value:
        return None
    seconds = _parse_number(value)
    if seconds is not None:
        return seconds
    try:
        return max(parsedate_to_datetime(value).timestamp() - now, 0.0)
    except ValueError:
        return None


def _parse_number(text: str) -> float | None:
    try:
        return _clamp(float(text))
    except ValueError:
        return None


def _parse_duration(text: str) -> float | None:
    """Parse `36s`, `1m2.5s` or `120ms`."""
    parts = _DURATION.findall(text)
    try:
        return _clamp(sum(float(amount) * _UNIT_SECONDS[unit] for amount, unit in parts)) if parts else None
    except ValueError:
        return None


def _clamp(seconds: float) -> float | None:
    """Limit a time to what can be waited for and stored. Return None for infinity and NaN."""
    return min(max(seconds, 0.0), _YEAR_S) if math.isfinite(seconds) else None


def _resets_at(error: ReportedError, now: float) -> int | None:
    """Return when a limit is lifted, in milliseconds since the epoch, if the service said so."""
    if match := _REGAIN_ACCESS.search(error.message):
        with contextlib.suppress(ValueError):  # An impossible date.
            at = datetime.strptime(f"{match[1]} {match[2]}", "%Y-%m-%d %H:%M").replace(tzinfo=UTC)
            return int(at.timestamp() * 1000)
    return None if error.retry_after is None else int((now + error.retry_after) * 1000)


# ------------------------------------------------------------------------------------------------------ classifying


def classify_error(error: ReportedError, service: Service, now: float) -> ModelError:
    """Turn a reported error into one with a kind and a hint."""
    status, text = error.status, f"{error.codes} {error.message}"
    if status in (400, 413, 422, 500) and _OVERFLOW.search(text):
        return ModelError("overflow", _describe(error, service), "Compact the conversation, or start a new one.")
    if status == 401 or (status == 400 and _KEY.search(text)):
        return ModelError("auth", f"{service.name} rejected the key ({status})", service.key_hint)
    if status == 402 or _PAYMENT.search(text):
        hint = "Add credit or update the billing at the service, or switch to another model."
        return ModelError("payment", _describe(error, service), hint)
    if status == 403:
        hint = "Check that the key may use this model and that the service is available in your region."
        return ModelError("auth", _describe(error, service), hint)
    if status == 404 or (status == 400 and _MODEL.search(text)):
        hint = (
            f"Check the name of the model ({service.model!r}), whether the key may use it, and base_url if it is set."
        )
        return ModelError("invalid_model", _describe(error, service), hint)
    is_long_wait = status == 429 and (error.retry_after or 0) > _LONGEST_WAIT_S
    if is_long_wait or _USAGE.search(text):
        hint = "Wait until the limit is reset, raise it at the service, or switch to another model."
        return ModelError("usage_limit", _describe(error, service), hint, resets_at=_resets_at(error, now))
    return _classify_by_status(error, service, now)


def _classify_by_status(error: ReportedError, service: Service, now: float) -> ModelError:
    status, retry_after = error.status, error.retry_after
    if status == 429:
        hint = "The request is retried automatically. Run fewer agents at once, or switch to another model."
        resets_at = _resets_at(error, now) if retry_after is not None else None
        return ModelError(
            "rate_limit",
            _describe(error, service),
            hint,
            is_transient=True,
            retry_after=retry_after,
            resets_at=resets_at,
        )
    if status >= 500 or status in (408, 425):
        hint = "The service has a problem. The request is retried automatically."
        return ModelError("api", _describe(error, service), hint, is_transient=True, retry_after=retry_after)
    if 300 <= status < 400:
        return ModelError("api", f"{service.name} redirects to another address ({status})", "Check base_url.")
    return ModelError("api", _describe(error, service), "The service rejects this request. Retrying won't help.")


def _describe(error: ReportedError, service: Service) -> str:
    message = service.remove_secrets(" ".join(error.message.split())) or "no message"
    return f"{service.name} failed ({error.status}): {message}"


def unreachable_error(service: Service, reason: str, *, is_transient: bool = True) -> ModelError:
    """Return the error for a service that can't be reached."""
    hint = "Check the network and base_url. The request is retried automatically."
    if not is_transient:
        hint = "Check base_url, and whether this machine trusts the server's certificate."
    return ModelError(
        "network", f"can't reach {service.name}: {service.remove_secrets(reason)}", hint, is_transient=is_transient
    )


def interrupted_error(service: Service, reason: str = "the reply was cut off") -> ModelError:
    """Return the error for a reply that broke off or makes no sense."""
    hint = "Check the network and any proxy. The request is retried automatically."
    return ModelError("network", f"{service.name}: {reason}", hint, is_transient=True)
