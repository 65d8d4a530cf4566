"""Test how providers' keys and addresses are found, and check that a key appears nowhere else."""

from __future__ import annotations

import asyncio
import logging
import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest

from quarterdeck.config import InvalidSetting
from quarterdeck.engine.model import Request
from quarterdeck.engine.providers import (
    InvalidModel,
    InvalidProvider,
    MissingKey,
    NoSuchProvider,
    create_model,
    list_providers,
)
from quarterdeck.engine.providers.credentials import KNOWN_PROVIDERS, find_credentials
from quarterdeck.events import TokenUsage
from quarterdeck.testing.model import ScriptedModel
from quarterdeck.testing.script import Fault, Script, ScriptedUsage, Step, make_script
from tests.support.models import KEY, WIRES, asked, chunks, finished, until_it_fails


def at_home(folder: Path, text: str = "", **environment: str) -> dict[str, str]:
    if text:
        (folder / "config.toml").write_text(text)
    return {"QUARTERDECK_HOME": str(folder), **environment}


KEYS = [
    ("anthropic", "ANTHROPIC_API_KEY"),
    ("openai", "OPENAI_API_KEY"),
    ("chat", "OPENAI_API_KEY"),
    ("gemini", "GEMINI_API_KEY"),
    ("gemini", "GOOGLE_API_KEY"),
    ("openrouter", "OPENROUTER_API_KEY"),
]


@pytest.mark.parametrize(("name", "variable"), KEYS)
def test_a_key_of_the_environment(tmp_path: Path, name: str, variable: str) -> None:
    found = find_credentials(name, {}, at_home(tmp_path, **{variable: f" {KEY}\n"}))
    assert (found.api_key, found.base_url) == (KEY, KNOWN_PROVIDERS[name].base_url)
    with pytest.raises(MissingKey) as error:
        find_credentials(name, {}, at_home(tmp_path, **{variable: "  "}))
    assert variable in error.value.hint
    assert f"[provider.{name}]" in error.value.hint


def test_the_caller_is_before_the_file_and_the_file_before_the_environment(tmp_path: Path) -> None:
    text = '[provider.anthropic]\napi_key = "file"\nbase_url = "http://file.test/"\n'
    env = at_home(tmp_path, text, ANTHROPIC_API_KEY="env", ANTHROPIC_BASE_URL="http://env.test")
    found = find_credentials("anthropic", {"api_key": "mine", "base_url": "http://mine.test"}, env)
    assert (found.api_key, found.base_url) == ("mine", "http://mine.test")
    found = find_credentials("anthropic", {}, env)
    assert (found.api_key, found.base_url) == ("file", "http://file.test")
    (tmp_path / "config.toml").unlink()
    found = find_credentials("anthropic", {}, env)
    assert (found.api_key, found.base_url) == ("env", "http://env.test")


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    env = at_home(tmp_path, '[provider.openai]\napi_key = "one"\n')
    assert find_credentials("openai", {}, env).api_key == "one"
    (tmp_path / "config.toml").write_text('[provider.openai]\napi_key = "another"\n')
    assert find_credentials("openai", {}, env).api_key == "another"


def test_openais_key_does_not_go_to_another_server(tmp_path: Path) -> None:
    found = find_credentials("chat", {"base_url": "http://lab.test/v1"}, at_home(tmp_path, OPENAI_API_KEY=KEY))
    assert found.api_key == ""
    env = at_home(tmp_path, '[provider.lab]\nkind = "chat"\nbase_url = "http://lab.test/v1"\n', OPENAI_API_KEY=KEY)
    assert find_credentials("lab", {}, env).api_key == ""


def test_a_server_of_ones_own_needs_no_key(tmp_path: Path) -> None:
    assert find_credentials("ollama", {}, at_home(tmp_path)).api_key == ""
    assert find_credentials("anthropic", {"base_url": "http://gateway.test"}, at_home(tmp_path)).api_key == ""


BAD = [
    ("no:x", "", NoSuchProvider, "no provider 'no'"),
    ("gpt-5", "", InvalidModel, "which provider"),
    (":x", "", InvalidModel, "which provider"),
    ("ollama:", "", InvalidModel, "which model"),
    ("anthropic:x", "", MissingKey, "no key for anthropic"),
    ("lab:x", '[provider.lab]\nkind = "chat"\n', InvalidProvider, "needs kind and base_url"),
    ("lab:x", '[provider.lab]\nkind = "carrier pigeon"\nbase_url = "http://a.test"\n', InvalidProvider, "needs kind"),
    ("lab:x", '[provider.lab]\nbase_url = "http://a.test"\n', InvalidProvider, "needs kind"),
    ("chat:x", '[provider.chat]\nbase_url = "ftp://a.test"\n', InvalidProvider, "isn't a web address"),
    ("chat:x", '[provider.chat]\nbase_url = "http://"\n', InvalidProvider, "isn't a web address"),
    ("chat:x", '[provider.chat]\nbase_url = "http://a.test:99999"\n', InvalidProvider, "isn't a web address"),
    ("chat:x", '[provider.chat]\nbase_url = "http://[a"\n', InvalidProvider, "isn't a web address"),
    ("chat:x", '[provider.chat]\napi_key = "a\\nb"\n', InvalidProvider, "characters"),
    ("chat:x", f"[provider.chat]\napi_key = {KEY}\n", InvalidSetting, "config.toml"),
    ("chat:x", f'[provider.chat]\napi_key = ["{KEY}"]\n', InvalidSetting, "config.toml"),
    ("chat:x", f'[provider.chat]\nkey = "{KEY}"\n', InvalidSetting, "provider.chat.key: unknown key"),
    ("chat:x", '[price."chat:x"]\ninput = "much"\n', InvalidSetting, "config.toml"),
]


