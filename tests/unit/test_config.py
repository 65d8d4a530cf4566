"""Test the configuration: which source wins, how values are decoded, and the error messages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quarterdeck.config import (
    BuiltinSettings,
    Config,
    ConfigFile,
    InvalidSetting,
    McpServer,
    Price,
    ProviderSettings,
    RunProfile,
    ServerSettings,
    Settings,
    ToolSettings,
    Value,
    config_file,
    help_of,
    merge_config,
    read_config,
)
from quarterdeck.harness import registry

PATH = Path("/deck/config.toml")


def config(text: str = "", environment: dict[str, str] | None = None, **options: Any) -> Config:
    return merge_config(ConfigFile(PATH, text), environment or {}, options, registry.known_agents)


def mistake(text: str = "", environment: dict[str, str] | None = None, **options: Any) -> InvalidSetting:
    with pytest.raises(InvalidSetting) as raised:
        config(text, environment, **options)
    assert raised.value.hint
    return raised.value


class TestWhoWins:
    def test_nobody_said_anything(self):
        found = config()
        assert (found.server.host, found.server.port) == ("127.0.0.1", 4986)
        assert found.deck.running_limit == 8
        assert {one.source for one in found.values.values()} == {"default"}
        assert found.warnings == ()

    def test_each_source_beats_the_one_before(self):
        text = "# ours\nport = 1\nrunning_limit = 2"
        variables = {"QUARTERDECK_PORT": "3"}
        assert config(text).values["port"] == Value(1, "config.toml:2")
        assert config(text, variables).values["port"] == Value(3, "QUARTERDECK_PORT")
        assert config(text, variables, port=4).values["port"] == Value(4, "--port")
        assert config(text, variables, port=4).server.port == 4
        assert config(text, variables).deck.running_limit == 2

    def test_the_idle_timeout_has_an_older_name_in_minutes(self):
        older = {"AGENT_SESSION_IDLE_TIMEOUT": "5"}
        assert config("idle_timeout = 7", older).values["idle_timeout"] == Value(300.0, "AGENT_SESSION_IDLE_TIMEOUT")
        assert config("", older | {"QUARTERDECK_IDLE_TIMEOUT": "9"}).deck.idle_timeout == 9.0

    def test_a_list_in_a_variable_has_commas(self):
        found = config("", {"QUARTERDECK_ALLOW_HOST": "a.example, b.example,"})
        assert found.server.allow_host == ("a.example", "b.example")

    @pytest.mark.parametrize(("text", "value"), [("1", True), ("true", True), ("0", False)])
    def test_a_switch_in_a_variable(self, text: str, value: bool):
        assert config("", {"QUARTERDECK_EXPOSE": text}).server.expose is value

    def test_files_are_beside_the_configuration(self):
        found = config('tls_cert = "cert.pem"\ntls_key = "/elsewhere/key.pem"').server
        assert (found.tls_cert, found.tls_key) == ("/deck/cert.pem", "/elsewhere/key.pem")


class TestMistakes:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("port = 1\nhost =", "line 2"),
            ("port = 1\nport = 2", "line 2"),
            ('\n\nport = "x"', "line 3: port: Expected `int`, got `str`"),
            ("port = 70000", "line 1: port: Expected `int` <= 65535"),
            ("running_limit = 0", "line 1: running_limit"),
            ("stop_grace = -1", "line 1: stop_grace"),
            ("stop_grace = nan", "line 1: stop_grace"),
            ("stop_grace = inf", "line 1: stop_grace"),
            ("tail = true", "line 1: tail: Expected `int`, got `bool`"),
            ("allow_host = 'one'", "line 1: allow_host"),
            ('"port" = []', "line 1: port"),
            ("profile = 1", "line 1: profile"),
            ("[profile]\nx = 1", "line 2: profile.x"),
            ("port = 1\n[profile.x]\nmodel = 'm'", "line 2: profile.x: agent is missing"),
            (
                "[profile.x]\nagent = 'claud'",
                "line 2: profile.x.agent: no agent is called 'claud'; did you mean claude?",
            ),
            ("[profile.x]\nagent = 'claude'\nmode = 'fast'", "line 3: profile.x.mode"),
            ("[profile.a]\nagent='pi'\n[ profile.\"x\" ]\nagent = 5", "line 4: profile.x.agent"),
        ],
    )
    def test_a_line_of_the_file_is_named(self, text: str, said: str):
        error = mistake(text)
        assert error.message.startswith(f"{PATH}, line ")
        assert said in error.message

    def test_a_variable_is_named(self):
        assert mistake("", {"QUARTERDECK_PORT": "x"}).message.startswith("QUARTERDECK_PORT is 'x'")
        assert mistake("", {"AGENT_SESSION_IDLE_TIMEOUT": "x"}).message.startswith("AGENT_SESSION_IDLE_TIMEOUT")

    def test_an_option_is_named(self):
        assert mistake(port=-1).message.startswith("--port -1")

    def test_half_a_pair_of_tls_files(self):
        assert "tls_cert is set (config.toml:1)" in mistake("tls_cert = 'c'").message
        assert "tls_key is set (--tls-key)" in mistake(tls_key="k").message

    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "deck.example"])
    def test_a_host_for_others_must_be_meant(self, host: str):
        assert "(QUARTERDECK_HOST) can be reached" in mistake("", {"QUARTERDECK_HOST": host}).message
        assert config("expose = true", {"QUARTERDECK_HOST": host}).server.is_local is False

    @pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
    def test_a_host_for_this_machine(self, host: str):
        assert config(host=host).server.is_local


class TestUnknownNames:
    def test_the_nearest_is_offered(self):
        text = "prot = 1\n[profile.x]\nagent = 'pi'\npreambel = 'm'"
        first, second = config(text).warnings
        assert first == f"{PATH}, line 1: unknown key prot; did you mean port?"
        assert second == f"{PATH}, line 4: unknown key profile.x.preambel; did you mean preamble?"

    def test_they_are_told_from_the_top_down(self):
        names = [f"nothing_{one}" for one in "fbdaec"]
        told = config("\n".join(f"{name} = 1" for name in names)).warnings
        assert [line.split(": ")[1].split()[2].rstrip(";") for line in told] == names

    def test_tables_of_the_engine_are_known(self):
        assert config("[mcp.files]\ncommand = 'x'").warnings == ()

    def test_where_nothing_is_near_all_are_listed(self):
        (only,) = config("zzzzzzz = 1").warnings
        assert "; known: host, port" in only

    def test_variables_too_but_not_those_that_are_no_settings(self):
        variables = {"QUARTERDECK_HOME": "/deck", "QUARTERDECK_NONCE": "n", "QUARTERDECK_PROT": "1", "OTHER": "x"}
        (only,) = config("", variables).warnings
        assert only == "unknown variable QUARTERDECK_PROT; did you mean QUARTERDECK_PORT?"


class TestProfiles:
    def test_they_are_read(self):
        review = "[profile.review]\nagent = 'claude'\nmodel = 'm'\nmode = 'plan'\npreamble = 'Look only.'\n"
        text = f"{review}[profile.x]\nagent='acp:a b'"
        found = config(text).profiles
        assert found["review"] == RunProfile(agent="claude", model="m", mode="plan", preamble="Look only.")
        assert found["x"] == RunProfile(agent="acp:a b")


class TestTheFile:
    def test_none_is_an_empty_one(self, tmp_path: Path):
        assert read_config(tmp_path / "config.toml", {}).server.port == 4986
        (tmp_path / "file").touch()
        assert read_config(tmp_path / "file" / "config.toml", {}).server.port == 4986

    @pytest.mark.parametrize("content", [b"\xff\xfe", b"port = 1\n\x00"])
    def test_what_is_no_text_is_said(self, tmp_path: Path, content: bytes):
        (tmp_path / "config.toml").write_bytes(content)
        with pytest.raises(InvalidSetting, match=r"config\.toml"):
            read_config(tmp_path / "config.toml", {})

    def test_a_folder_of_that_name(self, tmp_path: Path):
        (tmp_path / "config.toml").mkdir()
        with pytest.raises(InvalidSetting, match="can't be read: Is a directory"):
            read_config(tmp_path / "config.toml", {})


TABLES = """
[builtin]
model = "anthropic:x"
max_turns = 7
[tools]
sandbox = "bwrap"
allowed_paths = ["/srv", "~/notes"]
installed = ["weather"]
[mcp.files]
command = "x"
args = ["-y"]
[plugin]
planning = true
[plugin.human_approval]
safe_commands = ["make test"]
[provider.anthropic]
api_key = "sk-secret"
[price."anthropic:x"]
input = 1
output = 2.5
"""


class TestTablesOfTheBuiltinAgent:
    def test_defaults(self) -> None:
        file = ConfigFile(PATH, "port = 1")
        assert (file.builtin(), file.tools()) == (BuiltinSettings(), ToolSettings())
        assert (file.mcp_servers(), file.plugins(), file.providers(), file.prices()) == ({}, {}, {}, {})

    def test_all_of_them(self) -> None:
        file = ConfigFile(PATH, TABLES)
        assert file.builtin() == BuiltinSettings(model="anthropic:x", max_turns=7)
        assert file.tools().sandbox == "bwrap"
        assert file.tools().allowed_folders == (Path("/srv"), Path("~/notes").expanduser())
        assert file.tools().installed == ("weather",)
        assert file.mcp_servers() == {"files": McpServer(command="x", args=("-y",))}
        assert file.plugins() == {"planning": True, "human_approval": {"safe_commands": ["make test"]}}
        assert file.providers() == {"anthropic": ProviderSettings(api_key="sk-secret")}
        assert file.prices() == {"anthropic:x": Price(input=1.0, output=2.5)}
        assert config(TABLES).warnings == ()

    def test_keys_are_not_shown(self) -> None:
        assert "sk-secret" not in repr(ConfigFile(PATH, TABLES).providers())
        assert "sk-secret" not in repr(config(TABLES))

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("[tools]\nsandbox = 'bwarp'", "line 2: tools.sandbox: Invalid enum value 'bwarp'; choose one of bwrap"),
            ("[tools]\n\nsandbocks = 'bwrap'", "line 3: tools.sandbocks: unknown key; did you mean sandbox?"),
            ("[tools]\nallowed_paths = ['here']", "line 2: tools.allowed_paths: Expected `str` matching"),
            ("tools = 1", "line 1: tools: Expected a table"),
            ("mcp = 1", "line 1: mcp: Expected tables such as [mcp.NAME]"),
            ("[mcp]\nx = 1", "line 2: mcp.x: Expected a table"),
            ("port = 1\n[mcp.files]\nport = 5", "line 3: mcp.files.port: unknown key"),
            ("[mcp.a]\nurl = 'http://h'\n[mcp.files]\n", "line 3: mcp.files: give a command or a url"),
            ("[builtin]\nmax_turns = 0", "line 2: builtin.max_turns: Expected `int` >= 1"),
            ("plugin = 3", "line 1: plugin: Expected a table"),
            ("[plugin]\nx = 3", "line 2: plugin.x: Expected a boolean or a table"),
            ("[price.'chat:x']\ninput = 1", "line 1: price.chat:x: output is missing"),
            ("[provider.chat]\napi_key = ['sk-secret']", "line 2: provider.chat.api_key: Expected `str`, got `array`"),
        ],
    )
    def test_an_error_names_the_line(self, text: str, said: str) -> None:
        file = ConfigFile(PATH, text)
        with pytest.raises(InvalidSetting) as raised:
            file.builtin(), file.tools(), file.mcp_servers(), file.plugins(), file.providers(), file.prices()
        assert said in raised.value.message
        assert raised.value.hint
        assert "sk-secret" not in raised.value.message

    def test_the_server_starts_with_a_warning(self) -> None:
        (only,) = config("port = 7\n[tools]\nsandbox = 'x'\n").warnings
        assert only.startswith(f"{PATH}, line 3: tools.sandbox: ")
        assert only.endswith("(the built-in agent won't start)")

    def test_the_agent_reads_its_tables_when_a_setting_of_the_server_is_invalid(self, tmp_path: Path) -> None:
        environment = {"QUARTERDECK_HOME": str(tmp_path)}
        assert config_file(environment).tools() == ToolSettings()
        (tmp_path / "config.toml").write_text("port = 'x'\n[tools]\nsandbox = 'bwrap'\n")
        assert config_file(environment).tools().sandbox == "bwrap"


def test_every_key_has_help() -> None:
    kinds = (ServerSettings, Settings, RunProfile, BuiltinSettings, ToolSettings, McpServer, ProviderSettings, Price)
    fields = [field for kind in kinds for field in msgspec.structs.fields(kind)]
    assert [field.name for field in fields if not help_of(field)] == []
    assert mistake("port = 'x'").hint == "Fix the line. Port to listen on. 0 picks a free port."


def test_the_operations_page_lists_every_setting() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text("utf-8")
    fields = [field for kind in (ServerSettings, Settings) for field in msgspec.structs.fields(kind)]
    for field in fields:
        assert re.search(rf"^\| `{field.name}` \| .* \| {re.escape(help_of(field))} \|$", page, re.MULTILINE), (
            field.name
        )
