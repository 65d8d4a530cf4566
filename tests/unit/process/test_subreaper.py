"""Kill real servers, subreapers and agents, and check that none of their processes is left and no other is touched."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quarterdeck.process import identity as identities
from quarterdeck.process import subreaper, tree
from quarterdeck.process.identity import (
    NONCE_VARIABLE,
    Identity,
    find_by_home,
    find_by_nonce,
    is_alive,
    launch_nonce,
    start_time,
)
from quarterdeck.process.subreaper import take_lifeline
from quarterdeck.process.tree import (
    end_leftovers,
    end_leftovers_of_home,
    end_processes,
    find_descendants,
    find_leftovers,
    find_leftovers_of_home,
    kill_processes,
    signal_processes,
    wait_until_gone,
)

SERVER = str(Path(__file__).parents[2] / "support" / "subreaper_server.py")
KEEPER = [sys.executable, "-m", "quarterdeck.process.subreaper", "--"]
#: Tool processes in the agent's group and in sessions of their own, and an agent that ignores signals and input.
SCRIPTS = ["child 300; orphan 300; hang", "child 300; orphan 300; deaf", "orphan 300; crash", "hang"]
SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(300)"]

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="child subreapers, which the keeper is one of, are Linux's"
)


class Kept:
    """A subreaper, its server, and their agents."""

    def __init__(self, nonce: str, scripts: list[str]) -> None:
        self.nonce = nonce
        self.keeper = subprocess.Popen(
            [*KEEPER, sys.executable, SERVER, nonce, *scripts], stdout=subprocess.PIPE, start_new_session=True
        )
        assert self.keeper.stdout is not None
        said = json.loads(self.keeper.stdout.readline())
        self.server = identity(said["server"])
        self.agents: list[int] = said["agents"]
        self.tools: list[int] = said["tools"]

    def left(self) -> list[int]:
        return pids_of_launch(self.nonce)

    def clean(self) -> None:
        self.keeper.kill()
        self.keeper.communicate()
        eventually(lambda: not is_alive(self.server))
        end_leftovers([self.nonce], grace=0)


def pids_of_launch(nonce: str) -> list[int]:
    return [process.pid for process in find_by_nonce([nonce])]


def identity(pid: int) -> Identity:
    return Identity(pid, start_time(pid) or 0, "")


def eventually(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture
def nonce() -> Iterator[str]:
    name = uuid.uuid4().hex
    yield name
    end_leftovers([name], grace=0)


@pytest.fixture
def kept(nonce: str) -> Iterator[Kept]:
    one = Kept(nonce, SCRIPTS)
    yield one
    one.clean()


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that has the nonce of another launch."""
    with sleeper({NONCE_VARIABLE: "somebody else's"}) as child:
        yield child
        assert child.poll() is None


@contextmanager
def sleeper(extra: dict[str, str]) -> Generator[subprocess.Popen[bytes]]:
    with subprocess.Popen(SLEEP, stdout=subprocess.PIPE, env={**os.environ, **extra}) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            yield child
        finally:
            child.kill()


def run(argv: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*KEEPER, *argv], capture_output=True, text=True, timeout=60, cwd=folder)


# --- Killed servers, subreapers and agents


def test_a_killed_server_leaves_nothing(kept: Kept, bystander: subprocess.Popen[bytes]) -> None:
    assert len(kept.agents) == 4
    assert len(kept.tools) == 5
    assert set(kept.tools) < set(kept.left())
    os.kill(kept.server.pid, signal.SIGKILL)
    assert kept.keeper.wait(30) == 128 + signal.SIGKILL
    assert kept.left() == []


def test_a_server_that_leaves_early_leaves_nothing(kept: Kept) -> None:
    kept.keeper.send_signal(signal.SIGTERM)
    assert kept.keeper.wait(30) == 128 + signal.SIGTERM
    assert kept.left() == []


