"""Commands to a session: the turn, its gates, its life."""

from __future__ import annotations

from typing import Any, Literal

from quarterdeck.kernel.command_results import Decided, Done, Dropped, Status
from quarterdeck.server.route import Call, Keyed, Table, Text, Words

TABLE = Table()
_USUAL = (404, 409)


class Abort(Keyed, frozen=True, kw_only=True):
    """`clear_queue` drops what waits and gives the texts back."""

    kill_tools: Literal["killable", "all", "none"] = "killable"
    clear_queue: bool = False
    reason: Text | None = None


@TABLE.add("POST", "/sessions/{id}/abort", "Ends the turn", body=Abort, answer=Dropped, errors=_USUAL)
async def abort(call: Call) -> Dropped:
    body: Abort = call.body
    return await call.session.abort(
        kill_tools=body.kill_tools, clear_queue=body.clear_queue, reason=body.reason, client_id=call.client_id
    )


class Approve(Keyed, frozen=True, kw_only=True):
    """Yes to an approval; `always` writes a rule."""

    gate_id: str
    always: Literal["session", "repo", "user"] | None = None
    auto_resume: bool = True


@TABLE.add(
    "POST",
    "/sessions/{id}/approve",
    "Approves what is asked",
    body=Approve,
    answer=Decided,
    errors=_USUAL,
    example={"gate_id": "g7"},
)
async def approve(call: Call) -> Decided:
    body: Approve = call.body
    return await call.session.approve(
        body.gate_id, always=body.always, auto_resume=body.auto_resume, client_id=call.client_id
    )


class Reject(Keyed, frozen=True, kw_only=True):
    """No to an approval."""

    gate_id: str
    reason: Text = ""
    auto_resume: bool = False


@TABLE.add(
    "POST",
    "/sessions/{id}/reject",
    "Rejects what is asked",
    body=Reject,
    answer=Decided,
    errors=_USUAL,
    example={"gate_id": "g7", "reason": "Not in this folder"},
)
async def reject(call: Call) -> Decided:
    body: Reject = call.body
    return await call.session.reject(
        body.gate_id, reason=body.reason, auto_resume=body.auto_resume, client_id=call.client_id
    )


class Respond(Keyed, frozen=True, kw_only=True):
    """`answer` is a text, an option's id, or a list of them for each question."""

    gate_id: str
    answer: Any


@TABLE.add(
    "POST",
    "/sessions/{id}/respond",
    "Answers a question or a dialog",
    body=Respond,
    answer=Decided,
    errors=_USUAL,
    example={"gate_id": "g8", "answer": "Yes, both"},
)
async def respond(call: Call) -> Decided:
    return await call.session.respond(call.body.gate_id, call.body.answer, client_id=call.client_id)


@TABLE.add("POST", "/sessions/{id}/retry", "Tries a failed turn again", body=Keyed, answer=Done, errors=_USUAL)
async def retry(call: Call) -> Done:
    return await call.session.retry(client_id=call.client_id)


@TABLE.add("POST", "/sessions/{id}/resume", "Resumes a session", body=Keyed, answer=Status, errors=_USUAL)
async def resume(call: Call) -> Status:
    return await call.session.resume(client_id=call.client_id)


@TABLE.add("POST", "/sessions/{id}/cancel", "Ends a session and archives it", body=Keyed, answer=Status, errors=_USUAL)
async def cancel(call: Call) -> Status:
    return await call.session.cancel(client_id=call.client_id)


@TABLE.add("POST", "/sessions/{id}/archive", "Archives a session", body=Keyed, answer=Status, errors=_USUAL)
async def archive(call: Call) -> Status:
    return await call.session.archive(client_id=call.client_id)


class SwitchModel(Keyed, frozen=True, kw_only=True):
    """Another model from the next turn on."""

    model: Words


@TABLE.add(
    "POST",
    "/sessions/{id}/switch_model",
    "Switches the model",
    body=SwitchModel,
    answer=Done,
    errors=_USUAL,
    example={"model": "opus"},
)
async def switch_model(call: Call) -> Done:
    return await call.session.switch_model(call.body.model, client_id=call.client_id)


@TABLE.add("POST", "/sessions/{id}/compact", "Shortens the conversation", body=Keyed, answer=Done, errors=_USUAL)
async def compact(call: Call) -> Done:
    return await call.session.compact(client_id=call.client_id)
