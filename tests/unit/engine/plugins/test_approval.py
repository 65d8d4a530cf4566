"""Test HumanApproval: which calls need an approval, and which need none."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarterdeck.engine.plugins.approval import READ_ONLY_COMMANDS, HumanApproval
from quarterdeck.engine.plugins.base import BlockTool, Hold, InvalidPluginOption, Plugin
from quarterdeck.events import Notice, ToolApprovedAlways
from quarterdeck.policy import parse
from tests.support.small_context import SmallContext, ask, events_of, others_of, restarted


@pytest.fixture
def context(tmp_path: Path) -> SmallContext:
    return SmallContext(tmp_path)


def held(plugin: Plugin, context: SmallContext, command: Any, tool: str = "shell") -> Hold | None:
    args = {"command": command} if tool == "shell" else command
    answers = ask(plugin, "before_tool", tool, args, "c1", context)
    assert len(answers) <= 1
    if not answers:
        return None
    assert isinstance(answers[0], Hold)
    return answers[0]


def decided(hold: Hold | None, status: str, option: str) -> Any:
    assert hold is not None
    assert hold.decided is not None
    return hold.decided(status, option)


class TestWhatIsAskedAbout:
    def test_the_shell_and_nothing_else_by_default(self, context: SmallContext) -> None:
        plugin = HumanApproval()
        assert held(plugin, context, "ls") is not None
        assert held(plugin, context, {"path": "a"}, "write_file") is None
        assert held(plugin, context, {"path": "a"}, "read_file") is None

    def test_after_120_seconds_by_default_and_0_is_never(self, context: SmallContext) -> None:
        assert (hold := held(HumanApproval(), context, "ls")) is not None
        assert hold.timeout == 120
        assert (hold := held(HumanApproval(timeout=0), context, "ls")) is not None
        assert hold.timeout is None

    def test_the_tools_that_are_named(self, context: SmallContext) -> None:
        plugin = HumanApproval(require_approval_for=["write_file"])
        assert held(plugin, context, "ls") is None
        assert held(plugin, context, {"path": "a"}, "write_file") is not None

    def test_tools_that_say_so_themselves(self, context: SmallContext) -> None:
        context.careful = {"send_mail"}
        assert held(HumanApproval(), context, {"to": "ann"}, "send_mail") is not None

    def test_what_a_person_sees(self, context: SmallContext) -> None:
        hold = held(HumanApproval(), context, "git status -s")
        assert hold is not None
        gate = hold.gate
        assert (gate.tool, gate.call_id, gate.title, gate.ask) == ("shell", "c1", "git status -s", "command")
        assert gate.args == {"command": "git status -s"}
        assert [(one.id, one.kind) for one in gate.options] == [
            ("approve_once", "allow_once"),
            ("approve_always", "allow_always"),
            ("reject_once", "reject_once"),
        ]
        assert gate.options[1].label == "Always allow in this session: git status"

    def test_a_long_command_has_a_short_title(self, context: SmallContext) -> None:
        hold = held(HumanApproval(), context, "echo " + "x" * 1000)
        assert hold is not None
        assert len(hold.gate.title) == 200
        assert hold.gate.title.endswith("…")

    def test_always_is_not_offered_where_no_rule_can_say_it(self, context: SmallContext) -> None:
        hold = held(HumanApproval(), context, "   ")
        assert hold is not None
        assert [one.id for one in hold.gate.options] == ["approve_once", "reject_once"]
        [told] = [decided(hold, "approved", "approve_always")]
        assert isinstance(told.event, Notice)

    def test_other_tools_of_servers_are_asked_about_as_such(self, context: SmallContext) -> None:
        plugin = HumanApproval(require_approval_for=["mail__send"])
        hold = held(plugin, context, {"to": "ann"}, "mail__send")
        assert hold is not None
        assert hold.gate.ask == "mcp"


class TestModes:
    ASKED: ClassVar = {
        "": {"shell"},
        "ask": {"shell", "write_file", "edit_file", "careful"},
        "edits": {"shell", "careful"},
        "auto": set[str](),
        "bypass": set[str](),
    }

    @pytest.mark.parametrize("mode", ASKED)
    def test_each_mode_asks_about_its_own(self, tmp_path: Path, mode: str) -> None:
        context = SmallContext(tmp_path, mode)
        context.careful = {"careful"}
        calls = {name: {"path": "a"} for name in ("read_file", "write_file", "edit_file", "careful")}
        found = {name for name, args in calls.items() if held(HumanApproval(), context, args, name)}
        found |= {"shell"} if held(HumanApproval(), context, "make") else set()
        assert found == self.ASKED[mode] | ({"careful"} if mode == "" else set())

    @pytest.mark.parametrize(("mode", "asked"), [("", False), ("ask", True), ("edits", True), ("auto", False)])
    def test_a_server_that_changes_something_elsewhere_makes_no_edit(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, asked: bool
    ) -> None:
        context = SmallContext(tmp_path, mode)
        monkeypatch.setattr(context, "tool_writes", lambda name: name != "tickets__search")
        hold = held(HumanApproval(), context, {"id": 1}, "tickets__close")
        assert (hold is not None) is asked
        assert hold is None or hold.gate.ask == "mcp"
        assert held(HumanApproval(), context, {"id": 1}, "tickets__search") is None

    def test_a_mode_that_asks_asks_about_the_shell_whatever_is_named(self, tmp_path: Path) -> None:
        assert held(HumanApproval(require_approval_for=[]), SmallContext(tmp_path, "edits"), "ls") is not None

    @pytest.mark.parametrize("tool", ["write_file", "edit_file", "shell", "careful"])
    def test_plan_blocks_all_but_reading_and_says_why(self, tmp_path: Path, tool: str) -> None:
        context = SmallContext(tmp_path, "plan")
        context.careful = {"careful"}
        [answer] = ask(HumanApproval(), "before_tool", tool, {"command": "ls"}, "c1", context)
        assert isinstance(answer, BlockTool)
        assert "plan mode" in answer.reason

    def test_plan_lets_reading_tools_run(self, tmp_path: Path) -> None:
        context = SmallContext(tmp_path, "plan")
        assert ask(HumanApproval(), "before_tool", "read_file", {"path": "a"}, "c1", context) == []

    @pytest.mark.parametrize(
        ("mode", "tool", "why"),
        [
            ("", "shell", "Calls of shell require approval."),
            ("ask", "shell", "Mode ask requires approval."),
            ("ask", "careful", "The tool careful requires approval."),
        ],
    )
    def test_a_person_is_told_why(self, tmp_path: Path, mode: str, tool: str, why: str) -> None:
        context = SmallContext(tmp_path, mode)
        context.careful = {"careful"}
        hold = held(HumanApproval(), context, "ls" if tool == "shell" else {}, tool)
        assert hold is not None
        assert hold.gate.hint == why

    def test_the_mode_of_the_moment_counts(self, context: SmallContext) -> None:
        plugin = HumanApproval()
        context.mode = "auto"
        assert held(plugin, context, "ls") is None
        context.mode = "ask"
        assert held(plugin, context, "ls") is not None


class TestSafeCommands:
    @pytest.mark.parametrize(
        "command",
        [
            "git status",
            "git status -s src",
            "  git status ",
            "git status && make test",
            "git status | wc -l",
            "cd src && git status",
            "deploy staging",
        ],
    )
    def test_a_safe_command_is_not_asked_about(self, context: SmallContext, command: str) -> None:
        plugin = HumanApproval(safe_commands=["git status", "make test", "wc", r"re:deploy (staging|test)"])
        assert held(plugin, context, command) is None

    @pytest.mark.parametrize(
        "command",
        [
            "git push",
            "git statusx",
            "git status && rm -r x",
            "git status; rm x",
            "git status | sh",
            "git status || rm x",
            "git status & rm x",
            "git status > /etc/passwd",
            "git status $(rm x)",
            "git status `rm x`",
            "git status <(rm x)",
            "git status\nrm x",
            "git status --output=/tmp/x",
            "git -c core.pager=rm status",
            "git status ../..",
            "git status /etc",
            "cd / && git status",
            "sudo git status",
            "FOO=1 git status",
            "git 'status",
            "(git status)",
            "{ git status; }",
            "git status # x",
            "git status *",
            "deploy production",
            "deploy staging; rm x",
            "",
        ],
    )
    def test_everything_else_is(self, context: SmallContext, command: str) -> None:
        plugin = HumanApproval(safe_commands=["git status", r"re:deploy (staging|test)"])
        assert held(plugin, context, command) is not None

    def test_a_prefix_that_does_not_say_what_is_run_is_safe_only_as_it_stands(self, context: SmallContext) -> None:
        plugin = HumanApproval(safe_commands=["sudo", "make", "npx tsc"])
        assert held(plugin, context, "make") is None
        assert held(plugin, context, "npx tsc") is None
        assert held(plugin, context, "sudo rm x") is not None
        assert held(plugin, context, "make install") is not None
        assert held(plugin, context, "npx tsc --noEmit") is not None

    def test_a_link_that_leads_out_is_asked_about(self, context: SmallContext) -> None:
        plugin = HumanApproval(safe_commands=["cat"])
        (context.cwd / "inside").write_text("x")
        (context.cwd / "out").symlink_to("/etc/hostname")
        assert held(plugin, context, "cat inside") is None
        assert held(plugin, context, "cat out") is not None

    def test_strange_arguments_are_asked_about(self, context: SmallContext) -> None:
        plugin = HumanApproval(safe_commands=["ls"])
        for args in (
            {},
            {"command": 5},
            {"command": None},
            {"command": "ls", "cmd": "rm"},
            {"command": ["rm", "-r", "x"]},
        ):
            assert ask(plugin, "before_tool", "shell", args, "c1", context)
        assert not ask(plugin, "before_tool", "shell", {"command": ["ls", "-l"]}, "c1", context)

    @pytest.mark.parametrize("bad", ["re:(", "", "  ", "git 'x"])
    def test_what_is_no_command_is_refused_at_once(self, bad: str) -> None:
        with pytest.raises(InvalidPluginOption, match="safe_commands"):
            HumanApproval(safe_commands=[bad])

    def test_a_time_below_zero_is_refused(self) -> None:
        with pytest.raises(InvalidPluginOption, match="timeout"):
            HumanApproval(timeout=-1)


words = st.lists(
    st.sampled_from(["git", "status", "ls", "rm", "-r", "x", "src/a", "'a b'", "&&", ";", "|", "||"]), max_size=8
)


@given(words)
def test_a_line_is_safe_only_if_each_of_its_commands_is(
    tmp_path_factory: pytest.TempPathFactory, line: list[str]
) -> None:
    """Compare with the simplest implementation: split at the operators and check how each piece begins."""
    context = SmallContext(tmp_path_factory.getbasetemp())
    plugin = HumanApproval(safe_commands=["git status", "ls"])
    pieces: list[list[str]] = [[]]
    for word in line:
        if word in ("&&", ";", "|", "||"):
            pieces.append([])
        else:
            pieces[-1].append(word)
    is_safe = all(piece[:1] == ["ls"] or piece[:2] == ["git", "status"] for piece in pieces)
    assert (held(plugin, context, " ".join(line)) is None) == is_safe


hostile = st.text(alphabet="gits tauls;&|$`(){}<>'\"\\\n\t*?[]#~=-/.x\0\ud800", max_size=40)


@given(hostile)
def test_whatever_comes_is_asked_about_or_plainly_safe(tmp_path_factory: pytest.TempPathFactory, line: str) -> None:
    context = SmallContext(tmp_path_factory.getbasetemp())
    plugin = HumanApproval(safe_commands=["ls"])
    if held(plugin, context, line) is None:
        assert "ls" in line.replace("'", "").replace('"', "").replace("\\", "")
        assert not set(line) & set("$`(){}<>\n*?[#\0\ud800") or "'" in line or '"' in line or "\\" in line


@given(st.sampled_from([*READ_ONLY_COMMANDS]))
def test_the_list_of_the_default_set_is_of_families(tmp_path_factory: pytest.TempPathFactory, command: str) -> None:
    context = SmallContext(tmp_path_factory.getbasetemp())
    plugin = HumanApproval(safe_commands=READ_ONLY_COMMANDS)
    assert held(plugin, context, f"{command} src") is None
    assert held(plugin, context, f"{command} /etc/passwd") is not None
    assert held(plugin, context, f"{command} src > out") is not None


class TestAlways:
    def test_the_family_is_not_asked_about_again(self, context: SmallContext) -> None:
        plugin = HumanApproval()
        emit = decided(held(plugin, context, "npm run build -- --watch"), "approved", "approve_always")
        assert emit.event == ToolApprovedAlways(
            tool="shell",
            command_family="npm run build",
            scope="session",
            rule="allow shell npm run build in session s1",
        )
        assert held(plugin, context, "npm run build") is None
        assert held(plugin, context, "npm run deploy") is not None
        assert held(plugin, context, "npm run build; rm x") is not None

    def test_a_command_of_no_family_is_allowed_as_it_is(self, context: SmallContext) -> None:
        plugin = HumanApproval()
        emit = decided(held(plugin, context, "rm -r build"), "approved", "approve_always")
        assert emit.event.command_family == "rm -r build"
        assert held(plugin, context, "rm -r build") is None
        assert held(plugin, context, "rm -r src") is not None

    def test_a_tool_is_allowed_in_the_folder_of_its_file(self, tmp_path: Path) -> None:
        context = SmallContext(tmp_path, "ask")
        plugin = HumanApproval()
        emit = decided(held(plugin, context, {"path": "src/a.py"}, "write_file"), "approved", "approve_always")
        assert emit.event.tool == "write_file"
        assert held(plugin, context, {"path": "src/b.py"}, "write_file") is None
        assert held(plugin, context, {"path": "doc/b.py"}, "write_file") is not None
        assert held(plugin, context, {"path": "src/.env"}, "write_file") is not None

    @pytest.mark.parametrize(
        ("status", "option"),
        [("approved", "approve_once"), ("approved", ""), ("rejected", "approve_always"), ("timeout", "")],
    )
    def test_nothing_else_is_remembered(self, context: SmallContext, status: str, option: str) -> None:
        plugin = HumanApproval()
        assert decided(held(plugin, context, "git status"), status, option) is None
        assert held(plugin, context, "git status") is not None

    def test_it_outlives_a_restart_but_not_its_session(self, context: SmallContext) -> None:
        plugin = HumanApproval()
        decided(held(plugin, context, "git status"), "approved", "approve_always")
        again = restarted(plugin, HumanApproval())
        assert held(again, context, "git status -s") is None
        context.session_id = "s2"
        assert held(again, context, "git status -s") is not None

    def test_a_rule_that_cannot_be_read_allows_nothing(self, context: SmallContext) -> None:
        plugin = HumanApproval()
        plugin.restore({"rules": ['allow everything please "', "allow shell git status in session s1"]})
        assert held(plugin, context, "git status") is None
        assert held(plugin, context, "make") is not None

    @given(
        st.lists(
            st.sampled_from(["git log", "npm test", "ls", "rm -r x", "cargo build --release"]), min_size=1, max_size=6
        )
    )
    def test_each_rule_is_one_that_the_deck_can_read(
        self, tmp_path_factory: pytest.TempPathFactory, commands: list[str]
    ) -> None:
        context = SmallContext(tmp_path_factory.getbasetemp())
        plugin = HumanApproval()
        for command in commands:
            hold = held(plugin, context, command)
            if hold is not None:
                decided(hold, "approved", "approve_always")
            assert held(plugin, context, command) is None
        assert [parse(text).text for text in plugin.state.rules] == list(plugin.state.rules)
        assert len(set(plugin.state.rules)) == len(plugin.state.rules) <= len(set(commands))


class TestConfirmPrefix:
    def test_the_next_call_of_the_repeated_command_passes(self, context: SmallContext) -> None:
        plugin = HumanApproval(confirm_prefix="!ok ")
        hold = held(plugin, context, "rm -r build")
        assert hold is not None
        assert hold.gate.hint == "Calls of shell require approval. You can also send this prompt: !ok rm -r build"
        ask(plugin, "before_prompt", "!ok rm -r build", context)
        assert held(plugin, context, "rm -r src") is not None
        assert held(plugin, context, "rm -r build") is None
        assert held(plugin, context, "rm -r build") is not None

    def test_it_outlives_a_restart(self, context: SmallContext) -> None:
        plugin = HumanApproval(confirm_prefix="!ok ")
        ask(plugin, "before_prompt", "!ok make", context)
        assert held(restarted(plugin, HumanApproval(confirm_prefix="!ok ")), context, "make") is None

    def test_without_a_prefix_a_prompt_confirms_nothing(self, context: SmallContext) -> None:
        plugin = HumanApproval()
        ask(plugin, "before_prompt", "make", context)
        assert held(plugin, context, "make") is not None

    @pytest.mark.parametrize("text", ["ok make", "please !ok make", "!ok", "!ok  "])
    def test_only_a_prompt_that_begins_with_it(self, context: SmallContext, text: str) -> None:
        plugin = HumanApproval(confirm_prefix="!ok ")
        ask(plugin, "before_prompt", text, context)
        assert plugin.state.confirmed == ()

    def test_an_agent_does_not_confirm_for_its_sub_agent(self, context: SmallContext) -> None:
        plugin = HumanApproval(confirm_prefix="!ok ")
        context.agent_path = ("child",)
        ask(plugin, "before_prompt", "!ok make", context)
        assert held(plugin, context, "make") is not None

    def test_few_are_remembered(self, context: SmallContext) -> None:
        plugin = HumanApproval(confirm_prefix="!")
        for number in range(40):
            ask(plugin, "before_steering", f"!make {number}", context)
        assert len(plugin.state.confirmed) == 16
        assert held(plugin, context, "make 39") is None


def test_a_fault_in_the_judgement_does_not_let_the_call_run(context: SmallContext) -> None:
    plugin = HumanApproval()
    plugin.state = None
    answers = ask(plugin, "before_tool", "shell", {"command": "ls"}, "c1", context)
    [blocked] = others_of(answers)
    assert isinstance(blocked, BlockTool)
    [told] = events_of(answers)
    assert isinstance(told, Notice)
    assert told.level == "error"
