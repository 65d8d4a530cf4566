"""Test ACP prompts and turns: how they end, what waits, and loading an earlier conversation."""

from __future__ import annotations

from typing import Any

import pytest

from quarterdeck import events as ev
from quarterdeck.harness.acp.profile import CLINE, GEMINI, KILO, NEUTRAL, OPENCODE, recognise
from quarterdeck.harness.acp.prompts import NO_TEXT, error_kind, usage_of
from quarterdeck.harness.base import Signal
from quarterdeck.harness.registry import translator
from tests.support.acp_session import AcpTalk


class TestWhoIsIt:
    @pytest.mark.parametrize(
        ("answer", "profile"),
        [
            ({"agentInfo": {"name": "gemini-cli"}}, GEMINI),
            ({"agentInfo": {"name": "OpenCode"}}, OPENCODE),
            ({"agentInfo": {"name": "Kilo"}}, KILO),
            ({"agentInfo": {"name": "cline"}}, CLINE),
            ({"authMethods": [{"id": "x"}, {"id": "kilo-login"}]}, KILO),
            ({"agentInfo": {"name": "somebody"}, "authMethods": [{"id": "kilo-login"}]}, None),
            ({"agentInfo": [], "authMethods": "x"}, None),
        ],
    )
    def test_initialize_tells(self, answer: Any, profile: Any) -> None:
        assert recognise(answer) == profile

    def test_a_stranger_is_served_as_the_protocol_says(self) -> None:
        talk = AcpTalk().opened()
        assert talk.translator.session.profile is NEUTRAL  # type: ignore[attr-defined]
        assert talk.state.profile.agent_version == "9"

    def test_ready_tells_session_model_mode_effort_and_what_the_agent_can(self) -> None:
        talk = AcpTalk("opencode").started()
        capabilities = {"loadSession": True, "promptCapabilities": {"image": True}, "sessionCapabilities": {"fork": {}}}
        talk.answer(talk.request("initialize"), {"agentInfo": {"name": "OpenCode"}, "agentCapabilities": capabilities})
        options = [
            {"id": "model", "category": "model", "currentValue": "a/b"},
            {"id": "effort", "category": "thought_level", "currentValue": "low"},
            {"id": "mode", "category": "mode", "currentValue": "plan"},
        ]
        talk.answer(talk.request("session/new"), {"sessionId": "s1", "configOptions": options})
        profile = talk.state.profile
        assert (profile.native_session_id, profile.model, profile.mode, profile.thinking) == (
            "s1",
            "a/b",
            "plan",
            "low",
        )
        assert profile.capabilities == ("fork", "image", "load")
        assert profile.resumable
        assert "steer" not in profile.capabilities

    def test_cline_is_not_resumable_though_it_says_so(self) -> None:
        talk = AcpTalk("cline").started()
        answer = {"agentInfo": {"name": "cline"}, "agentCapabilities": {"loadSession": True}}
        talk.answer(talk.request("initialize"), answer)
        talk.answer(talk.request("session/new"), {"sessionId": "s1"})
        assert not talk.state.profile.resumable

    def test_old_kilo_speaks_say_and_ask(self) -> None:
        old = translator("kilo")
        old.feed(Signal("proc", {"event": "start"}), 0.0)
        line = {"timestamp": 1, "source": "extension", "type": "say", "say": "api_req_started", "metadata": {}}
        events = old.feed(Signal("stdout", line), 0.1)
        assert old.unknown == 0
        assert any(isinstance(body, ev.AgentStart) for body in events)


