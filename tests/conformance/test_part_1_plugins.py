"""Show seed 001's shipped plugins, with real agents and a scripted model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quarterdeck.engine.factory import resume
from quarterdeck.engine.model import ModelError
from quarterdeck.engine.plugins import (
    HOOKS,
    AutoCheckpoint,
    ContentPolicy,
    Emit,
    HumanApproval,
    Intervene,
    LargeResultOffload,
    LoopDetection,
    MemoryFlush,
    Planning,
    Plugin,
    SecurityGuard,
    default_plugins,
)
from quarterdeck.engine.tools import builtin_tools
from quarterdeck.engine.tools.base import Tool, ToolContext
from quarterdeck.events import PluginEvent
from quarterdeck.log.memory import MemoryLog
from tests.conformance.marks import case
from tests.support.engine import Heard, Script, calls, judged, opened, text, tool

LIST = "- [ ] look\n- [ ] change"


@pytest.fixture(autouse=True)
def lawful() -> Iterator[None]:
    with judged() as broken:
        yield
    assert broken == []


class Shell:
    """A shell tool that records commands instead of running them."""

    def __init__(self, **options: Any) -> None:
        self.ran: list[str] = []
        self.tool: Tool = tool("shell", self._run, writes=True, **options)

    def _run(self, args: dict[str, Any], hands: ToolContext) -> str:
        self.ran.append(args["command"])
        return f"ran {args['command']}"


def shell_call(call_id: str, command: str) -> tuple[str, str, str]:
    return (call_id, "shell", json.dumps({"command": command}))


class TestApprovals:
    @case("1-037", "U-053")
    async def test_a_dangerous_call_is_held_and_the_agent_is_idle(self, tmp_path: Path) -> None:
        shell, reads = Shell(), tool("read_file")
        script = Script(calls(("c0", "read_file", '{"path": "a"}'), shell_call("c1", "make")), text("done"))
        plugins = [HumanApproval()]
        async with opened(script, tools=[shell.tool, reads], plugins=plugins, cwd=tmp_path) as agent:
            heard = Heard(agent)
            await agent.prompt("build it")
            await heard.until("approval_required")
            await heard.until("tool_execution_end")
            assert agent.status().state == "idle"
            assert shell.ran == []
            assert len(agent.status().approvals) == 1
            assert (await agent.prompt("and then?")).disposition == "queued"
            assert heard.of("agent_end") == []
            gate = heard.one("approval_required").gate
            assert gate.deadline - gate.requested_at == 120_000
            assert [body.name for body in heard.bodies("tool_execution_end")] == ["read_file"]

    @case("U-053")
    async def test_a_time_limit_of_0_is_none(self, tmp_path: Path) -> None:
        script = Script(calls(shell_call("c1", "make")))
        plugins = [HumanApproval(timeout=0)]
        async with opened(script, tools=[Shell().tool], plugins=plugins, cwd=tmp_path) as agent:
            heard = Heard(agent)
            await agent.prompt("build it")
            assert (await heard.until("approval_required")).gate.deadline is None

    @case("1-089")
    async def test_the_approval_says_what_is_asked(self, tmp_path: Path) -> None:
        script = Script(calls(shell_call("c1", "make")))
        opening = opened(script, tools=[Shell().tool], plugins=[HumanApproval()], cwd=tmp_path, session_id="s1")
        async with opening as agent:
            heard = Heard(agent)
            await agent.prompt("build it")
            await heard.until("approval_required")
            [event] = heard.of("approval_required")
            gate = event.body.gate
            assert event.session_id == "s1"
            assert gate.gate_id == agent.status().approvals[0]
            assert (gate.tool, gate.args, gate.call_id) == ("shell", {"command": "make"}, "c1")
            assert gate.hint == "Calls of shell require approval."
            assert gate.requested_at <= event.at
            assert [one.id for one in gate.options] == ["approve_once", "approve_always", "reject_once"]

    @case("1-090")
    async def test_approved(self, tmp_path: Path) -> None:
        shell = Shell()
        script = Script(calls(shell_call("c1", "make")), text("built"))
        async with opened(script, tools=[shell.tool], plugins=[HumanApproval()], cwd=tmp_path) as agent:
            heard = Heard(agent)
            await agent.prompt("build it")
            gate = (await heard.until("approval_required")).gate
            await agent.approve(gate.gate_id, option="approve_once")
            assert await agent.collect_reply() == "built"
            resolved = heard.one("approval_resolved")
            assert (resolved.status, resolved.gate) == ("approved", gate)
            assert shell.ran == ["make"]
            assert heard.of("tool_approved_always") == []

    @case("1-091")
    async def test_rejected(self, tmp_path: Path) -> None:
        shell = Shell()
        script = Script(calls(shell_call("c1", "make")), text("then not"))
        async with opened(script, tools=[shell.tool], plugins=[HumanApproval()], cwd=tmp_path) as agent:
            heard = Heard(agent)
            await agent.prompt("build it")
            gate = (await heard.until("approval_required")).gate
            await agent.reject(gate.gate_id, auto_resume=True, reason="not now")
            assert await agent.collect_reply() == "then not"
            resolved = heard.one("approval_resolved")
            assert (resolved.status, resolved.gate) == ("rejected", gate)
            assert shell.ran == []
            assert "not now" in agent.messages[-2].parts[0].text

    @case("1-092")
    async def test_nobody_answers_in_time(self, tmp_path: Path) -> None:
        shell = Shell()
        script = Script(calls(shell_call("c1", "make")), text("nobody there"))
        plugins = [HumanApproval(timeout=0.01)]
        async with opened(script, tools=[shell.tool], plugins=plugins, cwd=tmp_path) as agent:
            heard = Heard(agent)
            await agent.prompt("build it")
            assert await agent.collect_reply() == "nobody there"
            resolved = heard.one("approval_resolved")
            assert (resolved.status, resolved.gate) == ("timeout", heard.one("approval_required").gate)
            assert shell.ran == []

    @case("1-093")
    async def test_approved_for_good(self, tmp_path: Path) -> None:
        shell = Shell()
        script = Script(
            calls(shell_call("c1", "npm run build")),
            calls(shell_call("c2", "npm run build -- --watch")),
            calls(shell_call("c3", "npm run deploy")),
        )
        async with opened(script, tools=[shell.tool], plugins=[HumanApproval()], cwd=tmp_path) as agent:
            heard = Heard(agent)
            await agent.prompt("build it")
            await heard.until("approval_required")
            await agent.approve(option="approve_always")
            asked = (await heard.until("approval_required", 2)).gate
            told = heard.one("tool_approved_always")
            assert (told.tool, told.command_family, told.scope) == ("shell", "npm run build", "session")
            assert shell.ran == ["npm run build", "npm run build -- --watch"]
            assert asked.args == {"command": "npm run deploy"}

    @case("1-093")
    async def test_approved_for_good_outlives_the_agent(self, tmp_path: Path) -> None:
        log, shell = MemoryLog(), Shell()
        script = Script(
            calls(shell_call("c1", "npm test")), text("ok"), calls(shell_call("c2", "npm test")), text("again")
        )
        settings: dict[str, Any] = {"tools": [shell.tool], "cwd": tmp_path}
        agent = await opened(script, plugins=[HumanApproval()], log=log, session_id="s1", **settings)
        heard = Heard(agent)
        await agent.prompt("test it")
        await heard.until("approval_required")
        await agent.approve(option="approve_always")
        await agent.collect_reply()
        await agent.stop()
        async with resume("s1", log=log, model=script, plugins=[HumanApproval()], **settings) as back:
            await back.prompt("once more")
            assert await back.collect_reply() == "again"
            assert shell.ran == ["npm test", "npm test"]

    @case("U-054")
    async def test_a_safe_command_is_not_asked_about(self, tmp_path: Path) -> None:
        shell = Shell()
        script = Script(
            calls(shell_call("c1", "git status -s"), shell_call("c2", "deploy staging")),
            calls(shell_call("c3", "git status; rm x")),
        )
        plugins = [HumanApproval(safe_commands=["git status", "re:deploy (staging|test)"])]
        async with opened(script, tools=[shell.tool], plugins=plugins, cwd=tmp_path) as agent:
            heard = Heard(agent)
            await agent.prompt("look around")
            gate = (await heard.until("approval_required")).gate
            assert gate.args == {"command": "git status; rm x"}
            assert sorted(shell.ran) == ["deploy staging", "git status -s"]

    @case("U-055")
    async def test_a_repeated_command_passes_once(self, tmp_path: Path) -> None:
        shell = Shell()
        script = Script(
            calls(shell_call("c1", "rm -r build")),
            calls(shell_call("c2", "rm -r build")),
            text("removed"),
            calls(shell_call("c3", "rm -r build")),
        )
        plugins = [HumanApproval(confirm_prefix="!yes ")]
        async with opened(script, tools=[shell.tool], plugins=plugins, cwd=tmp_path) as agent:
            heard = Heard(agent)
            await agent.prompt("clean up")
            await heard.until("approval_required")
            await agent.reject()
            await agent.prompt("!yes rm -r build")
            assert await agent.collect_reply() == "removed"
            assert shell.ran == ["rm -r build"]
            await agent.prompt("clean up again")
            await heard.until("approval_required", 2)
            assert shell.ran == ["rm -r build"]

    @case("X-037")
    async def test_the_repeated_command_is_the_yes_to_the_call_that_is_held(self, tmp_path: Path) -> None:
        shell = Shell()
        script = Script(calls(shell_call("c1", "rm -r build")), text("removed"), text("next"))
        plugins = [HumanApproval(confirm_prefix="!yes ")]
        async with opened(script, tools=[shell.tool], plugins=plugins, cwd=tmp_path) as agent:
            heard = Heard(agent)
            await agent.prompt("clean up")
            await heard.until("approval_required")
            assert (await agent.prompt("!yes rm -r src")).disposition == "queued"
            assert shell.ran == []
            assert (await agent.prompt(" !yes rm -r build ")).disposition == "answered"
            await agent.collect_reply()
            resolved = heard.one("approval_resolved")
            assert (resolved.status, resolved.by, resolved.reason) == ("approved", "user", "confirmed by a prompt")
            assert shell.ran == ["rm -r build"]


class TestBlocks:
    @case("1-079")
    async def test_a_blocked_call_does_not_run(self, tmp_path: Path) -> None:
        shell = Shell()
        script = Script(calls(shell_call("c1", "rm -rf /")), text("sorry"))
        async with opened(script, tools=[shell.tool], plugins=[SecurityGuard()], cwd=tmp_path) as agent:
            heard = Heard(agent)
            await agent.prompt("clean up")
            assert await agent.collect_reply() == "sorry"
            blocked = heard.one("tool_blocked")
            assert (blocked.name, blocked.call_id) == ("shell", "c1")
            assert "security guard" in blocked.reason
            assert shell.ran == []
            assert heard.of("tool_execution_start") == []
            assert heard.one("plugin_event").payload["verdict"] == "blocked"

    @case("1-079")
    async def test_plan_mode_only_reads(self, tmp_path: Path) -> None:
        shell, reads = Shell(), tool("read_file")
        script = Script(calls(shell_call("c1", "ls"), ("c2", "read_file", '{"path": "a"}')), text("a plan"))
        settings: dict[str, Any] = {"plugins": default_plugins("plan"), "mode": "plan", "cwd": tmp_path}
        async with opened(script, tools=[shell.tool, reads], **settings) as agent:
            heard = Heard(agent)
            await agent.prompt("short")
            await agent.collect_reply()
            assert "plan mode" in heard.one("tool_blocked").reason
            assert heard.one("tool_execution_end").name == "read_file"
            assert shell.ran == []


class TestLoops:
    @case("1-086")
    async def test_the_same_calls_again(self, tmp_path: Path) -> None:
        same = [calls((f"c{number}", "grep", '{"pattern": "x"}')) for number in range(3)]
        script = Script(*same, text("I try something else"))
        async with opened(script, tools=[tool("grep")], plugins=[LoopDetection()], cwd=tmp_path) as agent:
            heard = Heard(agent)
            await agent.prompt("find it")
            assert await agent.collect_reply() == "I try something else"
            told = heard.one("loop_detected")
            assert told.loop == "repeat_pattern"
            assert told.detail == {"tool": "grep", "calls": 1, "times": 3}
            assert "same" in heard.one("intervention").prompt

    @case("1-087", "1-088")
    async def test_the_same_file_again(self, tmp_path: Path) -> None:
        edits = [calls((f"c{n}", "edit_file", json.dumps({"path": "a.py", "new": str(n)}))) for n in range(4)]
        ran: list[str] = []
        edit = tool("edit_file", lambda args, hands: ran.append(args["new"]) or "edited", writes=True)
        plugins = [LoopDetection(file_warn=2, file_abort=4)]
        async with opened(Script(*edits), tools=[edit], plugins=plugins, cwd=tmp_path) as agent:
            heard = Heard(agent)
            await agent.prompt("make it work")
            aborted = await heard.until("agent_abort")
            assert [body.loop for body in heard.bodies("loop_detected")] == ["file_loop_warn", "file_loop_abort"]
            # The warning doesn't stop the calls, the abort does.
            assert ran == ["0", "1", "2"]
            assert "a.py" in aborted.reason
            assert agent.status().state == "idle"


class TestPlans:
    @case("1-107")
    async def test_a_plan_is_made_first_and_follows_the_work(self, tmp_path: Path) -> None:
        script = Script(text("I will:\n" + LIST), text("- [x] look\n- [!] change"))
        async with opened(script, plugins=[Planning()], cwd=tmp_path) as agent:
            heard = Heard(agent)
            await agent.prompt("please rewrite the parser")
            await agent.collect_reply()
            first, second = (body.plan for body in heard.bodies("plan_generated"))
            assert [(one.description, one.status) for one in first.steps] == [
                ("look", "pending"),
                ("change", "pending"),
            ]
            assert [one.status for one in second.steps] == ["completed", "failed"]
            assert "checklist" in script.requests[0].messages[-1].text

    @case("1-107")
    async def test_it_is_asked_for_twice_at_most(self, tmp_path: Path) -> None:
        script = Script(text("no"), text("never"))
        async with opened(script, plugins=[Planning()], cwd=tmp_path) as agent:
            heard = Heard(agent)
            await agent.prompt("please rewrite the parser")
            await agent.collect_reply()
            assert heard.of("plan_generated") == []
            assert len(script.requests) == 2
            assert "No plan" in heard.one("notice").text


class TestMemory:
    @case("1-108", "U-060")
    async def test_facts_are_kept_before_a_conversation_is_shortened(self, tmp_path: Path) -> None:
        facts = '["we use ruff", "tests are in tests/"]'
        script = Script(
            *(text(f"reply {number}") for number in range(4)),
            *(text(facts), text("summary one")),
            *(text(f"reply {number}") for number in range(4)),
            *(text(facts), text("summary two")),
        )
        settings: dict[str, Any] = {"plugins": [MemoryFlush()], "cwd": tmp_path, "keep_messages": 2}
        async with opened(script, session_id="s1", **settings) as agent:
            heard = Heard(agent)
            for _ in range(2):
                for number in range(4):
                    await agent.prompt(f"prompt {number}")
                    await agent.collect_reply()
                assert await agent.compact()
            [event] = heard.of("memory_flushed")
            assert event.session_id == "s1"
            assert (event.body.facts, event.body.count) == (("we use ruff", "tests are in tests/"), 2)
            assert (tmp_path / "MEMORY.md").read_text() == "# Memory\n\n- we use ruff\n- tests are in tests/\n"
            await heard.until("compact_end", 2)
            assert all(body.ok for body in heard.bodies("compact_end"))

    @case("U-059")
    async def test_an_extractor_that_fails_does_not_stop_compaction(self, tmp_path: Path) -> None:
        failed: list[Any] = [ModelError("network", "no route")]
        script = Script(*(text(f"reply {number}") for number in range(4)), failed, text("a summary"))
        settings: dict[str, Any] = {"plugins": [MemoryFlush()], "cwd": tmp_path, "keep_messages": 2}
        async with opened(script, **settings) as agent:
            heard = Heard(agent)
            for number in range(4):
                await agent.prompt(f"prompt {number}")
                await agent.collect_reply()
            assert await agent.compact()
            ended = await heard.until("compact_end")
            assert (ended.ok, ended.summary) == (True, "a summary")
            warned = heard.one("notice")
            assert warned.level == "warning"
            assert "no route" in warned.text
            assert heard.of("memory_flushed") == []
            assert not (tmp_path / "MEMORY.md").exists()


class TestBigResults:
    @case("1-109", "U-058")
    async def test_a_big_result_is_stored_whole_and_can_be_read(self, tmp_path: Path) -> None:
        whole = "".join(f"line {number}\n" for number in range(9_000))

        async def read(args: dict[str, Any], hands: ToolContext) -> str:
            found = await hands.read_elsewhere(args["path"])
            return "found " + str(found is not None and found.decode() == whole)

        tools = [
            tool("fetch", lambda args, hands: whole),
            tool("read_file", read),
            tool("grep", lambda a, h: whole),
        ]
        path = "large_tool_results/c1"
        script = Script(
            calls(("c1", "fetch"), ("c2", "grep")),
            calls(("c3", "read_file", json.dumps({"path": path}))),
            text("done"),
        )
        settings: dict[str, Any] = {"plugins": [LargeResultOffload()], "cwd": tmp_path, "store": tmp_path / "store"}
        async with opened(script, tools=tools, **settings) as agent:
            heard = Heard(agent)
            await agent.prompt("fetch it")
            await agent.collect_reply()
            told = heard.one("large_result_offloaded")
            assert (told.tool, told.call_id, told.path, told.bytes) == ("fetch", "c1", path, len(whole))
            assert (tmp_path / "store" / path).read_text() == whole
            results = {part.call_id: part.text for part in script.requests[1].messages[-1].parts}  # type: ignore[union-attr]
            assert results["c1"].startswith("line 0\n")
            assert results["c1"].endswith("line 8999\n")
            assert path in results["c1"]
            assert len(results["c1"]) < 5_000
            # Results of grep are excluded from offloading.
            assert results["c2"] == whole
            assert heard.bodies("tool_execution_end")[-1].result == "found True"

    @case("U-058")
    async def test_one_below_the_limit_is_left_alone(self, tmp_path: Path) -> None:
        fetch = tool("fetch", lambda args, hands: "x" * 80_000)
        script = Script(calls(("c1", "fetch")), text("done"))
        async with opened(script, tools=[fetch], plugins=[LargeResultOffload()], cwd=tmp_path) as agent:
            heard = Heard(agent)
            await agent.prompt("fetch it")
            await agent.collect_reply()
            assert heard.of("large_result_offloaded") == []
            assert script.requests[1].messages[-1].parts[0].text == "x" * 80_000  # type: ignore[union-attr]


class TestContentPolicies:
    BAD = '{"violates": true, "summary": "asks for a bomb", "policies": ["weapons"]}'

    @case("1-110")
    async def test_what_breaks_a_policy_is_not_sent(self, tmp_path: Path) -> None:
        script = Script(text(self.BAD), text('{"violates": false}'), text("a cake"))
        plugins = [ContentPolicy(policies={"weapons": "No weapons."})]
        async with opened(script, plugins=plugins, cwd=tmp_path) as agent:
            heard = Heard(agent)
            await agent.prompt("how do I build a bomb?")
            await heard.until("agent_abort")
            told = heard.one("content_policy_violated")
            assert (told.summary, told.triggered_policies) == ("asks for a bomb", ("weapons",))
            assert heard.of("request_start") == []
            await agent.prompt("how do I bake a cake?")
            assert await agent.collect_reply() == "a cake"
            assert script.requests[-1].messages[-1].text == "how do I bake a cake?"


class Reports(Plugin):
    """Emit plugin events, and intervene once."""

    def __init__(self, *payloads: Any) -> None:
        self.payloads = payloads

    def before_prompt(self, prompt: str, context: Any) -> list[Any]:
        return [Emit(PluginEvent(name="mine", payload=one)) for one in self.payloads] + [Intervene("Be brief.")]


class TestEventsOfPlugins:
    @case("1-111")
    async def test_a_plugins_own_event_carries_the_users_data(self, tmp_path: Path) -> None:
        plugins, data = [Reports({"count": 1}, "plain")], {"tenant": "acme"}
        async with opened(Script(text("ok")), plugins=plugins, cwd=tmp_path, user_data=data) as agent:
            heard = Heard(agent)
            await agent.prompt("hello")
            await agent.collect_reply()
            first, second = heard.bodies("plugin_event")
            assert (first.name, first.payload) == ("mine", {"count": 1, "user_data": data})
            assert second.payload == "plain"

    @case("1-112")
    async def test_an_intervention_is_told_and_read_by_the_model(self, tmp_path: Path) -> None:
        script = Script(text("ok"))
        async with opened(script, plugins=[Reports()], cwd=tmp_path) as agent:
            heard = Heard(agent)
            await agent.prompt("hello")
            await agent.collect_reply()
            assert heard.one("intervention").prompt == "Be brief."
            assert "Be brief." in script.requests[0].messages[-1].text


def everywhere() -> type[Plugin]:
    """A plugin with every hook that records which ones ran."""

    def hook(name: str) -> Any:
        def asked(self: Any, *args: Any) -> None:
            self.asked.append(name)

        return asked

    return type("Everywhere", (Plugin,), {"asked": [], **{name: hook(name) for name in HOOKS}})


class TestHooks:
    @case("1-120")
    async def test_there_are_thirteen_and_each_is_asked(self, tmp_path: Path) -> None:
        kind: Any = everywhere()
        plugin = kind()

        def fails(args: dict[str, Any], hands: ToolContext) -> str:
            raise RuntimeError("no")

        script = Script(
            calls(("c1", "works"), ("c2", "fails")),
            *(text(f"reply {number}") for number in range(3)),
            text("a summary"),
        )
        tools = [tool("works"), tool("fails", fails)]
        settings: dict[str, Any] = {"plugins": [plugin], "cwd": tmp_path, "keep_messages": 2}
        async with opened(script, tools=tools, **settings) as agent:
            for number in range(3):
                await (agent.steer("first") if number == 0 else agent.prompt(f"prompt {number}"))
                await agent.collect_reply()
            assert await agent.compact()
        assert len(HOOKS) == 13
        assert set(plugin.asked) == set(HOOKS)

    @case("1-120")
    def test_the_page_lists_them(self) -> None:
        page = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text()
        assert re.findall(r"^\| `([a-z_]+)\(", page, re.MULTILINE) == list(HOOKS)


async def test_checkpoints_are_saved_after_turns(tmp_path: Path) -> None:
    plugin = AutoCheckpoint(turns=2, keep=1)
    script = Script(*(text(f"reply {number}") for number in range(4)))
    async with opened(script, plugins=[plugin], cwd=tmp_path, log=MemoryLog()) as agent:
        heard = Heard(agent)
        for number in range(4):
            await agent.prompt(f"prompt {number}")
            await agent.collect_reply()
        saved = [body.checkpoint_id for body in heard.bodies("checkpoint_saved")]
        assert len(saved) == 2
        assert plugin.state.saved == (saved[-1],)


class TestTheDefaultSetWithTheRealTools:
    def settings(self, folder: Path, mode: str) -> dict[str, Any]:
        (folder / "project").mkdir()
        return {
            "tools": builtin_tools(),
            "plugins": default_plugins(mode),
            "mode": mode,
            "cwd": folder / "project",
            "store": folder / "store",
        }

    async def test_an_ordinary_turn_asks_nothing(self, tmp_path: Path) -> None:
        script = Script(calls(shell_call("c1", "pwd && ls"), ("c2", "ls", "{}")), text("empty"))
        async with opened(script, **self.settings(tmp_path, "ask")) as agent:
            heard = Heard(agent)
            await agent.prompt("what is there?")
            assert await agent.collect_reply() == "empty"
            ended = {body.call_id: body for body in heard.bodies("tool_execution_end")}
            assert ended["c1"].ok
            assert str(tmp_path / "project") in ended["c1"].result
            assert heard.of("approval_required", "notice", "tool_blocked", "loop_detected") == []

    async def test_writing_is_asked_about_and_then_done(self, tmp_path: Path) -> None:
        script = Script(calls(("c1", "write_file", '{"path": "a.txt", "content": "hi"}')), text("written"))
        async with opened(script, **self.settings(tmp_path, "ask")) as agent:
            heard = Heard(agent)
            await agent.prompt("write it")
            await heard.until("approval_required")
            assert not (tmp_path / "project" / "a.txt").exists()
            await agent.approve()
            assert await agent.collect_reply() == "written"
            assert (tmp_path / "project" / "a.txt").read_text() == "hi"

    @case("1-109", "U-058")
    async def test_a_big_result_can_be_read_where_the_event_says(self, tmp_path: Path) -> None:
        script = Script(calls(shell_call("c1", "seq 1 30000")), text("done"))
        async with opened(script, **self.settings(tmp_path, "auto")) as agent:
            heard = Heard(agent)
            await agent.prompt("count")
            await agent.collect_reply()
            told = heard.one("large_result_offloaded")
            assert (told.tool, told.call_id, told.bytes) == ("shell", "c1", 168_894)
            page = json.dumps({"path": told.path, "offset": 12_345, "limit": 2})
            script.replies += [calls(("c2", "read_file", page)), text("done")]
            await agent.prompt("what stands in the middle?")
            await agent.collect_reply()
            assert "12346" in heard.bodies("tool_execution_end")[1].result
