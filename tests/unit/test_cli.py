"""Test the `qd` command: its output, its exit codes, and the modules that it doesn't import."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import quarterdeck
from quarterdeck.cli import main
from quarterdeck.cli.app import COMMANDS, CommandTable, Entry, Placeholder, app
from quarterdeck.cli.commands import machine as machine_command
from quarterdeck.cli.exits import Exit, exit_for
from quarterdeck.errors import AlreadyDecided, NotAllowed, QuarterdeckError
from quarterdeck.kernel.machine import MACHINE_NAMES, Machine, Row, load_machine
from tests.support.servers import home_at

DOOR = """\
door starts as shut

from  event  guard     to
shut  push   unlocked  open
open  wind             shut

flag      true in
passable  open
"""

QD = Path(sys.executable).with_name("qd")


def qd(*args: str, color: bool = False, **env: str) -> Result:
    return CliRunner().invoke(app, args, prog_name="qd", color=color, env=env)


def run_script(*args: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([QD, *args], capture_output=True, text=True, timeout=60, **options)


@pytest.fixture
def failing() -> Iterator[list[BaseException]]:
    """Add a command `fail` to the real group. It raises the error that the test puts into the list."""
    errors: list[BaseException] = []

    @app.command("fail")
    def fail() -> None:
        raise errors[0]

    yield errors
    del app.commands["fail"]


class TestTheCommandItself:
    @pytest.mark.parametrize("args", [[], ["--help"], ["-h"]])
    def test_help_lists_every_command_with_its_line(self, args: Sequence[str]):
        result = qd(*args)
        assert result.exit_code == Exit.DONE
        for name, entry in COMMANDS.items():
            assert re.search(rf"{name} +{re.escape(entry.help)}", result.output)

    def test_version(self):
        assert qd("--version").output == f"qd {quarterdeck.__version__}\n"

    def test_a_misspelt_command_is_wrong_use(self):
        result = qd("machin")
        assert result.exit_code == Exit.WRONG_USE
        assert "No such command 'machin'" in result.stderr

    @pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
    def test_a_standard_stream_that_is_closed_is_an_empty_one(self, closed: str):
        ask = "import sys; sys.argv[1:] = ['--version']; from quarterdeck.cli import main\ntry: main()\nfinally: "
        told = "sys.exit(bool(sys.stdin.read() if not sys.stdin.isatty() else '') or None in (sys.stdout, sys.stderr))"
        done = subprocess.run(
            ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, ask + told],
            stdin=subprocess.DEVNULL,
            timeout=60,
        )
        assert done.returncode == Exit.DONE

    @pytest.mark.parametrize("port", ["-1", "65536"])
    def test_a_port_that_cannot_be_is_wrong_use(self, port: str):
        assert qd("testing", "model", "--port", port).exit_code == Exit.WRONG_USE

    def test_what_the_system_refuses_is_said_in_words(self, failing: list[BaseException]):
        failing.append(OSError(28, "No space left on device", "/full"))
        result = qd("fail")
        assert result.exit_code == Exit.FAILED
        assert "error: /full: No space left on device\n" in result.stderr

    def test_an_unknown_option_is_wrong_use(self):
        assert qd("--no-such-option").exit_code == Exit.WRONG_USE

    @pytest.mark.parametrize("name", COMMANDS)
    def test_the_table_of_commands_agrees_with_the_command(self, name: str):
        command = Placeholder(name, COMMANDS[name]).load()
        assert command.name == name
        assert command.get_short_help_str(limit=200) == COMMANDS[name].help

    def test_a_group_of_commands_can_be_nested(self):
        nested = CommandTable("nested", commands={"machine": Placeholder("machine", COMMANDS["machine"])})
        result = CliRunner().invoke(nested, ["machine", "run"])
        assert result.exit_code == Exit.DONE

    def test_an_entry_that_leads_nowhere_fails_loudly(self):
        with pytest.raises(ModuleNotFoundError):
            Placeholder("lost", Entry("quarterdeck.cli.lost:lost", "")).load()


class TestHowACommandEnds:
    def test_an_error_is_shown_with_its_hint_on_standard_error(self, failing: list[BaseException]):
        failing.append(QuarterdeckError("the work failed", "Try again."))
        result = qd("fail")
        assert (result.exit_code, result.stdout) == (Exit.FAILED, "")
        assert result.stderr == "error: the work failed\nTry again.\n"

    def test_an_error_without_a_hint_takes_one_line(self, failing: list[BaseException]):
        failing.append(QuarterdeckError("the work failed"))
        assert qd("fail").stderr == "error: the work failed\n"

    @pytest.mark.parametrize(
        "error",
        [NotAllowed("stop", "idle", ()), AlreadyDecided("g7", "approved", "user")],
        ids=lambda e: e.code,
    )
    def test_what_the_state_forbids_has_its_own_exit_code(self, failing: list, error: QuarterdeckError):
        failing.append(error)
        assert qd("fail").exit_code == Exit.NOT_ALLOWED_NOW

    @pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), click.Abort()], ids=["ctrl-c", "at a prompt"])
    def test_an_interrupt_is_130_and_no_traceback(self, failing: list, interrupt: BaseException):
        failing.append(interrupt)
        result = qd("fail")
        assert (result.exit_code, result.output) == (Exit.INTERRUPTED, "\n")

    def test_a_fault_of_ours_is_not_dressed_up(self, failing: list[BaseException]):
        failing.append(ZeroDivisionError())
        assert isinstance(qd("fail").exception, ZeroDivisionError)

    @pytest.mark.parametrize(
        ("code", "expected"),
        [
            ("no_such_gate", Exit.NO_SUCH_THING),
            ("no_such_session", Exit.NO_SUCH_THING),
            ("queue_full", Exit.NOT_ALLOWED_NOW),
            ("malformed_event", Exit.WRONG_USE),
            ("unreachable", Exit.UNREACHABLE),
            ("anything_else", Exit.FAILED),
        ],
    )
    def test_exit_code_by_error_code(self, code: str, expected: Exit):
        assert exit_for(code) == expected

    def test_the_exit_codes_are_the_contracts(self):
        assert [int(code) for code in Exit] == [0, 1, 2, 3, 4, 5, 130]


class TestColour:
    def test_errors_are_coloured_where_colour_is_shown(self, failing: list[BaseException]):
        failing.append(QuarterdeckError("no"))
        assert "\x1b[" in qd("fail", color=True).stderr

    def test_no_color_is_respected(self, failing: list[BaseException]):
        failing.append(QuarterdeckError("no"))
        assert "\x1b[" not in qd("fail", color=True, NO_COLOR="1").stderr

    def test_an_empty_no_color_means_nothing(self, failing: list[BaseException]):
        failing.append(QuarterdeckError("no"))
        assert "\x1b[" in qd("fail", color=True, NO_COLOR="").stderr


class TestMachine:
    def test_the_table_is_for_reading(self, monkeypatch: pytest.MonkeyPatch):
        rows = [Row("shut", "push", "open", "unlocked"), Row("open", "wind", "shut")]
        door = Machine("door", ("open", "shut"), "shut", rows, flags={"passable": ("open",)})
        monkeypatch.setattr(machine_command, "load_machine", {"door": door}.__getitem__)
        assert qd("machine", "door").stdout == DOOR

    @pytest.mark.parametrize("name", ["lifecycle", "run", "activity", "phase"])
    def test_the_table_has_a_line_for_each_transition(self, name: str):
        title, _, _, *lines = qd("machine", name).stdout.splitlines()
        assert title == f"{name} starts as {load_machine(name).initial}"
        rows = lines[: lines.index("")] if "" in lines else lines
        assert len(rows) == len(load_machine(name).rows)

    @pytest.mark.parametrize("name", MACHINE_NAMES)
    def test_json_is_the_contracts_object(self, name: str):
        shown = json.loads(qd("machine", name, "--json").stdout)
        assert {"name", "states", "initial", "events", "transitions", "flags"} <= shown.keys()
        assert shown["name"] == name
        assert all(row.keys() == {"from", "event", "guard", "to"} for row in shown["transitions"])

    def test_mermaid_is_the_machines_own_diagram(self):
        assert qd("machine", "run", "--mermaid").stdout.strip() == load_machine("run").mermaid().strip()

    def test_an_unknown_machine_is_no_such_thing_and_the_hint_lists_them(self):
        result = qd("machine", "nope")
        assert result.exit_code == Exit.NO_SUCH_THING
        assert "'nope'" in result.stderr
        assert all(name in result.stderr for name in MACHINE_NAMES)

    def test_no_name_is_wrong_use(self):
        assert qd("machine").exit_code == Exit.WRONG_USE

    def test_its_help_names_every_machine(self):
        shown = qd("machine", "--help").stdout
        assert all(name in shown for name in MACHINE_NAMES)


class TestTheInstalledScript:
    def test_its_entry_point_runs_the_command(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(sys, "argv", ["qd", "--version"])
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code == Exit.DONE

    def test_help(self):
        done = run_script("--help")
        assert (done.returncode, done.stderr) == (Exit.DONE, "")
        assert done.stdout.startswith("Usage: qd ")

    def test_no_such_machine(self):
        done = run_script("machine", "nope")
        assert (done.returncode, done.stdout) == (Exit.NO_SUCH_THING, "")

    def test_a_reader_that_leaves_is_no_news(self):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run([QD, "machine", "phase"], stdout=writer, stderr=subprocess.PIPE, timeout=60)
        os.close(writer)
        assert done.stderr == b""

    def test_ctrl_c_ends_it_with_130(self):
        # The command interrupts itself, so the test doesn't have to guess when it runs.
        code = (
            "import os, signal\n"
            "from quarterdeck.cli.app import app\n"
            "app.command('hang')(lambda: signal.raise_signal(signal.SIGINT))\n"
            "app(['hang'])\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr.strip()) == (Exit.INTERRUPTED, "")
        assert signal.SIGINT + 128 == Exit.INTERRUPTED

    def test_help_imports_no_command_and_nothing_heavy(self):
        code = (
            "import sys\n"
            "from quarterdeck.cli import main\n"
            "sys.argv = ['qd', '--help']\n"
            "try:\n    main()\nexcept SystemExit:\n    print(*sys.modules, file=sys.stderr)\n"
        )
        done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60)
        loaded = set(done.stderr.split())
        commands = {entry.where.partition(":")[0] for entry in COMMANDS.values()}
        heavy = {"msgspec", "asyncio", "json", "immutables", "pyrsistent", "subprocess", "quarterdeck.kernel"}
        assert "quarterdeck.cli.app" in loaded
        assert not loaded & (commands | heavy)

    def test_one_shot_commands_do_not_import_the_typed_client(self, tmp_path: Path):
        """Importing the typed client takes longer than everything else that these commands do."""
        code = (
            "import sys\n"
            "from quarterdeck.cli import main\n"
            "try:\n    main()\nexcept SystemExit as end:\n    print(end.code, *sys.modules, file=sys.stderr)\n"
        )
        with home_at(tmp_path) as at:
            at.up()
            for arguments in (["status"], ["run", "-d", "test", "say hi"]):
                command = [sys.executable, "-c", code, *arguments]
                done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=at.environment)
                exit_code, *loaded = done.stderr.split()
                assert (exit_code, "http.client" in loaded) == ("0", True), done.stderr
                assert not {"asyncio", "aiohttp", "msgspec", "quarterdeck.kernel"} & {*loaded}, arguments
