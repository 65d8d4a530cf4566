"""Kill the deck of one home again and again. Each run checks the kill before it and does the work for the next one."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quarterdeck.process.identity import is_alive
from tests.crash import points
from tests.crash.agent import ENGINE, NAME
from tests.crash.audit import Audit, shown
from tests.crash.ledger import Deed, Ledger
from tests.crash.life import PATIENCE_S, Gone, Life, Refused, left_behind, until
from tests.crash.plan import Plan

#: Commands for agents, after the `write` that every message begins with.
_SCRIPTS = (
    "say hello there",
    "tool ls; say done",
    "think well; say fine",
    "flood 120; say end",
    "flood 400",
    "ask rm",
    "ask ls; say after",
    "question what now",
    "child 300; say it runs",
    "orphan 300; sleep 0.3; say it runs apart",
    "sleep 0.3; say slow",
    "sleep 1.5",
    "fail make",
    "error it broke",
    "exit 3",
)
_SESSIONS = 5
#: The share of sessions that use the built-in agent.
_ENGINES = 0.3
_UNANSWERED = 6
_TRIES = 4


class Voyage:
    """A series of kills of one home. Its choices depend on the seed alone, so that a failure can be repeated."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.seed = seed
        self._random = random.Random(seed)
        self.home = folder / "home"
        self._work = folder / "work"
        self._work.mkdir(parents=True)
        self.ledger = Ledger(folder / "evidence")
        self.kills: Counter[tuple[str, str]] = Counter()
        self._published: list[tuple[str, int, str]] = []
        self._names = 0
        self._life: Life | None = None
        self._steps: list[str] = []
        #: Keeper and deck died together and no deck has opened since, so processes may be left.
        self._may_leave = False

    def run(self, plans: list[Plan]) -> None:
        """Execute each plan, then check the last kill in a final run that closes normally."""
        try:
            for plan in plans:
                self._steps = []
                self._live_again(plan)
            self._prove_all()
        except BaseException:
            if self._life is not None:
                self._life.abandon()
            raise

    # --- one run of the deck

    def _live_again(self, plan: Plan) -> None:
        """Run the deck until the point is reached. A run misses it if it needs an agent or a repair and there is none."""
        for _ in range(_TRIES):
            self._live(plan)
            if plan.point == "random" or (self._life is not None and self._life.reached):
                return
        raise AssertionError(f"seed {self.seed}: {plan} was not reached")

    def _live(self, plan: Plan) -> None:
        if plan.point in points.AT_MIGRATION:
            self._make_old()
        chosen = "" if plan.point == "random" else plan.point
        life = self._life = Life(self.home, point=chosen, hit=plan.hit, victim=plan.victim)
        dies_early = plan.point == "random" and plan.victim not in ("agent", "child") and self._random.random() < 0.4
        if dies_early:
            time.sleep(self._random.random() * 0.7)
            life.kill(plan.victim)
        elif life.wait_open():
            with contextlib.suppress(Gone):
                self._after_opening(life)
                self._spend(life, plan)
        self._end(life, plan)

    def _spend(self, life: Life, plan: Plan) -> None:
        if plan.victim in ("agent", "child"):
            self._lose_one(life, plan)
        elif plan.point == "random":
            end = time.monotonic() + self._random.random() * 1.0
            while time.monotonic() < end:
                self._step(life)
            life.kill(plan.victim)
        elif plan.point in points.AT_CLOSE:
            self._work_until(life, lambda: any(_runs(pid) for pid in list(life.agents.values())))
            for _ in range(self._random.randrange(6)):
                self._step(life)
            life.send("close")
            until(f"{plan.point} is reached", lambda: life.reached or life.is_over)
        else:
            self._work_until(life, lambda: life.reached)

    def _work_until(self, life: Life, happened: Callable[[], Any], work: Callable[[], None] | None = None) -> None:
        """Work until the condition holds, the deck dies or time runs out."""
        end = time.monotonic() + PATIENCE_S
        while not happened() and not life.is_over and time.monotonic() < end:
            (work or (lambda: self._step(life)))()
            self._answer_some(life)

    def _end(self, life: Life, plan: Plan) -> None:
        assert life.refused is None, f"seed {self.seed}: {plan}: {life.refused}"
        if plan.victim in ("agent", "child"):
            return
        if plan.point != "random" and not life.reached and not life.is_over:
            life.kill("deck")
        life.wait_end()
        if plan.point == "random" or life.reached:
            self.kills[plan.point, plan.victim] += 1
        self.ledger.settle()
        self._published = life.published
        self._may_leave = self._may_leave or plan.victim == "both" or life.deck is None
        if not self._may_leave and (left := left_behind(self.home)):
            raise AssertionError(f"left behind after {plan}: {left}")

    def _after_opening(self, life: Life) -> None:
        """Check that the kill before left no processes and that nothing acknowledged is lost, then repeat commands."""
        if left := left_behind(self.home):
            raise AssertionError(f"left behind by the deck before: {left}")
        self._may_leave = False
        states = life.ask("states")
        self._judge(Audit(self.home, self.ledger).at_rest(states, self._published))
        self._published = []
        self._repeat(life)
        self._wake(life, states)

    def _judge(self, findings: list[str]) -> None:
        if findings:
            raise AssertionError(f"seed {self.seed}, after {self._steps[-30:]}:\n{shown(findings)}")

    def _repeat(self, life: Life) -> None:
        """Repeat commands of unknown outcome, and some that were answered: the same key must get the same answer."""
        known = [deed for deed in self.ledger.deeds if deed.is_done]
        chosen = self._random.sample(known, min(4, len(known)))
        for deed in [*self.ledger.unknown(), *chosen]:
            if not self.ledger.may_be_gone(deed.session):
                self._do(life, deed)
        for deed in self.ledger.deeds:
            if deed.future is not None:
                with contextlib.suppress(Refused, Gone):
                    deed.future.result(30)
        self.ledger.settle()

    def _wake(self, life: Life, states: dict[str, Any]) -> None:
        """Sometimes resume all interrupted sessions at once, and sometimes check that one of them still works."""
        with contextlib.suppress(Gone):
            if states and self._random.random() < 0.5:
                life.ask("resume_interrupted")
        if states and self._random.random() < 0.3:
            with contextlib.suppress(Gone):
                self._prove(life, self._random.choice(sorted(states)))

    # --- work

    def _step(self, life: Life) -> None:
        """Send one random command, as a user might."""
        self.ledger.settle()
        names = self._names_of_sessions()
        waiting = [deed.future for deed in self.ledger.deeds if deed.future is not None]
        if len(waiting) >= _UNANSWERED:
            with contextlib.suppress(Exception):
                waiting[0].result(5)
            return
        if len(names) < _SESSIONS and (not names or self._random.random() < 0.3):
            self._create(life)
            return
        if not names:
            time.sleep(0.01)
            return
        session = self._random.choice(names)
        weights = [weight for weight, _ in _DEEDS]
        deed = self._random.choices([make for _, make in _DEEDS], weights)[0]
        deed(self, life, session)
        time.sleep(self._random.random() * 0.05)

    def _names_of_sessions(self) -> list[str]:
        """Return the sessions that still accept commands."""
        done = [one for one in self.ledger.deeds if one.is_done]
        away = {one.session for one in done if one.method in ("archive", "cancel")}
        created = [one.session for one in done if one.method == "create"]
        return [name for name in created if name not in away and not self.ledger.may_be_gone(name)]

    def _key(self) -> str:
        self._names += 1
        return f"k{self.seed}-{self._names}"

    def _do(self, life: Life, deed: Deed) -> None:
        if deed.future is not None:
            return
        if deed.method == "create":
            deed.future = life.send("create", client_id=deed.key, **deed.fields)
        else:
            deed.future = life.send(
                "command", session=deed.session, method=deed.method, client_id=deed.key, **deed.fields
            )

    def _new(self, life: Life, session: str, method: str, fields: dict[str, Any]) -> Deed:
        deed = Deed(session, method, self._key(), fields)
        self.ledger.deeds.append(deed)
        self._steps.append(repr(deed))
        self._do(life, deed)
        return deed

    def _script(self, words: str = "") -> str:
        return f"write {self.ledger.evidence} {self._key()}; {words or self._random.choice(_SCRIPTS)}"

    def _create(self, life: Life) -> None:
        pending = [one for one in self.ledger.deeds if one.method == "create" and one.future is not None]
        if pending:
            return
        prompt = self._script() if self._random.random() < 0.8 else None
        agent = ENGINE if self._random.random() < _ENGINES else NAME
        self._new(life, "", "create", {"agent": agent, "prompt": prompt, "cwd": str(self._work)})

    def _prompt(self, life: Life, session: str) -> None:
        self._new(life, session, "prompt", {"text": self._script()})

    def _steer(self, life: Life, session: str) -> None:
        self._new(life, session, "steer", {"text": self._script("say steered")})

    def _rename(self, life: Life, session: str) -> None:
        self._new(life, session, "rename", {"name": f"name {self._key()}"})

    def _mark(self, life: Life, session: str) -> None:
        self._names += 1
        self._new(life, session, "mark", {"snoozed_until": self._names})

    def _abort(self, life: Life, session: str) -> None:
        self._new(life, session, "abort", {"clear_queue": self._random.random() < 0.3})

    def _resume(self, life: Life, session: str) -> None:
        self._new(life, session, "resume", {})

    def _archive(self, life: Life, session: str) -> None:
        self._new(life, session, self._random.choice(["archive", "cancel"]), {})

    def _model(self, life: Life, session: str) -> None:
        self._new(life, session, "switch_model", {"model": f"m{self._key()}"})

    def _delete(self, life: Life, session: str) -> None:
        if any(deed.future is not None and deed.session == session for deed in self.ledger.deeds):
            return
        self.ledger.deleting(session)
        self._steps.append(f"delete {session}")
        try:
            life.ask("command", session=session, method="delete")
        except Refused:
            self.ledger.kept(session)
        except Gone:
            pass
        else:
            self.ledger.deleted(session)

    def _answer(self, life: Life, session: str) -> None:
        for gate, kind in life.gates.pop(session, ()):
            if kind == "question":
                self._new(life, session, "respond", {"gate_id": gate, "answer": f"answer {self._key()}"})
            else:
                self._new(life, session, self._random.choice(["approve", "approve", "reject"]), {"gate_id": gate})

    def _answer_some(self, life: Life) -> None:
        for session in list(life.gates):
            if self._random.random() < 0.1:
                self._answer(life, session)

    # --- kills of agents and tools

    def _lose_one(self, life: Life, plan: Plan) -> None:
        """Kill several agents or tools in one run of the deck, then the deck."""
        left, until_when = plan.hit, time.monotonic() + 2 * PATIENCE_S
        while left:
            assert time.monotonic() < until_when, f"seed {self.seed}: {plan}: nothing runs"
            self._work_until(life, lambda: any(_runs(pid) for pid in list(life.agents.values())))
            for _ in range(self._random.randrange(6)):
                self._step(life)
            died = self._kill_agent(life) if plan.victim == "agent" else self._kill_child(life)
            self.kills[plan.point, plan.victim] += died
            left -= died
        life.kill("deck")
        life.wait_end()
        self.kills["random", "deck"] += 1
        self.ledger.settle()
        self._published = life.published

    def _kill_agent(self, life: Life) -> bool:
        """Kill an agent and wait until its process tree is gone. Return False if none was running."""
        running = [(session, pid) for session, pid in list(life.agents.items()) if _runs(pid)]
        if not running:
            return False
        session, pid = self._random.choice(running)
        if not _killed(pid):
            return False
        until(f"the deck tells that {session} lost its agent {pid}", lambda: life.agents.get(session) != pid)
        for one in left_behind(self.home):
            if one.nonce in _nonces(self.home, pid):
                until(f"what the dead agent left is ended: {one}", lambda one=one: not is_alive(one))
        return True

    def _kill_child(self, life: Life) -> bool:
        """Kill a tool's process, whether or not its agent notices. The deck must still show the actual state."""

        def tools() -> list[int]:
            return [one.pid for one in left_behind(self.home) if one.pid not in list(life.agents.values())]

        self._work_until(life, tools, lambda: self._use_a_tool(life))
        found = tools()
        died = bool(found) and _killed(self._random.choice(found))
        self._true_now(life)
        return died

    def _use_a_tool(self, life: Life) -> None:
        """Interrupt a session and let it start a process."""
        session = self._random.choice(self._names_of_sessions() or [""])
        if session:
            self._new(life, session, "abort", {"clear_queue": True})
            self._new(life, session, "prompt", {"text": self._script("child 300; orphan 300; say it runs")})
            time.sleep(0.3)
        else:
            self._step(life)

    def _true_now(self, life: Life) -> None:
        """Check that every session shown with a process has one."""
        for name, state in life.ask("states").items():
            pid = life.agents.get(name)
            if state["process"] == "up" and pid is not None and not _runs(pid):
                until("the deck tells that a process is gone", lambda name=name: name not in life.agents)

    # --- sessions still work

    def _prove(self, life: Life, session: str) -> None:
        """Check that a session which can continue accepts a new message, and that its agent executes it."""
        state = life.ask("states").get(session)
        if state is None or state["lifecycle"] == "archived" or not _can_go_on(state):
            return
        if self._random.random() < 0.7:
            self._new(life, session, "abort", {"clear_queue": True})
        text = self._script("say alive")
        token = text.split(";")[0].split()[-1]
        deed = self._new(life, session, "prompt", {"text": text})
        end = time.monotonic() + 45
        while token not in self.ledger.executed() and not life.is_over:
            self._answer(life, session)
            deed.settle()
            if deed.is_refused:
                return
            if deed.is_done and deed.answer["disposition"] == "answered":
                # The message was used as the answer to a question.
                self._prove(life, session)
                return
            if self._went_nowhere(life, session, deed):
                self._prove(life, session)
                return
            state = life.ask("states")[session]
            if time.monotonic() > end:
                raise AssertionError(f"seed {self.seed}: {session} does not answer {token}: {state}")
            self._push(life, session, token, deed, state)
            time.sleep(0.05)

    def _went_nowhere(self, life: Life, session: str, deed: Deed) -> bool:
        """Return whether an abort overtook this steering message: the agent has it, and reads it in its next turn."""
        state = life.state(session)
        return state["run"] == "idle" and [(deed.answer or {}).get("message_id"), "delivered"] in state["queue"]

    def _push(self, life: Life, session: str, token: str, deed: Deed, state: dict[str, Any]) -> None:
        """Do what only a user does: retry after a failure, and resend a message of unknown outcome."""
        if state["phase"] == "error" and state["queue"]:
            self._new(life, session, "retry", {})
        item = (deed.answer or {}).get("message_id")
        if [item, "unknown"] in state["queue"] and state["run"] == "idle":
            self.ledger.sent_again(token)
            self._new(life, session, "resend", {"item_id": item})

    def _prove_all(self) -> None:
        life = self._life = Life(self.home)
        assert life.wait_open(), life.refused
        self._after_opening(life)
        for session in sorted(life.ask("states")):
            self._prove(life, session)
        life.ask("close")
        life.wait_end()
        self.ledger.settle()
        self._published = life.published
        assert not left_behind(self.home), left_behind(self.home)
        self._judge(Audit(self.home, self.ledger).at_rest(None, life.published))

    # --- an older release's home

    def _make_old(self) -> None:
        """Revert the schema changes of later releases."""
        path = self.home / "quarterdeck.db"
        if not path.exists():
            return
        with contextlib.closing(sqlite3.connect(path)) as store:
            if store.execute("PRAGMA user_version").fetchone()[0] < 4:
                # The deck died before it had migrated the store.
                return
            store.executescript(
                "DROP TABLE tombstone; DROP INDEX event_rare; DROP INDEX event_rare_all;"
                "ALTER TABLE event DROP COLUMN is_rare;"
                "ALTER TABLE session DROP COLUMN last_gate; PRAGMA user_version = 1;"
            )


def _can_go_on(state: dict[str, Any]) -> bool:
    return state["lifecycle"] == "active" or (state["lifecycle"] == "suspended" and state["resumable"])


def _runs(pid: int) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] not in b"ZX"
    return False


def _killed(pid: int) -> bool:
    """Kill a process. Return False if it had exited already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _nonces(home: Path, pid: int) -> set[str]:
    """Return the nonces of the launches with this pid, from the log."""
    path = home / "quarterdeck.db"
    query = (
        "SELECT json_extract(CAST(body AS TEXT), '$.nonce') FROM event WHERE type = 'process_starting'"
        " AND json_extract(CAST(body AS TEXT), '$.pid') = ?"
    )
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as store:
        return {row[0] for row in store.execute(query, (pid,))}


_DEEDS = (
    (45, Voyage._prompt),
    (15, Voyage._answer),
    (8, Voyage._steer),
    (8, Voyage._rename),
    (6, Voyage._mark),
    (5, Voyage._abort),
    (6, Voyage._resume),
    (2, Voyage._archive),
    (2, Voyage._model),
    (2, Voyage._delete),
)
