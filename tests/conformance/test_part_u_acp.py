"""Show part U for ACP agents: empty answers, errors that end nothing, refusals, several sessions."""

from __future__ import annotations

from pathlib import Path

import pytest

from quarterdeck import events as ev
from quarterdeck.harness.acp.prompts import NO_TEXT
from quarterdeck.harness.registry import translator
from quarterdeck.harness.replay import Replay, end_json, row_json
from tests.conformance.marks import case
from tests.support.acp_session import AcpTalk

TRACES = Path(__file__).parent / "traces"
#: Folder → the agent's own name. Each recording is also replayed as `acp`.
AGENTS = {"gemini": "gemini", "opencode": "opencode", "kilo": "kilo", "cline/2.18.0-acp": "cline"}
RECORDINGS = [(path, agent) for folder, agent in AGENTS.items() for path in sorted((TRACES / folder).rglob("*.jsonl"))]


@case("U-074")
def test_an_answer_without_a_text_has_a_line_that_says_so() -> None:
    talk = AcpTalk("cline").prompted("hello?")
    talk.ends("end_turn")
    assert [(entry.kind, entry.text) for entry in talk.entries] == [("user", "hello?"), ("system", NO_TEXT)]
    assert talk.phase == "completed"


@case("U-078")
def test_an_error_without_an_id_and_a_process_that_cannot_start_leave_the_session_active() -> None:
    talk = AcpTalk().prompted()
    talk.answer(None, error={"code": -32603, "message": "something broke"})
    assert (talk.state.lifecycle.value, talk.phase, talk.activity) == ("active", "streaming", "active/thinking")
    assert talk.words("error") == ["something broke"]
    talk.says("Hello")
    talk.ends()
    assert talk.phase == "completed"
    talk.translator.tracker.record_process_error("no such program")  # type: ignore[attr-defined]
    talk.feed("stderr", "")
    assert (talk.state.lifecycle.value, talk.phase, talk.activity) == ("active", "error", "exited")


@case("U-085")
@pytest.mark.parametrize("src", ["stdin", "stdout", "stderr"])
def test_what_is_no_json_is_ignored(src: str) -> None:
    talk = AcpTalk().prompted()
    assert talk.feed(src, {"raw": "{not json"}) == []
    assert (talk.phase, talk.translator.unknown) == ("streaming", 0)


@case("U-087")
@pytest.mark.parametrize("agent", ["acp", "gemini", "opencode", "kilo", "cline"])
def test_a_refusal_leads_through_tool_use_and_the_failed_call_to_thinking(agent: str) -> None:
    talk = AcpTalk(agent).prompted()
    if agent != "gemini":
        talk.calls()
    talk.asks()
    talk.choose(0, "no")
    if agent != "gemini":
        talk.call_is("failed")
    assert talk.activities()[-3:] == ["active/waiting_for_permission", "active/tool_use", "active/thinking"]
    assert [phase for _, phase in talk.tools()] == ["error"]
    ended = [body for body in talk.bodies if isinstance(body, ev.ToolBlocked | ev.ToolExecutionEnd)]
    assert len(ended) == 1


@case("U-021")
def test_two_sessions_on_one_connection_do_not_mix() -> None:
    talk = AcpTalk("gemini").opened()
    talk.answer(talk.request("session/new"), {"sessionId": "s2"})
    first, second = talk.prompt("mine"), talk.prompt("yours", "s2")
    for piece in ("a", "b"):
        talk.says(piece)
        talk.says(piece.upper(), session="s2")
        talk.thinks("no", session="s2")
        talk.calls(f"c{piece}", "in_progress", session="s2")
    talk.ends("end_turn", second)
    assert talk.phase == "streaming"
    talk.ends("end_turn", first)
    assert (talk.phase, talk.words(), talk.tools()) == ("completed", ["mine", "ab"], [])


@pytest.mark.parametrize(("recording", "agent"), RECORDINGS, ids=lambda value: str(value).rpartition("traces/")[2])
def test_an_agent_that_is_not_named_is_recognised_and_shows_the_same(recording: Path, agent: str) -> None:
    lines = recording.read_bytes().splitlines(keepends=True)
    shown = []
    for name in (agent, "acp"):
        run = Replay(translator(name), name)
        shown.append(([row_json(row) for row in run.rows(lines)], end_json(run)))
    assert shown[0] == shown[1]