class TestHowATurnEnds:
    @pytest.mark.parametrize(
        ("stop", "phase", "kind"),
        [
            ("end_turn", "completed", None),
            ("something_new", "completed", None),
            ("cancelled", "stopped", None),
            ("refusal", "error", "api"),
            ("max_tokens", "error", "api"),
            ("max_turn_requests", "error", "turn_limit"),
            ("error", "error", "internal"),
        ],
    )
    def test_by_the_stop_reason(self, stop: str, phase: str, kind: str | None) -> None:
        talk = AcpTalk().prompted()
        talk.says("Well")
        talk.ends(stop)
        assert (talk.phase, talk.activity, talk.state.run.value) == (phase, "idle", "idle")
        assert [body.kind for body in talk.events_of(ev.TurnFailed)] == ([kind] if kind else [])

    @pytest.mark.parametrize(
        ("error", "kind"),
        [
            ({"code": 401, "message": "no"}, "auth"),
            ({"code": 402, "message": "no"}, "payment"),
            ({"code": 404, "message": "model x is not there"}, "invalid_model"),
            ({"code": 429, "message": "Rate limit exceeded. Try again later."}, "rate_limit"),
            ({"code": 429, "message": "usage limit reached"}, "usage_limit"),
            ({"code": 400, "message": "bad"}, "api"),
            ({"code": 503, "message": "busy"}, "api"),
            ({"code": 500, "message": '{"error":{"code":500,"message":"fake"}}'}, "api"),
            ({"code": -32000, "message": "Authentication required"}, "auth"),
            ({"code": -32603, "message": "Internal error: bad request", "data": {"errorName": "APIError"}}, "api"),
            ({"code": -32603, "message": "Internal error: invalid api key", "data": {"errorName": "APIError"}}, "auth"),
            ({"code": -32603, "message": "x", "data": {"errorName": "ProviderModelNotFoundError"}}, "invalid_model"),
            ({"code": -32603, "message": "x", "data": {"errorName": "APIError", "statusCode": 402}}, "payment"),
            ({"code": -32603, "message": "fetch failed"}, "network"),
            ({"code": -32602, "message": "Session not found: s9"}, "internal"),
            ({"code": -32603, "message": "Internal error"}, "internal"),
            ({"code": "x", "message": 7, "data": []}, "internal"),
        ],
    )
    def test_by_the_error(self, error: Any, kind: str) -> None:
        talk = AcpTalk().prompted()
        talk.answer(talk.last_prompt, error=error)
        assert talk.phase == "error"
        assert talk.state.error is not None
        assert talk.state.error.kind == kind
        assert error_kind(error) == kind

    def test_the_providers_own_words_are_read_out_of_what_gemini_passes_on(self) -> None:
        talk = AcpTalk("gemini").prompted()
        body = '{"error":{"code":401,"message":"invalid api key","status":"X"}}'
        talk.answer(talk.last_prompt, error={"code": 401, "message": body})
        assert talk.words("error") == ["invalid api key"]

    def test_an_abort_that_is_told_as_an_error_is_an_abort(self) -> None:
        talk = AcpTalk("opencode").prompted()
        talk.answer(talk.last_prompt, error={"code": -32603, "data": {"errorName": "MessageAbortedError"}})
        assert talk.phase == "stopped"

    @pytest.mark.parametrize("agent", ["acp", "gemini", "opencode", "kilo", "cline"])
    @pytest.mark.parametrize("stop", ["end_turn", "cancelled", "max_tokens"])
    def test_after_our_cancel_every_end_is_an_abort(self, agent: str, stop: str) -> None:
        talk = AcpTalk(agent).prompted()
        talk.says("Well")
        talk.cancel()
        assert talk.phase == "streaming"
        talk.ends(stop)
        assert (talk.phase, talk.activity) == ("stopped", "idle")

    def test_after_our_cancel_an_error_is_an_abort_too(self) -> None:
        talk = AcpTalk().prompted()
        talk.cancel()
        talk.answer(talk.last_prompt, error={"code": 500, "message": "aborted"})
        assert talk.phase == "stopped"
        assert not talk.events_of(ev.TurnFailed)

    def test_cancel_request_stops_the_prompt_that_it_names(self) -> None:
        talk = AcpTalk().prompted()
        talk.notify("$/cancel_request", requestId=talk.last_prompt)
        talk.ends("end_turn")
        assert talk.phase == "stopped"

    def test_a_cancel_of_another_session_or_without_a_prompt_stops_nothing(self) -> None:
        talk = AcpTalk().prompted()
        talk.cancel("other")
        talk.ends("end_turn")
        assert talk.phase == "completed"
        talk.cancel()
        assert talk.phase == "completed"

    def test_a_turn_without_a_text_says_so(self) -> None:
        talk = AcpTalk().prompted()
        talk.thinks("Hm")
        talk.ends()
        assert talk.words("system") == [NO_TEXT]
        talk.prompt("again")
        talk.says("Here")
        talk.ends()
        assert talk.words("system") == [NO_TEXT]

    def test_silence_is_work_and_not_an_end(self) -> None:
        talk = AcpTalk().prompted()
        assert talk.wait(3600) == []
        assert (talk.phase, talk.activity, talk.state.signal.value) == ("streaming", "active/thinking", "live")

    def test_what_is_left_open_in_a_failed_turn_is_over(self) -> None:
        talk = AcpTalk().prompted()
        talk.calls("c1", "in_progress")
        talk.calls("c2")
        talk.answer(talk.last_prompt, error={"code": 500, "message": "no"})
        assert talk.tools() == [("bash", "error"), ("bash", "error")]
        assert talk.state.background == ()

    def test_a_call_that_runs_at_the_end_goes_on_in_the_background(self) -> None:
        talk = AcpTalk().prompted()
        talk.says("Started")
        talk.calls("c1", "in_progress")
        talk.ends()
        assert (talk.phase, len(talk.state.background)) == ("completed", 1)
        talk.call_is("completed", content=[{"type": "content", "content": {"type": "text", "text": "out"}}])
        assert (talk.phase, talk.state.background, talk.tools()) == ("completed", (), [("bash", "done")])


