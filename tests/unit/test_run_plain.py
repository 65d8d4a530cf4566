"""Test sessions as plain text, and the meaning of a typed line."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from quarterdeck.cli.terminal.gate_prompt import GatePrompt, Reply, is_decision, prompt_for
from quarterdeck.cli.terminal.output import Output
from quarterdeck.cli.terminal.render import EventRenderer, preview
from quarterdeck.kernel.summary import GateShown


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def told(*events: dict[str, Any]) -> tuple[str, str]:
    """Render the events and return standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    plain = EventRenderer(Output(out, err))
    for event in events:
        plain.render(event)
    return out.getvalue(), err.getvalue()


def delta(text: str, message: str = "m") -> dict[str, Any]:
    return {"type": "message_delta", "message_id": message, "delta": text}


def complete(*texts: str, message: str = "m") -> dict[str, Any]:
    return {
        "type": "response_complete",
        "message_id": message,
        "blocks": [{"block": n, "text": text} for n, text in enumerate(texts)],
    }


class TestWords:
    def test_in_pieces_and_ended_by_a_line(self):
        assert told(delta("Hel"), delta("lo."), complete("Hello."))[0] == "Hello.\n"

    def test_pieces_that_were_dropped_are_made_up_for(self):
        assert told(complete("Hello."))[0] == "Hello.\n"
        assert told(delta("Hel"), complete("Hello."))[0] == "Hello.\n"

    def test_a_second_reply_begins_anew(self):
        assert told(complete("One."), delta("Two.", "n"), complete("Two.", message="n"))[0] == "One.\nTwo.\n"

    def test_of_sub_agents_only_what_they_do(self):
        path = {"agent_path": ["child"]}
        start = {"type": "tool_execution_start", "name": "ls", "call_id": "c", "args": {"path": "."}}
        assert told(delta("secret") | path, start | path) == ("", "  * ls .\n")


class TestSteps:
    def test_output_is_shown_up_to_a_limit(self):
        output = {"type": "tool_execution_output", "call_id": "c", "delta": "line\n" * 50}
        start = {"type": "tool_execution_start", "name": "shell", "call_id": "c", "args": {"command": "make\n all"}}
        end = {"type": "tool_execution_end", "name": "shell", "call_id": "c", "result": "line\n" * 50}
        lines = told(start, output, end)[1].splitlines()
        assert (lines[0], len(lines), lines[-1]) == ("* shell make all", 14, "  | …")

    @pytest.mark.parametrize(
        ("event", "line"),
        [
            ({"type": "tool_blocked", "name": "shell", "reason": "plan mode"}, "* shell was blocked: plan mode\n"),
            ({"type": "tool_skipped_for_steering", "name": "ls"}, "* ls was skipped because of your message\n"),
            ({"type": "retry", "delay_ms": 1500, "reason": "busy"}, "retrying in 1.5 s: busy\n"),
            ({"type": "turn_failed", "kind": "auth", "message": "no key"}, "failed (auth): no key\n"),
            ({"type": "notice", "text": "hm", "level": "warning"}, "warning: hm\n"),
            ({"type": "prompt_received", "text": "a\nb", "message_id": "p"}, "> a\n> b\n"),
            ({"type": "of_a_newer_release"}, ""),
        ],
    )
    def test_lines(self, event: dict[str, Any], line: str):
        assert told(event) == ("", line)

    def test_a_list_shows_what_changed(self):
        def todos(*states: str) -> dict[str, Any]:
            return {"type": "todo_change", "todos": [{"content": f"t{n}", "status": s} for n, s in enumerate(states)]}

        shown = told(todos("in_progress", "pending"), todos("completed", "pending"))[1]
        assert shown == "  [>] t0\n  [ ] t1\n  [x] t0\n"

    def test_arguments_in_one_line(self):
        assert preview({"path": "a.py", "content": "x"}) == "a.py"
        assert preview({"a": 1}) == '{"a": 1}'
        assert (preview({}), preview(None)) == ("", "")
        assert len(preview({"command": "x" * 500})) == 200