def test_a_server_whose_keeper_is_killed_leaves_and_the_next_start_cleans_up(
    kept: Kept, bystander: subprocess.Popen[bytes]
) -> None:
    kept.keeper.kill()
    kept.keeper.wait()
    eventually(lambda: not is_alive(kept.server))
    assert set(kept.tools) <= {one.pid for one in find_leftovers([kept.nonce])}
    assert end_leftovers(["a launch long gone", kept.nonce], grace=0.2) == []
    eventually(lambda: not kept.left())


def test_when_both_are_killed_the_next_start_cleans_up(kept: Kept, bystander: subprocess.Popen[bytes]) -> None:
    os.kill(kept.server.pid, signal.SIGKILL)
    kept.keeper.kill()
    kept.keeper.wait()
    eventually(lambda: not is_alive(kept.server))
    assert end_leftovers([kept.nonce], grace=0.2) == []
    eventually(lambda: not kept.left())


def test_one_that_forks_as_fast_as_it_dies_is_ended(nonce: str, tmp_path: Path) -> None:
    # The program ends after 30 s, so that a subreaper that fails doesn't leave a busy core behind.
    runaway = (
        "import os, time\nprint('up', flush=True)\nuntil = time.monotonic() + 30\n"
        "while time.monotonic() < until:\n    if os.fork(): os._exit(0)\n"
    )
    started = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {runaway!r}], start_new_session=True)"
    waits = f"{started}.wait()"
    environment = {**os.environ, NONCE_VARIABLE: nonce}
    done = subprocess.run([*KEEPER, sys.executable, "-c", waits], env=environment, timeout=60, capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"up\n")
    assert pids_of_launch(nonce) == []


# --- Exit codes and signals that are passed through


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -15 $$", 143)])
def test_the_exit_code_is_the_servers(tmp_path: Path, script: str, code: int) -> None:
    assert run(["sh", "-c", script], tmp_path).returncode == code