@pytest.mark.parametrize(("name", "text", "kind", "says"), BAD)
def test_what_cannot_be_used_is_a_typed_error_with_a_hint(
    tmp_path: Path, name: str, text: str, kind: type[Any], says: str
) -> None:
    with pytest.raises(kind) as error:
        create_model(name, {}, at_home(tmp_path, text))
    assert says in error.value.message
    assert error.value.hint
    assert error.value.code != "error"
    assert KEY not in error.value.message + error.value.hint


@pytest.mark.parametrize("options", [{"api_key": 7}, {"base_url": []}, {"headers": 1}, {"headers": {"a": 1}}])
def test_options_of_wrong_types(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidProvider):
        create_model("chat:x", options, at_home(tmp_path))


def test_a_file_that_is_a_folder_or_no_text(tmp_path: Path) -> None:
    (tmp_path / "config.toml").mkdir()
    with pytest.raises(InvalidSetting, match="can't be read"):
        find_credentials("chat", {}, at_home(tmp_path))
    (tmp_path / "config.toml").rmdir()
    (tmp_path / "config.toml").write_bytes(b"\xff")
    with pytest.raises(InvalidSetting, match="UTF-8"):
        find_credentials("chat", {}, at_home(tmp_path))


def test_what_is_configured_is_listed_without_keys(tmp_path: Path) -> None:
    text = '[provider.lab]\nkind = "chat"\nbase_url = "http://lab.test/v1"\n'
    listed = {one.name: one for one in list_providers(at_home(tmp_path, text, GEMINI_API_KEY=KEY))}
    assert [name for name, one in listed.items() if one.is_ready] == ["demo", "gemini", "ollama", "lab"]
    assert "ANTHROPIC_API_KEY" in listed["anthropic"].hint
    assert listed["lab"].base_url == "http://lab.test/v1"
    assert KEY not in repr(listed)


async def test_a_named_server_with_headers_and_a_price(tmp_path: Path) -> None:
    usage = ScriptedUsage(input=1_000_000, output=200_000, cache_read=500_000)
    async with ScriptedModel(make_script(Step(text="x", usage=usage))) as scripted_model:
        text = (
            f'[provider.lab]\nkind = "chat"\nbase_url = "{scripted_model.openai_url}"\nheaders = {{ x-team = "a" }}\n'
            '[price."lab:m"]\ninput = 2.0\noutput = 10.0\ncache_read = 0.5\n'
        )
        model, name = create_model("lab:m", {"headers": {"x-me": "b"}, "seed": 7}, at_home(tmp_path, text))
        said = await chunks(model, asked("chat"))
        # The price is for another model name, so there is no cost.
        assert finished(said).usage == TokenUsage(input=1_000_000, output=200_000, cache_read=500_000)
        said = await chunks(model, Request(model=name, messages=asked("chat").messages))
        assert finished(said).usage == TokenUsage(
            input=1_000_000, output=200_000, cache_read=500_000, cost_usd=pytest.approx(4.25)
        )
        seen = scripted_model.requests[-1]
        assert (seen.headers["x-team"], seen.headers["x-me"], seen.body["seed"]) == ("a", "b", 7)
        assert "authorization" not in seen.headers


@pytest.mark.parametrize("wire", WIRES)
def test_a_key_is_sent_as_a_header_and_is_nowhere_else(
    wire: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Search everything that successful and failed requests expose: errors, logs, tracebacks, reprs and URLs."""
    seen: list[str] = []

    async def main() -> None:
        script = Script(key=KEY, default=(Step(text="x", faults=_FAULTS),))
        async with ScriptedModel(script) as scripted_model:
            url = scripted_model.openai_url if wire in ("openai", "chat") else scripted_model.url
            model, _ = create_model(f"{wire}:x", {"base_url": url, "api_key": KEY}, at_home(tmp_path))
            for _ in range(len(_FAULTS) + 1):
                said, error = await until_it_fails(model, asked(wire, options={"api_key": KEY}))
                seen.append(repr(said))
                if error is not None:
                    seen.extend(traceback.format_exception(error))
                    seen.extend((repr(error), repr(error.as_json()), repr(vars(error)), repr(pickle.dumps(error.args))))
            assert error is None
            assert all(one.key == KEY for one in scripted_model.requests)
            seen.extend(repr((one.path, one.body)) for one in scripted_model.requests)
            seen.extend((repr(model), str(model), repr(getattr(model, "credentials", None))))

    with caplog.at_level(logging.DEBUG):
        asyncio.run(main(), debug=True)
    seen.extend((caplog.text, *capfd.readouterr()))
    assert not [text for text in seen if KEY in text or KEY[-12:] in text]


_FAULTS = (
    *(Fault(kind="http", status=status, message=f"bad key {KEY}") for status in (400, 401, 402, 403, 404, 429, 500)),
    Fault(kind="http", status=500, body=f"<p>{KEY}</p>"),
    Fault(kind="http", status=502, body=KEY),
    Fault(kind="error", message=f"it was {KEY}"),
    Fault(kind="drop"),
    Fault(kind="garbage"),
)
