"""How a refusal looks, in openapi.json."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

_WHAT = {
    400: "Something in the request is wrong; the message names the field",
    401: "No token, or a wrong one",
    403: "A foreign Host or Origin, or a token that may only look",
    404: "There is no such thing",
    408: "The body did not come in time",
    409: "Not allowed in this state; the message names the state and the hint what is allowed",
    413: "Too large",
    429: "Too many wrong tokens",
    503: "The log or git cannot be used now, or the server is closing",
}


class Problem(Struct, frozen=True):
    """What went wrong and what to do next."""

    code: str
    message: str
    hint: str


class ErrorBody(Struct, frozen=True):
    """Every error looks like this."""

    error: Problem


#: What a request with a body may be answered with besides.
WITH_A_BODY = (408, 413)


def refusals(*more: int) -> dict[str, Any]:
    """What every route may answer with, and these."""
    refused = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}}
    statuses = sorted({400, 401, 403, 429, 503, *more})
    return {str(status): {"description": _WHAT[status], "content": refused} for status in statuses}
