"""Test reading the environment from the login shell, with real programs as shells, some of them broken."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import cast

import pytest

from quarterdeck.deck.environment import LOST, Environments
from quarterdeck.deck.login import ASKING, LoginShell
from quarterdeck.events import Event
from quarterdeck.log.base import Log
from quarterdeck.process.identity import Identity, is_alive, start_time
from tests.support.decks import at_home, eventually, until

#: A normal shell: it runs COMMAND of `-l -i -c COMMAND` or `-l -c COMMAND`.
USUAL = 'for last; do :; done; eval "$last"'


class _EmptyLog:
    async def read(self, *_: object) -> list[Event]:
        return []


def shell(folder: Path, text: str) -> str:
    path = folder / "shell"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def asked(folder: Path, text: str, limit_s: float = 20.0, **more: str) -> LoginShell:
    return LoginShell({"HOME": str(folder), "SHELL": shell(folder, text), **more}, limit_s)


async def test_what_it_exports_and_nothing_of_whoever_started_us(tmp_path: Path):
    own = {"SSH_AUTH_SOCK": "/agent", "LC_TIME": "C", "OF_SOME_SHELL": "no", "PATH": "/odd", "VIRTUAL_ENV": "/no"}
    login = asked(tmp_path, f"echo welcome; export TOOLS=/tools LINES_='a\nb=c'; PATH=/tools/bin:$PATH; {USUAL}", **own)
    assert login.source == "server"
    found = await login.current()
    assert (login.source, login.problem) == ("login_shell", "")
    assert found["TOOLS"] == "/tools"
    assert found["LINES_"] == "a\nb=c"
    assert found["PATH"] == "/tools/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    assert (found["HOME"], found["SHELL"]) == (str(tmp_path), login.shell)
    assert (found["SSH_AUTH_SOCK"], found["LC_TIME"]) == ("/agent", "C")
    assert not found.keys() & {"OF_SOME_SHELL", "VIRTUAL_ENV", "PWD", "SHLVL", "_", ASKING}
    assert login.variables == len(found)
    assert login.asked_at


async def test_a_real_shell_reads_its_files_and_is_asked_again_when_they_change(tmp_path: Path):
    (tmp_path / ".bash_profile").write_text("echo noise; export COUNT=$(echo x >> asked; wc -l < asked)\n")
    login = LoginShell({"HOME": str(tmp_path), "SHELL": "/bin/bash"}, 20.0)
    assert (await login.current())["COUNT"].strip() == "1"
    both = await asyncio.gather(login.current(), login.current())
    assert [one["COUNT"].strip() for one in both] == ["1", "1"]
    await asyncio.gather(login.refresh(), login.refresh())
    assert (await login.current())["COUNT"].strip() == "2"
    (tmp_path / ".bashrc").write_text("export MORE=1\n")
    assert (await login.current())["COUNT"].strip() == "3"


async def test_one_that_is_not_interactive_is_asked_without(tmp_path: Path):
    login = asked(tmp_path, f'case " $* " in *" -i "*) exit 3;; esac; export PLAIN=1; {USUAL}')
    assert (await login.current())["PLAIN"] == "1"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("exit 7", "exited with 7 without printing"),
        ("echo something else", "exited with 0 without printing"),
        ("yes yes yes yes", "without printing its environment"),
        (f"unset PATH; {USUAL}", "printed no PATH"),
        ("kill -9 $$", "exited with -9"),
    ],
)
async def test_one_that_cannot_say_is_a_problem_that_is_told(tmp_path: Path, text: str, why: str):
    login = asked(tmp_path, text, OWN="1")
    assert (await login.current())["OWN"] == "1"
    assert login.source == "server"
    assert why in login.problem
    assert login.shell in login.problem
    before = login.asked_at
    # Nothing changed, so the shell isn't run again.
    await login.current()
    assert login.asked_at == before
    given = await Environments(login, cast(Log, _EmptyLog())).for_session("s")
    assert "the server's own" in given.notice
    assert why in given.notice
    shell(tmp_path, USUAL)
    await login.refresh()
    assert (login.source, login.problem) == ("login_shell", "")


@pytest.mark.parametrize("path", ["/no/such/shell", "/etc/passwd", "/", "a\0b"])
async def test_no_shell_at_all(tmp_path: Path, path: str):
    login = LoginShell({"HOME": str(tmp_path / "none"), "SHELL": path})
    await login.current()
    assert login.source == "server"
    assert login.problem


async def test_one_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path):
    login = asked(tmp_path, "sleep 600 & echo $! > child; echo $$ > parent; wait", 1.5)
    await login.current()
    assert "no answer within 1.5 seconds" in login.problem
    for name in ("child", "parent"):
        process = int((tmp_path / name).read_text())
        left = Identity(process, start_time(process) or 0, "")
        await eventually(lambda left=left: not is_alive(left))


async def test_one_that_hangs_may_give_back_what_it_holds(tmp_path: Path):
    login = asked(
        tmp_path, "touch lock; trap 'rm lock' EXIT; trap 'exit 1' HUP TERM; while :; do sleep 0.05; done", 1.5
    )
    await login.current()
    assert "no answer" in login.problem
    assert not (tmp_path / "lock").exists()


async def test_what_its_files_started_for_the_user_stays_and_keeps_nobody(tmp_path: Path):
    login = asked(tmp_path, f"setsid sleep 600 & echo $! > child; {USUAL}")
    await login.current()
    assert login.source == "login_shell"
    os.kill(int((tmp_path / "child").read_text()), 9)


async def test_what_it_said_before_is_better_than_nothing(tmp_path: Path):
    login = asked(tmp_path, f"export A=1; {USUAL}")
    await login.current()
    shell(tmp_path, "exit 1")
    await login.refresh()
    assert (await login.current())["A"] == "1"
    assert login.source == "login_shell"
    assert login.problem
    environments = Environments(login, cast(Log, _EmptyLog()))
    assert "its previous output" in (await environments.for_session("s")).notice


async def test_closing_does_not_wait_for_it(tmp_path: Path):
    login = asked(tmp_path, "sleep 600")
    asking = asyncio.create_task(login.refresh())
    await asyncio.sleep(0)
    await login.close()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_a_session_gets_its_own_or_that_of_the_shell_and_says_when_its_own_is_gone(tmp_path: Path):
    login = asked(tmp_path, f"export WHO=shell; {USUAL}")
    own = {"PATH": os.environ["PATH"], "WHO": "caller secret"}
    async with at_home(tmp_path, environment=login) as deck:
        one = await deck.create("test", "echo-env WHO", cwd=str(tmp_path), env=own)
        two = await deck.create("test", "echo-env WHO", cwd=str(tmp_path))
        for session, who in ((one, "caller secret"), (two, "shell")):
            await until(session, lambda view, who=who: view.state.last_text.strip() == who)
        live = await deck.load_session(one.id)
        await live.launcher.stop()
        await one.prompt("echo-env WHO; say again")
        await until(one, lambda view: view.state.last_text.strip() == "again")
        said = [entry.text.strip() for entry in await one.timeline()]
        assert said.count("caller secret") == 2
        assert LOST not in said
    login = asked(tmp_path, f"export WHO=shell; {USUAL}")
    async with at_home(tmp_path, environment=login) as deck:
        session = deck.session(one.id)
        await session.prompt("echo-env WHO")
        await until(session, lambda view: view.state.last_text.strip() == "shell")
        assert LOST in [entry.text for entry in await session.timeline()]
