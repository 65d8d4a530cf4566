"""Test MemoryFlush: facts are written once, and failures never stop the compaction."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarterdeck.engine.model import ModelError
from quarterdeck.engine.plugins.base import InvalidPluginOption
from quarterdeck.engine.plugins.memory import MemoryFlush, digest, parse_facts
from quarterdeck.events import Body, MemoryFlushed, Notice
from tests.support.small_context import SmallContext, ask, assistant, events_of, others_of, restarted, user

SAID = [user("we use ruff"), assistant("noted")]


def flushed(plugin: Any, context: SmallContext) -> list[Body]:
    answers = ask(plugin, "before_compact", SAID, context)
    assert others_of(answers) == []
    return events_of(answers)


def test_facts_are_written_and_told(tmp_path: Path) -> None:
    context = SmallContext(tmp_path, replies=[json.dumps(["ruff formats", "tests are in tests/"])])
    assert flushed(MemoryFlush(model="test:cheap"), context) == [
        MemoryFlushed(facts=("ruff formats", "tests are in tests/"), count=2)
    ]
    assert (context.cwd / "MEMORY.md").read_text() == "# Memory\n\n- ruff formats\n- tests are in tests/\n"
    [(prompt, _, model)] = context.requests
    assert "user: we use ruff" in prompt
    assert model == "test:cheap"


def test_each_fact_is_written_once(tmp_path: Path) -> None:
    context = SmallContext(tmp_path, replies=['["a fact", "A  FACT", "b"]', '["a fact", "c"]', '["b"]'])
    plugin = MemoryFlush()
    assert flushed(plugin, context) == [MemoryFlushed(facts=("a fact", "b"), count=2)]
    assert flushed(plugin, context) == [MemoryFlushed(facts=("c",), count=1)]
    assert flushed(plugin, context) == []
    assert (context.cwd / "MEMORY.md").read_text() == "# Memory\n\n- a fact\n- b\n- c\n"


def test_what_another_session_or_a_person_wrote_is_not_written_again(tmp_path: Path) -> None:
    context = SmallContext(tmp_path, replies=['["a", "b"]'])
    (context.cwd / "MEMORY.md").write_text("Notes\n* A")
    flushed(MemoryFlush(), context)
    assert (context.cwd / "MEMORY.md").read_text() == "Notes\n* A\n- b\n"


def test_what_a_person_removed_is_not_written_again_after_a_restart_too(tmp_path: Path) -> None:
    context = SmallContext(tmp_path, replies=['["a", "b"]', '["a", "c"]'])
    plugin = MemoryFlush()
    flushed(plugin, context)
    (context.cwd / "MEMORY.md").write_text("- b\n")
    flushed(restarted(plugin, MemoryFlush()), context)
    assert (context.cwd / "MEMORY.md").read_text() == "- b\n- c\n"


def test_at_most_ten_at_a_time(tmp_path: Path) -> None:
    context = SmallContext(tmp_path, replies=[json.dumps([f"fact {number}" for number in range(30)])])
    [event] = flushed(MemoryFlush(), context)
    assert isinstance(event, MemoryFlushed)
    assert event.count == len(event.facts) == 10
    with pytest.raises(InvalidPluginOption):
        MemoryFlush(most=11)


@pytest.mark.parametrize(
    "reply",
    [
        ModelError("network", "no route"),
        RuntimeError("extractor"),
        "I cannot do that.",
        "",
        '{"facts": "x"}',
    ],
)
def test_an_extractor_that_fails_is_a_warning(tmp_path: Path, reply: Any) -> None:
    context = SmallContext(tmp_path, replies=[reply])
    [told] = flushed(MemoryFlush(), context)
    assert isinstance(told, Notice)
    assert told.level == "warning"
    assert not (context.cwd / "MEMORY.md").exists()


def test_an_extractor_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    context = SmallContext(tmp_path)

    async def never(prompt: str, system: str = "", model: str = "") -> str:
        await asyncio.Event().wait()
        return ""

    context.ask_model = never  # type: ignore[method-assign]
    [told] = flushed(MemoryFlush(patience=0.01), context)
    assert isinstance(told, Notice)
    assert "TimeoutError" in told.text


def test_a_file_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    context = SmallContext(tmp_path, replies=['["a"]'])
    (context.cwd / "MEMORY.md").mkdir()
    [told] = flushed(MemoryFlush(), context)
    assert isinstance(told, Notice)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    context = SmallContext(tmp_path, replies=['["a"]'])
    target = tmp_path / "elsewhere"
    target.write_text("mine\n")
    (context.cwd / "MEMORY.md").symlink_to(target)
    [told] = flushed(MemoryFlush(), context)
    assert isinstance(told, Notice)
    assert target.read_text() == "mine\n"


def test_no_facts_are_no_event(tmp_path: Path) -> None:
    context = SmallContext(tmp_path, replies=["[]"])
    assert flushed(MemoryFlush(), context) == []
    assert ask(MemoryFlush(), "before_compact", [], context) == []


class TestWhatTheModelAnswers:
    @pytest.mark.parametrize(
        ("answer", "facts"),
        [
            ('["a", "b"]', ["a", "b"]),
            ('Here:\n```json\n["a"]\n```', ["a"]),
            ("- a\n* b", ["a", "b"]),
            ('["a\\nb", 5, "", "  "]', ["a b"]),
            ("- see [1]\n- b", ["see [1]", "b"]),
        ],
    )
    def test_a_list_is_read(self, answer: str, facts: list[str]) -> None:
        assert parse_facts(answer) == facts

    @given(st.lists(st.text(max_size=600)))
    def test_each_fact_is_one_line_of_bounded_length(self, facts: list[str]) -> None:
        found = parse_facts(json.dumps(facts))
        assert all(fact and "\n" not in fact and len(fact) <= 500 for fact in found)

    @given(st.text())
    def test_a_hash_does_not_depend_on_spaces_and_capitals(self, fact: str) -> None:
        assert digest(f"  {fact}\n") == digest(fact)
        assert len(digest(fact)) == 64