class TestPaper:
    def test_a_reply_after_reasoning_begins_a_line(self, tmp_path: Path):
        """This also holds if both go to one file and the reasoning didn't end its line."""
        with (tmp_path / "both").open("w+") as both:
            paper = Output(both, both)
            paper.aside("hm", "~ ")
            paper.reply("hello")
            both.seek(0)
            assert both.read() == "~ hm\nhello"

    def test_a_terminal_is_not_ruled_by_what_is_said(self):
        screen = Screen()
        Output(screen, screen).reply("\x1b[2Jhi\r\n\x07")
        assert screen.getvalue() == "\\x1b[2Jhi\n\\x07"

    def test_a_file_gets_every_byte(self):
        out = io.StringIO()
        Output(out, io.StringIO()).reply("\x1b[1mhi\r\n")
        assert out.getvalue() == "\x1b[1mhi\r\n"

    def test_what_comes_while_somebody_is_asked_begins_on_a_line_of_its_own(self):
        err = io.StringIO()
        paper = Output(io.StringIO(), err)
        paper.ask("yes? ")
        assert paper.is_asking
        paper.note("news")
        assert (err.getvalue(), paper.is_asking) == ("yes? \nnews\n", False)
        paper.ask("yes? ")
        paper.user_ended_line()
        paper.note("more")
        # The user's Enter has already ended the line on the terminal.
        assert err.getvalue().endswith("yes? more\n")


def gate(gate_id: str, kind: str, title: str, payload: dict[str, Any], options: Any = ()) -> GateShown:
    return GateShown(gate_id, kind, title, payload, options, 0, None, ())


def approval() -> GatePrompt:
    return prompt_for(gate("g1", "approval", "rm", {"tool": "shell"}))


class TestAnswers:
    @pytest.mark.parametrize(
        ("line", "verb", "more"),
        [
            ("y", "approve", {}),
            (" YES ", "approve", {}),
            ("a", "approve", {"always": "session"}),
            ("n", "reject", {"auto_resume": True}),
            ("no not today", "reject", {"auto_resume": True, "reason": "not today"}),
        ],
    )
    def test_an_approval(self, line: str, verb: str, more: dict[str, Any]):
        reply = approval().take(line)
        assert reply is not None
        assert (reply.verb, reply.arguments) == (verb, {"gate_id": "g1", **more})

    @pytest.mark.parametrize("line", ["", "yes please run it", "maybe", "always do"])
    def test_what_is_no_answer(self, line: str):
        assert approval().take(line) is None

    def test_a_number_is_an_option(self):
        options = [{"id": "red"}, {"id": "blue"}]
        shown = gate("g2", "question", "which", {"questions": []}, options)
        answers = [prompt_for(shown).take(line) for line in ("2", "green")]
        assert [reply.arguments["answer"] for reply in answers if isinstance(reply, Reply)] == ["blue", "green"]
        assert prompt_for(shown).take("  ") is None

    def test_several_questions_one_after_the_other(self):
        questions = [{"text": "which", "options": [{"id": "a"}]}, {"text": "how many"}]
        asked = prompt_for(gate("g3", "question", "x", {"questions": questions}))
        assert (asked.question, asked.take("1"), asked.is_partly_answered, asked.question) == (
            "which",
            None,
            True,
            "how many",
        )
        reply = asked.take("two")
        assert reply is not None
        assert reply.arguments == {"gate_id": "g3", "answer": ["a", "two"]}

    def test_a_dialog_that_is_confirmed(self):
        shown = gate("g4", "dialog", "sure", {"method": "confirm"})
        assert [prompt_for(shown).take(line) for line in ("y", "what")] == [
            ("respond", {"gate_id": "g4", "answer": True}),
            None,
        ]

    def test_how_it_is_done_without_a_terminal(self):
        assert "/sessions/s1/approve" in approval().http_instructions("s1")
        assert "/sessions/s1/respond" in GatePrompt("g1", "question").http_instructions("s1")

    def test_what_can_only_be_a_decision(self):
        assert [is_decision(line) for line in ("y", " No ", "always", "yes please", "")] == [
            True,
            True,
            True,
            False,
            False,
        ]