class TestASecondPrompt:
    def test_gemini_drops_the_first_for_it(self) -> None:
        talk = AcpTalk("gemini").prompted("one")
        talk.says("On")
        first, second = talk.last_prompt, talk.prompt("two")
        assert [waiting.text for waiting in talk.state.queue] == ["two"]
        talk.ends("end_turn", first)
        assert (talk.phase, talk.state.queue) == ("streaming", ())
        talk.says("Two")
        talk.ends("end_turn", second)
        assert talk.words() == ["one", "On", "two", "Two"]
        assert len(talk.events_of(ev.AgentAbort)) == len(talk.events_of(ev.AgentEnd)) == 1

    def test_kilo_answers_one_after_the_other(self) -> None:
        talk = AcpTalk("kilo").prompted("one")
        first, second = talk.last_prompt, talk.prompt("two")
        talk.says("One", messageId="m1")
        talk.ends("end_turn", first)
        assert talk.phase == "streaming"
        talk.says("Two", messageId="m2")
        talk.ends("end_turn", second)
        assert (talk.phase, talk.words()) == ("completed", ["one", "One", "two", "Two"])
        assert len(talk.events_of(ev.AgentEnd)) == 2

    def test_opencode_answers_both_at_the_end(self) -> None:
        talk = AcpTalk("opencode").prompted("one")
        first, second = talk.last_prompt, talk.prompt("two")
        talk.thinks("Hm", messageId="p1")
        talk.says("Let me see", messageId="m1")
        talk.calls()
        talk.call_is("in_progress")
        talk.call_is("completed")
        talk.says("One", messageId="m2")
        assert len(talk.state.queue) == 1
        talk.says("Two", messageId="m3")
        assert talk.state.queue == ()
        talk.ends("end_turn", first, usage={"inputTokens": 5, "outputTokens": 1, "totalTokens": 6})
        assert talk.phase == "streaming"
        talk.ends("end_turn", second, usage={"inputTokens": 7, "outputTokens": 1, "totalTokens": 8})
        assert talk.phase == "completed"
        assert talk.words("user", "assistant") == ["one", "Let me see", "One", "two", "Two"]
        assert talk.state.usage.total.input == 12

    def test_opencode_whose_second_answer_has_no_text_of_its_own(self) -> None:
        talk = AcpTalk("opencode").prompted("one")
        first, second = talk.last_prompt, talk.prompt("two")
        talk.says("One", messageId="m1")
        talk.ends("end_turn", first)
        assert (talk.phase, talk.state.queue) == ("streaming", ())
        talk.ends("end_turn", second)
        assert (talk.phase, talk.words("user")) == ("completed", ["one", "two"])

    def test_cline_refuses_it_and_goes_on(self) -> None:
        talk = AcpTalk("cline").prompted("one")
        first, second = talk.last_prompt, talk.prompt("two")
        details = {"details": "Session s1 is already processing a prompt"}
        talk.answer(second, error={"code": -32603, "message": "Internal error", "data": details})
        assert (talk.phase, talk.state.queue) == ("streaming", ())
        assert talk.words("error") == ["Prompt refused: Session s1 is already processing a prompt"]
        talk.says("One")
        talk.ends("end_turn", first)
        assert talk.phase == "completed"

    def test_a_cancel_stops_what_waits_too(self) -> None:
        talk = AcpTalk("kilo").prompted("one")
        first, second = talk.last_prompt, talk.prompt("two")
        talk.cancel()
        talk.ends("cancelled", first)
        assert talk.phase == "stopped"
        talk.ends("cancelled", second)
        assert (talk.phase, talk.words("user")) == ("stopped", ["one", "two"])

    def test_an_agent_that_serves_a_cancelled_prompt_all_the_same_is_seen_at_it(self) -> None:
        talk = AcpTalk("kilo").prompted("one")
        first, second = talk.last_prompt, talk.prompt("two")
        talk.cancel()
        talk.ends("cancelled", first)
        talk.says("Two")
        assert talk.phase == "streaming"
        talk.ends("end_turn", second)
        assert talk.phase == "stopped"

    def test_the_same_text_twice_is_two_entries_and_a_given_id_is_kept(self) -> None:
        talk = AcpTalk().opened()
        for key in ("m-7", ""):
            talk.prompt("hi", messageId=key)
            talk.says("ho")
            talk.ends()
        assert talk.words("user") == ["hi", "hi"]
        assert talk.entries[0].id == "m-7"