def test_a_command_that_cannot_be_started_is_said(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    for name, code in (("./not-there", 127), ("./text", 126)):
        done = run([name], tmp_path)
        assert (done.returncode, done.stdout) == (code, "")
        assert done.stderr.startswith(f"quarterdeck: cannot start {name}: ")
    assert run([], tmp_path).returncode == 2


#: Prints the number of each signal, and exits with 5 after as many as its argument says. It has no threading.Event:
#: a handler that sets the event while it interrupts the event's own wait() would deadlock.
LISTENER = """
import signal, sys, time
left = [int(sys.argv[1])]
def heard(number, frame):
    print(number, flush=True)
    left[0] -= 1
for one in (1, 2, 15):
    signal.signal(one, heard)
print("up", flush=True)
while left[0]: time.sleep(0.05)
sys.exit(5)
"""


def listening(until: int, *, before: list[str] | None = None) -> subprocess.Popen[str]:
    command = [*(before or []), *KEEPER, sys.executable, "-c", LISTENER, str(until)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    return child


@pytest.mark.usefixtures("hangups_are_heard")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_reaches_the_server_and_its_answer_counts(number: signal.Signals) -> None:
    child = listening(1)
    child.send_signal(number)
    assert child.communicate(timeout=30) == (f"{number.value}\n", None)
    assert child.returncode == 5


def test_a_ctrl_c_of_the_terminal_reaches_the_server_once() -> None:
    child = listening(2)
    os.killpg(child.pid, signal.SIGINT)
    assert child.stdout is not None
    assert child.stdout.readline() == "2\n"
    os.killpg(child.pid, signal.SIGTERM)
    assert child.communicate(timeout=30) == ("15\n", None)


@pytest.mark.usefixtures("hangups_are_heard")
def test_the_same_signal_is_passed_on_once() -> None:
    child = listening(2)
    assert child.stdout is not None
    child.send_signal(signal.SIGTERM)
    assert child.stdout.readline() == "15\n"
    child.send_signal(signal.SIGTERM)
    child.send_signal(signal.SIGHUP)
    assert child.communicate(timeout=30) == ("1\n", None)


def test_a_second_interrupt_hurries() -> None:
    child = listening(99)

    def pressed_again() -> bool:
        child.send_signal(signal.SIGINT)
        return child.poll() is not None

    eventually(pressed_again)
    assert child.communicate() == ("2\n", None)
    assert child.returncode == 137


def test_what_was_to_be_ignored_stays_ignored() -> None:
    child = listening(1, before=["sh", "-c", 'trap "" HUP; exec "$@"', "sh"])
    child.send_signal(signal.SIGHUP)
    child.send_signal(signal.SIGTERM)
    assert child.communicate(timeout=30) == ("15\n", None)


# --- Processes that must not be touched


def test_jobs_that_the_shell_had_before_are_not_ours(nonce: str) -> None:
    job = f"{sys.executable} -c 'import time; time.sleep(300)' >&- 2>&- & echo $!; exec \"$@\""
    orphan = "setsid sleep 300 & exit 4"
    done = subprocess.run(
        ["sh", "-c", job, "sh", *KEEPER, "sh", "-c", orphan],
        env={**os.environ, NONCE_VARIABLE: nonce},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 4
    assert pids_of_launch(nonce) == [int(done.stdout)]


def test_a_pid_that_comes_again_is_left_alone(bystander: subprocess.Popen[bytes]) -> None:
    started = start_time(bystander.pid)
    assert started is not None
    recycled = Identity(bystander.pid, started - 1, "somebody else's")
    assert end_processes([recycled], grace=5) == []
    assert bystander.poll() is None


def test_only_the_named_launches_are_left_over(nonce: str, bystander: subprocess.Popen[bytes]) -> None:
    """Include descendants that dropped the nonce from their environment, and never our own process tree."""
    starts = (
        "import subprocess, sys; p = subprocess.Popen(['sleep', '300'], env={}); print(p.pid, flush=True); p.wait()"
    )
    away = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True)"
    told = subprocess.Popen(
        [sys.executable, "-c", away, starts], env={**os.environ, NONCE_VARIABLE: nonce}, stdout=subprocess.PIPE
    )
    assert told.stdout is not None
    bare = identity(int(told.stdout.readline()))
    told.stdout.close()
    told.wait()
    with sleeper({NONCE_VARIABLE: nonce}) as own:
        assert own.pid in pids_of_launch(nonce)
        found = find_leftovers([nonce])
        assert bare.pid in {one.pid for one in found}
        assert {one.nonce for one in found} == {nonce}
        assert own.pid not in {one.pid for one in found}
        assert end_leftovers([nonce]) == []
        assert own.poll() is None
    eventually(lambda: not is_alive(bare))
    assert find_leftovers([]) == []


# --- All launches of a home


@pytest.fixture
def home() -> Iterator[str]:
    name = uuid.uuid4().hex
    yield name
    end_leftovers_of_home(name, grace=0)


def test_a_home_finds_all_that_its_launches_left_without_a_list(home: str, bystander: subprocess.Popen[bytes]) -> None:
    """Find tools in sessions of their own, one without a parent, and agents that ignore signals, of two launches."""
    launches = [Kept(launch_nonce(home, random), scripts) for random, scripts in (("1", SCRIPTS), ("2", ["hang"]))]
    try:
        for one in launches:
            # Kill the subreaper first, or it would clean up. The server then exits by itself.
            one.keeper.kill()
            one.keeper.wait()
            eventually(lambda one=one: not is_alive(one.server))
        tools = {tool for one in launches for tool in one.tools}
        assert tools <= {one.pid for one in find_leftovers_of_home(home)}
        assert {one.nonce for one in find_leftovers_of_home(home)} == {f"{home}.1", f"{home}.2"}
        assert end_leftovers_of_home(home, grace=0.2) == []
        assert find_leftovers_of_home(home) == []
        assert [one.left() for one in launches] == [[], []]
    finally:
        for one in launches:
            one.clean()


def test_another_home_is_left_alone_though_its_name_begins_alike(home: str) -> None:
    away = (
        "import subprocess as s; p = s.Popen(['sleep', '300'], start_new_session=True, stdout=s.DEVNULL); print(p.pid)"
    )
    others = [launch_nonce(f"{home}0", "1"), launch_nonce(f"0{home}", "1"), home, f"{home}-.1"]
    left = [
        int(subprocess.check_output([sys.executable, "-c", away], env={**os.environ, NONCE_VARIABLE: one}))
        for one in others
    ]
    try:
        assert end_leftovers_of_home(home, grace=0) == []
        assert all(start_time(pid) for pid in left)
        assert end_leftovers_of_home(f"{home}0", grace=0) == []
        eventually(lambda: start_time(left[0]) is None)
        assert all(start_time(pid) for pid in left[1:])
    finally:
        end_leftovers(others, grace=0)


def test_a_deck_started_in_an_agents_shell_spares_that_agent(home: str) -> None:
    """Scan from a process that has a nonce of the home itself, below another process that has one."""
    scans = "from quarterdeck.process import tree; import sys; print(len(tree.find_leftovers_of_home(sys.argv[1])))"
    shell = f"import subprocess, sys; print(subprocess.check_output([sys.executable, '-c', {scans!r}, sys.argv[1]]))"
    done = subprocess.run(
        [sys.executable, "-c", shell, home],
        env={**os.environ, NONCE_VARIABLE: launch_nonce(home, "1")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == str(b"0\n")


@pytest.mark.parametrize("wrong", ["", "a.b", "."])
def test_a_home_that_could_be_the_beginning_of_another_is_refused(wrong: str) -> None:
    for ask in (find_by_home, lambda name: launch_nonce(name, "1")):
        with pytest.raises(ValueError, match="a dot"):
            ask(wrong)


def test_a_kill_hits_exactly_who_is_meant(bystander: subprocess.Popen[bytes]) -> None:
    with sleeper({}) as child:
        meant = identity(child.pid)
        kill_processes([Identity(bystander.pid, identity(bystander.pid).started_at - 1, ""), meant])
        assert child.wait(30) == -signal.SIGKILL
        assert bystander.poll() is None


# --- The lifeline, and platforms without /proc


@pytest.mark.parametrize("value", ["", "x", "99999:1", "0:1", "-1:"])
def test_without_a_keeper_there_is_no_lifeline(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(subreaper.LIFELINE, value)
    assert take_lifeline() is None
    assert subreaper.LIFELINE not in os.environ


def test_a_pipe_of_the_same_number_is_not_the_lifeline(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    monkeypatch.setenv(subreaper.LIFELINE, f"{reader}:{os.fstat(reader).st_ino + 1}")
    assert take_lifeline() is None
    os.close(reader)
    os.close(writer)


def test_it_imports_nothing_heavy() -> None:
    code = "import sys, quarterdeck.process.subreaper; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"asyncio", "msgspec", "subprocess", "pathlib", "click", "dataclasses"} & set(loaded)


@pytest.mark.skipif(not shutil.which("ps"), reason="ps, which serves where there is no /proc, is not installed")
def test_without_proc_the_table_of_ps_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identities, "_HAS_PROC", False)
    monkeypatch.setattr(tree, "_HAS_CHILDREN_FILES", False)
    monkeypatch.delattr(os, "pidfd_open")
    with sleeper({}) as child:
        (found,) = [one for one in find_descendants() if one.pid == child.pid]
        assert end_processes([Identity(found.pid, found.started_at - 60, "")], grace=0.2) == []
        assert child.poll() is None
        assert not wait_until_gone(found, 0.01)
        signal_processes([found], signal.SIGTERM)
        assert wait_until_gone(found, 30)
        assert child.wait() == -signal.SIGTERM
    assert find_leftovers(["any"]) == []


def test_a_signal_and_a_wait_are_for_the_process_that_was_meant() -> None:
    with sleeper({}) as child:
        meant = identity(child.pid)
        other = meant._replace(started_at=meant.started_at + 1)
        signal_processes([other], signal.SIGKILL)
        assert wait_until_gone(other, 0)
        assert not wait_until_gone(meant, 0.01)
        signal_processes([meant], signal.SIGINT)
        assert wait_until_gone(meant, 30)
        assert child.wait() != -signal.SIGKILL
