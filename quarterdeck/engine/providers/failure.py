"""What goes wrong between us and a model, as a person can act on it. Pure: the time comes in, and no key goes out."""

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

_LONGEST_MESSAGE = 600
#: Whoever is told to wait longer than this does not wait: a person decides what to do.
_LONGEST_PAUSE_S = 600.0
#: A service that says more than this means "not any more".
_YEAR_S = 366 * 86_400.0

#: How services say that the conversation is too long for the model, in the order: Anthropic, OpenAI, Gemini, vLLM and others
#: that count, llama.cpp, Mistral, Groq, and those that only have a word for it.
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
#: Types of errors that come in the middle of a stream, where there is no status → the status they would have had.
_STATUSES = {
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
_REGAIN = re.compile(r"regain access on (\d{4}-\d\d-\d\d) at (\d\d:\d\d) UTC")
_TRY_AGAIN = re.compile(r"(?:try again|retry) in ((?:[\d.]+(?:ms|[hms]))+)")
_SPAN = re.compile(r"([\d.]+)(ms|h|m|s)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class Told(Struct, frozen=True):
    """What a service said of a failure, whatever its form."""

    status: int
    message: str = ""
    #: Everything that is a word for programs: type, code, status, reasons of details.
    words: str = ""
    retry_after: float | None = None


class Service(Struct, frozen=True):
    """Who is asked: its name, the model's, and how a key for it is given. `secrets` never get out."""

    name: str
    model: str
    key_hint: str
    secrets: tuple[str, ...] = ()

    def scrubbed(self, text: str) -> str:
        """Services quote keys, whole or in part; what begins or ends like one is left out."""
        for secret in self.secrets:
            text = text.replace(secret, "[key]")
            if len(secret) >= 8:
                begins, ends = re.escape(secret[:6]), re.escape(secret[-4:])
                text = re.sub(rf"\S*{begins}\S*|\S*\*\S*{ends}\S*", "[key]", text)
        return text


def told(status: int, body: bytes, headers: Mapping[str, str], now: float) -> Told:
    """The error in a body: JSON of any of the forms that are about, or just text."""
    error = _error(body)
    if error is None:
        text = body.decode("utf-8", "replace").strip()
        is_page = text[:1] == "<"
        return Told(status, "" if is_page else text[:_LONGEST_MESSAGE], retry_after=_of_headers(headers, now))
    return _read(status, error, _of_headers(headers, now))


def told_in_stream(error: Mapping[str, Any]) -> Told:
    """The same for an error that came as an event."""
    found = _read(0, error, None)
    code = error.get("code")
    status = code if isinstance(code, int) else 0
    words = found.words.lower().split()
    return msgspec.structs.replace(found, status=status or next((_STATUSES[w] for w in words if w in _STATUSES), 500))


def _error(body: bytes) -> dict[str, Any] | None:
    try:
        found: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    if isinstance(found, list) and found:
        found = cast("list[Any]", found)[0]
    if not isinstance(found, dict):
        return None
    whole = cast("dict[str, Any]", found)
    error = whole.get("error", whole)
    return cast("dict[str, Any] | None", error) if error is None or isinstance(error, dict) else {"message": error}


def _read(status: int, error: Mapping[str, Any], retry_after: float | None) -> Told:
    message = error.get("message") or error.get("detail") or error.get("error") or ""
    words = [str(error[name]) for name in ("type", "code", "status") if error.get(name)]
    details: list[Any] = error.get("details") or [] if isinstance(error.get("details"), list) else []
    for one in details:
        if isinstance(one, dict):
            detail = cast("dict[str, Any]", one)
            words += [str(detail[name]) for name in ("reason", "violations") if name in detail]
            retry_after = retry_after if retry_after is not None else _span(str(detail.get("retryDelay", "")))
    text = message if isinstance(message, str) else msgspec.json.encode(message).decode()
    if retry_after is None and (again := _TRY_AGAIN.search(text)):
        retry_after = _span(again[1])
    return Told(status, text[:_LONGEST_MESSAGE], " ".join(words), retry_after)


# --- when to try again


def _of_headers(headers: Mapping[str, str], now: float) -> float | None:
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    wait = headers.get("retry-after", "")
    if not wait:
        return None
    seconds = _number(wait)
    if seconds is not None:
        return seconds
    try:
        return max(parsedate_to_datetime(wait).timestamp() - now, 0.0)
    except ValueError:
        return None


def _number(text: str) -> float | None:
    try:
        return _bounded(float(text))
    except ValueError:
        return None


def _bounded(seconds: float) -> float | None:
    """A time that can be waited for and written down; what is no number is none."""
    return min(max(seconds, 0.0), _YEAR_S) if math.isfinite(seconds) else None


def _span(text: str) -> float | None:
    """`36s`, `1m2.5s`, `120ms`."""
    found = _SPAN.findall(text)
    try:
        return _bounded(sum(float(amount) * _SECONDS[unit] for amount, unit in found)) if found else None
    except ValueError:
        return None


def _resets_at(told: Told, now: float) -> int | None:
    """Milliseconds since the epoch, if the service said so."""
    if found := _REGAIN.search(told.message):
        with contextlib.suppress(ValueError):  # a date that there is not
            at = datetime.strptime(f"{found[1]} {found[2]}", "%Y-%m-%d %H:%M").replace(tzinfo=UTC)
            return int(at.timestamp() * 1000)
    return None if told.retry_after is None else int((now + told.retry_after) * 1000)


# --- what it means


def refused(told: Told, service: Service, now: float) -> ModelError:
    """What a person can do about it, by what the service said."""
    status, text = told.status, f"{told.words} {told.message}"
    if status in (400, 413, 422, 500) and _OVERFLOW.search(text):
        return ModelError("overflow", _says(told, service), "Compact the conversation, or begin a new one.")
    if status == 401 or (status == 400 and _KEY.search(text)):
        return ModelError("auth", f"{service.name} did not accept the key ({status})", service.key_hint)
    if status == 402 or _PAYMENT.search(text):
        hint = "Add credit or mend the billing at the service, or switch to another model."
        return ModelError("payment", _says(told, service), hint)
    if status == 403:
        hint = "The key may lack the right to this model, or the service may not be offered where you are."
        return ModelError("auth", _says(told, service), hint)
    if status == 404 or (status == 400 and _MODEL.search(text)):
        hint = f"Is there a model {service.model!r}, and may this key use it? If base_url is set, is it right?"
        return ModelError("invalid_model", _says(told, service), hint)
    is_long = status == 429 and (told.retry_after or 0) > _LONGEST_PAUSE_S
    if is_long or _USAGE.search(text):
        hint = "Wait until the limit is reset, raise it at the service, or switch to another model."
        return ModelError("usage_limit", _says(told, service), hint, resets_at=_resets_at(told, now))
    return _passing_or_not(told, service, now)


def _passing_or_not(told: Told, service: Service, now: float) -> ModelError:
    status, again = told.status, told.retry_after
    if status == 429:
        hint = "It is tried again by itself; fewer agents at once, or another model, help."
        resets = _resets_at(told, now) if again is not None else None
        return ModelError(
            "rate_limit", _says(told, service), hint, is_transient=True, retry_after=again, resets_at=resets
        )
    if status >= 500 or status in (408, 425):
        hint = "The service has trouble of its own; it is tried again by itself."
        return ModelError("api", _says(told, service), hint, is_transient=True, retry_after=again)
    if 300 <= status < 400:
        return ModelError("api", f"{service.name} sends us elsewhere ({status})", "Is base_url right?")
    return ModelError("api", _says(told, service), "The request itself was refused; another try would be, too.")


def _says(told: Told, service: Service) -> str:
    said = service.scrubbed(" ".join(told.message.split())) or "nothing more"
    return f"{service.name} says ({told.status}): {said}"


def unreachable(service: Service, why: str, *, is_transient: bool = True) -> ModelError:
    """No answer at all."""
    hint = "Is this machine online, and is base_url right? It is tried again by itself."
    if not is_transient:
        hint = "Is base_url right, and does this machine trust the server's certificate?"
    return ModelError(
        "network", f"{service.name} cannot be reached: {service.scrubbed(why)}", hint, is_transient=is_transient
    )


def cut(service: Service, why: str = "the stream ended in the middle") -> ModelError:
    """An answer that broke off, or that is none."""
    hint = "The connection or something on its way is bad; it is tried again by itself."
    return ModelError("network", f"{service.name}: {why}", hint, is_transient=True)