class TestAnEarlierConversation:
    def replay(self, talk: AcpTalk) -> None:
        talk.user_said("<session_context> secret", messageId="")
        talk.user_said("do it", messageId="u1")
        talk.thinks("Hm", messageId="p1")
        talk.says("Doing ", messageId="m1")
        talk.says("it", messageId="m1")
        talk.calls("c1", "completed", rawInput={"command": "ls"})

    def test_before_the_answer_it_is_history_and_no_work(self) -> None:
        talk = AcpTalk("opencode").started()
        key = talk.request("session/load", {"sessionId": "s1"})
        self.replay(talk)
        assert (talk.phase, talk.activity) == ("idle", "initialized")
        talk.answer(key, {})
        assert (talk.phase, talk.activity, talk.state.process.value) == ("idle", "idle", "up")
        assert talk.words("user", "thinking", "assistant")[1:] == ["do it", "Hm", "Doing it"]
        assert talk.tools() == [("bash", "done")]
        assert not talk.events_of(ev.AgentStart)
        assert talk.events_of(ev.TurnRestored)[0].finished

    def test_after_the_answer_until_our_next_prompt_it_is_swallowed(self) -> None:
        talk = AcpTalk().started()
        talk.answer(talk.request("session/load", {"sessionId": "s1"}), {})
        self.replay(talk)
        assert (talk.phase, talk.words()) == ("idle", [])
        talk.prompt("new")
        talk.says("Hello")
        talk.ends()
        assert (talk.phase, talk.words()) == ("completed", ["new", "Hello"])

    def test_geminis_history_comes_after_the_answer_and_ends_with_its_commands(self) -> None:
        talk = AcpTalk("gemini").started()
        talk.answer(talk.request("session/load", {"sessionId": "s1"}), {})
        self.replay(talk)
        talk.prompt("new")
        talk.says("[old] that is all", messageId="m9")
        assert talk.phase == "idle"
        talk.update("available_commands_update", availableCommands=[])
        assert talk.phase == "streaming"
        talk.says("Hello")
        talk.ends()
        assert talk.words("user", "assistant") == ["do it", "Doing it", "[old] that is all", "new", "Hello"]
        assert len(talk.events_of(ev.AgentStart)) == 1

    def test_without_that_sign_silence_ends_it(self) -> None:
        talk = AcpTalk("gemini").started()
        talk.answer(talk.request("session/load", {"sessionId": "s1"}), {})
        talk.user_said("do it")
        talk.wait(0.2)
        assert not talk.events_of(ev.TurnRestored)
        talk.wait(0.2)
        assert not talk.events_of(ev.TurnRestored)[0].finished
        assert talk.translator.deadline() is None

    def test_silence_also_lets_a_held_prompt_go(self) -> None:
        talk = AcpTalk("gemini").started()
        talk.answer(talk.request("session/load", {"sessionId": "s1"}), {})
        talk.prompt("new")
        assert talk.phase == "idle"
        talk.wait(0.3)
        assert (talk.phase, talk.words()) == ("streaming", ["new"])

    @pytest.mark.parametrize("sign", ["call", "question", "answer"])
    def test_what_can_only_be_new_ends_it(self, sign: str) -> None:
        talk = AcpTalk("gemini").started()
        talk.answer(talk.request("session/load", {"sessionId": "s1"}), {})
        talk.user_said("do it")
        talk.prompt("new")
        if sign == "call":
            talk.calls("ls__1", "in_progress")
        elif sign == "question":
            talk.asks()
        else:
            talk.ends()
        expected = {"call": "streaming", "question": "waiting_approval", "answer": "completed"}
        assert (talk.phase, talk.words("user")) == (expected[sign], ["do it", "new"])

    def test_a_resume_without_history_leaves_the_loading_phase(self) -> None:
        talk = AcpTalk("opencode").started()
        talk.answer(talk.request("session/resume", {"sessionId": "s1"}), {})
        assert [body.finished for body in talk.events_of(ev.TurnRestored)] == [False]
        assert talk.state.profile.native_session_id == "s1"

    def test_a_fork_that_is_our_session_brings_its_history_under_its_new_name(self) -> None:
        talk = AcpTalk("opencode").started()
        key = talk.request("session/fork", {"sessionId": "s0"})
        talk.user_said("do it", session="s1", messageId="u1")
        talk.answer(key, {"sessionId": "s1"})
        assert (talk.words("user"), talk.state.profile.native_session_id) == (["do it"], "s1")

    def test_a_fork_of_our_session_is_another_one(self) -> None:
        talk = AcpTalk("opencode").prompted()
        key = talk.request("session/fork", {"sessionId": "s1"})
        talk.user_said("do it", session="s2", messageId="u1")
        talk.says("no", session="s2")
        talk.answer(key, {"sessionId": "s2"})
        talk.asks(3, session="s2")
        assert (talk.phase, talk.words("user", "assistant")) == ("streaming", ["hi"])

    @pytest.mark.parametrize("method", ["session/new", "session/load", "session/resume", "initialize"])
    def test_what_cannot_be_opened_is_told(self, method: str) -> None:
        talk = AcpTalk().started()
        talk.answer(talk.request(method, {"sessionId": "s1"}), error={"code": -32000, "message": "Log in first"})
        assert talk.words("error") == ["Log in first"]
        assert talk.events_of(ev.TurnFailed)[0].kind == "auth"
        talk.answer(talk.request("session/new"), {"sessionId": "s2"})
        talk.prompt("hi", "s2")
        assert talk.phase == "streaming"

    def test_loading_our_session_again_tells_nothing_twice(self) -> None:
        talk = AcpTalk("opencode").prompted()
        talk.says("Hello")
        talk.ends()
        key = talk.request("session/load", {"sessionId": "s1"})
        self.replay(talk)
        talk.answer(key, {})
        assert (talk.phase, talk.words()) == ("completed", ["hi", "Hello"])

    def test_a_load_that_fails_in_the_middle_of_a_turn_does_not_end_it(self) -> None:
        talk = AcpTalk("opencode").prompted()
        key = talk.request("session/load", {"sessionId": "s1"})
        talk.says("Hello")
        talk.answer(key, error={"code": -32603, "message": "busy"})
        assert (talk.phase, talk.words("assistant", "error")) == ("streaming", ["Hello", "busy"])

    def test_closing_our_session_ends_the_agent_and_not_the_process(self) -> None:
        talk = AcpTalk("opencode").prompted()
        talk.answer(talk.request("session/close", {"sessionId": "s1"}), {})
        assert (talk.activity, talk.state.process.value, talk.phase) == ("exited", "up", "stopped")


