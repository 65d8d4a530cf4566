"""Test the service files: parse them by the rules of systemd and launchd."""

from __future__ import annotations

import os
import plistlib
import shlex
import shutil
import stat
import subprocess
import sys
from configparser import RawConfigParser
from pathlib import Path

import pytest

from quarterdeck.cli.service import LABEL, NoServices, Service, describe_service, format_flags
from quarterdeck.home import Home
from tests.support.servers import At

PLACE = Home(Path("/decks/my $deck 100%"))
USER = {"HOME": "/home/dev", "PATH": "/bin:/opt/a b", "SECRET_KEY": "hush"}


def made(platform: str, options: dict[str, object] | None = None, **environment: str) -> Service:
    return describe_service(
        PLACE, options or {}, environment=USER | environment, platform=platform, python="/env dir/python"
    )


def unit(text: str) -> RawConfigParser:
    parser = RawConfigParser(strict=False)
    parser.optionxform = str
    parser.read_string(text)
    return parser


class TestSystemd:
    def test_where_it_is_written(self):
        assert made("linux").path == Path("/home/dev/.config/systemd/user/quarterdeck.service")
        assert made("linux", XDG_CONFIG_HOME="/x").path == Path("/x/systemd/user/quarterdeck.service")
        assert made("linux", XDG_CONFIG_HOME="relative").path.is_relative_to("/home/dev/.config")

    def test_the_command_and_the_home_survive_the_quoting(self):
        found = made("linux", {"port": 5000, "allow_host": ["a.example", "b.example"], "expose": True})
        command = unit(found.text)["Service"]["ExecStart"].replace("%%", "%").replace("$$", "$")
        python = ["/env dir/python", "-P", "-m", "quarterdeck.cli", "up", "--no-open"]
        names = ["--allow-host", "a.example", "--allow-host", "b.example"]
        assert shlex.split(command) == [*python, "--port", "5000", *names, "--expose"]
        lines = [line for line in found.text.splitlines() if line.startswith("Environment=")]
        told = [shlex.split(line.removeprefix("Environment=").replace("%%", "%"))[0] for line in lines]
        assert told == ["PATH=/bin:/opt/a b", "QUARTERDECK_HOME=/decks/my $deck 100%"]
        assert "hush" not in found.text

    def test_agents_are_not_ended_before_their_sessions_are_suspended(self):
        assert unit(made("linux").text)["Service"]["KillMode"] == "mixed"

    def test_it_is_restarted_after_a_crash_and_not_after_qd_down(self):
        assert unit(made("linux").text)["Service"]["Restart"] == "on-failure"

    @pytest.mark.skipif(
        not shutil.which("systemd-analyze"), reason="systemd-analyze, which judges a unit, is not installed"
    )
    def test_systemd_finds_no_fault(self, tmp_path: Path):
        found = describe_service(Home(tmp_path / "a $ b%"), {"port": 5000}, environment=dict(USER), platform="linux")
        file = tmp_path / found.path.name
        file.write_text(found.text, encoding="utf-8")
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)}
        verify = ["systemd-analyze", "verify", "--user", "--man=no", str(file)]
        done = subprocess.run(verify, capture_output=True, text=True, env=environment)
        assert [line for line in done.stderr.splitlines() if found.path.name in line] == []


class TestLaunchd:
    def test_it_is_a_property_list(self):
        found = made("darwin", {"port": 5000})
        told = plistlib.loads(found.text.encode())
        assert found.path == Path(f"/home/dev/Library/LaunchAgents/{LABEL}.plist")
        assert told["ProgramArguments"][:4] == ["/env dir/python", "-P", "-m", "quarterdeck.cli"]
        assert told["ProgramArguments"][-2:] == ["--port", "5000"]
        assert told["EnvironmentVariables"] == {"PATH": "/bin:/opt/a b", "QUARTERDECK_HOME": str(PLACE.folder)}
        assert told["KeepAlive"] == {"SuccessfulExit": False}


def test_elsewhere_there_are_no_services():
    with pytest.raises(NoServices):
        made("plan9")


def test_options_as_they_are_typed():
    assert format_flags({"tls_cert": "/c", "allow_host": ("a",), "expose": True}) == [
        "--tls-cert",
        "/c",
        "--allow-host",
        "a",
        "--expose",
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="systemd is Linux's; elsewhere there is no systemctl to be told")
class TestDoingIt:
    @pytest.fixture
    def at(self, tmp_path: Path) -> At:
        """Create a home with a fake `systemctl` that records its arguments."""
        at = At(tmp_path)
        tools = tmp_path / "tools"
        tools.mkdir()
        (tools / "systemctl").write_text(f'#!/bin/sh\necho "$@" >> "{tmp_path}/told"\n', encoding="utf-8")
        (tools / "systemctl").chmod(0o700)
        at.environment |= {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")}
        at.environment["PATH"] = f"{tools}:{at.environment['PATH']}"
        return at

    def told(self, tmp_path: Path) -> list[str]:
        text = (tmp_path / "told").read_text("utf-8")
        (tmp_path / "told").unlink()
        return text.splitlines()

    def test_installed_twice_and_removed_twice(self, at: At, tmp_path: Path):
        file = tmp_path / "config" / "systemd" / "user" / "quarterdeck.service"
        first = at.qd("up", "--install-service", "--port", "5001")
        assert (first.returncode, first.stdout, first.stderr) == (0, f"{file}: written\n", "")
        steps = [
            f"--user {step}" for step in ("daemon-reload", "enable quarterdeck.service", "restart quarterdeck.service")
        ]
        assert self.told(tmp_path) == steps
        command = unit(file.read_text("utf-8"))["Service"]["ExecStart"]
        assert shlex.split(command)[0] == sys.executable
        assert shlex.split(command)[-2:] == ["--port", "5001"]

        assert at.qd("up", "--install-service", "--port", "5001").stdout == f"{file}: unchanged\n"
        assert self.told(tmp_path) == steps[:2]
        assert at.qd("up", "--install-service").stdout == f"{file}: written\n"
        assert self.told(tmp_path) == steps

        assert at.qd("up", "--remove-service").stdout == f"{file}: removed\n"
        assert self.told(tmp_path) == ["--user disable --now quarterdeck.service", "--user daemon-reload"]
        assert at.qd("up", "--remove-service").stdout == f"{file}: doesn't exist\n"
        assert list(file.parent.iterdir()) == []

    def test_where_nobody_manages_services_the_rest_is_said(self, at: At, tmp_path: Path):
        systemctl = tmp_path / "tools" / "systemctl"
        systemctl.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
        assert stat.S_IMODE(systemctl.stat().st_mode) == 0o700
        done = at.qd("up", "--install-service")
        assert done.returncode == 0
        assert "run it later:  systemctl --user daemon-reload" in done.stderr

    def test_a_setting_that_is_wrong_is_not_installed(self, at: At, tmp_path: Path):
        done = at.qd("up", "--install-service", "--host", "0.0.0.0")
        assert done.returncode == 2
        assert not (tmp_path / "config").exists()

    def test_both_at_once_is_wrong_use(self, at: At):
        assert at.qd("up", "--install-service", "--remove-service").returncode == 2