class TestUsage:
    @pytest.mark.parametrize(
        ("usage", "buckets"),
        [
            ({"inputTokens": 100, "outputTokens": 20, "totalTokens": 120}, (100, 20, 0, 0)),
            # OpenCode counts cached tokens beside the input, Gemini as part of it. The same holds for thoughts.
            (
                {"inputTokens": 40, "outputTokens": 20, "thoughtTokens": 5, "cachedReadTokens": 60, "totalTokens": 125},
                (40, 25, 60, 0),
            ),
            (
                {
                    "inputTokens": 100,
                    "outputTokens": 20,
                    "thoughtTokens": 5,
                    "cachedReadTokens": 60,
                    "totalTokens": 125,
                },
                (40, 25, 60, 0),
            ),
            ({"inputTokens": 100, "outputTokens": 25, "thoughtTokens": 5, "totalTokens": 125}, (100, 25, 0, 0)),
            ({"inputTokens": 9, "outputTokens": 1, "cachedReadTokens": 4, "cachedWriteTokens": 2}, (9, 1, 4, 2)),
        ],
    )
    def test_buckets_never_overlap(self, usage: Any, buckets: tuple[int, ...]) -> None:
        (item,) = usage_of({"usage": usage})
        tokens = item.tokens
        assert (tokens.input, tokens.output, tokens.cache_read, tokens.cache_write) == buckets

    def test_geminis_quota_is_told_by_model(self) -> None:
        talk = AcpTalk("gemini").prompted()
        count = {"input_tokens": 10, "output_tokens": 2}
        usage = [{"model": "a", "token_count": count}, {"model": "b", "token_count": count}]
        talk.ends(_meta={"quota": {"token_count": {"input_tokens": 20, "output_tokens": 4}, "model_usage": usage}})
        total = talk.state.usage
        assert (total.total.input, total.total.output) == (20, 4)
        assert [share.name for share in total.by_model] == ["a", "b"]

    def test_cost_is_the_difference_to_the_prompt_before_and_zero_is_unknown(self) -> None:
        talk = AcpTalk("opencode").opened()
        for amount in (0, 0.5, 0.75):
            talk.prompt()
            talk.update("usage_update", used=900, size=1000, cost={"amount": amount, "currency": "USD"})
            talk.says("Hello")
            talk.ends(usage={"inputTokens": 1, "outputTokens": 1, "totalTokens": 2})
        assert [body.tokens.cost_usd for body in talk.events_of(ev.Usage)] == [None, 0.5, 0.25]
        assert talk.state.profile.context is not None
        assert (talk.state.profile.context.tokens, talk.state.profile.context.limit) == (900, 1000)

    def test_a_zero_context_is_what_is_said_after_a_failure(self) -> None:
        talk = AcpTalk("opencode").prompted()
        talk.update("usage_update", used=0, size=1000, cost={"amount": "x"})
        assert talk.state.profile.context is None


class TestTheProcess:
    def test_an_exit_closes_the_turn_and_a_late_answer_changes_nothing(self) -> None:
        talk = AcpTalk().prompted()
        talk.asks()
        talk.feed("proc", {"event": "exit", "code": -15})
        assert (talk.phase, talk.activity, len(talk.state.gates.open)) == ("stopped", "exited", 0)
        talk.choose(0, "yes")
        talk.says("Hello?")
        talk.ends()
        assert (talk.phase, talk.activity) == ("stopped", "exited")

    def test_a_prompt_to_a_process_that_is_gone_is_not_taken(self) -> None:
        talk = AcpTalk().opened()
        talk.feed("proc", {"event": "exit", "code": 0})
        talk.prompt()
        assert (talk.activity, talk.words("user")) == ("exited", [])

    def test_a_closed_stdin_is_our_stop(self) -> None:
        talk = AcpTalk().prompted()
        talk.feed("proc", {"event": "stdin_closed"})
        talk.feed("proc", {"event": "exit", "code": 0})
        assert talk.phase == "stopped"

    def test_the_next_process_begins_with_nothing_of_the_last(self) -> None:
        talk = AcpTalk().prompted()
        talk.calls("c1", "in_progress")
        talk.feed("proc", {"event": "exit", "code": 1})
        assert talk.phase == "error"
        talk._ids = 0
        talk.opened("s2")
        talk.says("late", session="s1")
        assert talk.state.process.value == "up"
        talk.prompt("again", "s2")
        talk.says("Hello", session="s2")
        talk.ends()
        assert (talk.phase, talk.words("user", "assistant")) == ("completed", ["hi", "again", "Hello"])

    def test_the_end_of_the_source_is_not_an_end_of_work(self) -> None:
        talk = AcpTalk().prompted()
        talk.over()
        assert (talk.phase, talk.state.signal.value) == ("streaming", "lost")

    def test_the_end_of_the_source_lets_a_held_prompt_be_seen(self) -> None:
        talk = AcpTalk("gemini").started()
        talk.answer(talk.request("session/load", {"sessionId": "s1"}), {})
        talk.prompt("new")
        talk.over()
        assert talk.words("user") == ["new"]


class TestARestartInTheMiddle:
    def test_the_prompt_that_is_out_is_ended_by_its_answer(self) -> None:
        talk = AcpTalk().prompted()
        talk.says("Hel")
        talk.restarted()
        talk.says("lo")
        talk.ends("end_turn", 77)
        assert (talk.phase, talk.words("assistant")) == ("completed", ["Hel", "lo"])

    def test_the_question_that_is_open_is_closed_by_its_answer(self) -> None:
        talk = AcpTalk().prompted()
        talk.calls()
        talk.asks(4)
        talk.restarted()
        talk.choose(4, "yes")
        assert (talk.phase, talk.activity) == ("streaming", "active/tool_use")
        talk.call_is("completed")
        talk.ends("end_turn", 1)
        assert (talk.phase, talk.tools()) == ("completed", [("bash", "done")])

    def test_ids_do_not_come_again(self) -> None:
        talk = AcpTalk().prompted("one")
        talk.says("One")
        talk.ends()
        talk.restarted()
        talk.prompt("two")
        talk.says("Two")
        talk.ends()
        assert talk.words() == ["one", "One", "two", "Two"]

    def test_an_idle_session_stays_idle_whatever_is_said_late(self) -> None:
        talk = AcpTalk().opened()
        talk.restarted()
        talk.says("by the way")
        assert (talk.phase, talk.activity, talk.words()) == ("idle", "idle", ["by the way"])


class TestWithoutOurOwnWords:
    def test_the_agents_words_alone_show_its_turns(self) -> None:
        talk = AcpTalk("gemini")
        talk.feed("proc", {"event": "start"})
        talk.answer(1, {"protocolVersion": 1, "agentInfo": {"name": "gemini-cli", "version": "7"}})
        talk.answer(2, {"sessionId": "s1"})
        assert (talk.state.profile.native_session_id, talk.state.profile.agent_version) == ("s1", "7")
        talk.says("Hello")
        assert talk.phase == "streaming"
        talk.ends("end_turn", 3)
        talk.says("Again")
        talk.answer(4, error={"code": 500, "message": "no"})
        assert (talk.phase, talk.words("assistant")) == ("error", ["Hello", "Again"])
