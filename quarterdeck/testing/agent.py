"""A scripted agent: a real process that does what a test tells it, over JSON lines.

    python -m quarterdeck.testing.agent [--resume ID]

It says `{"type": "ready", "session": ID}` first. A prompt `{"op": "prompt", "id", "text"}` is a script of words, obeyed
one after the other, each in a line of its own or after a semicolon:

    say TEXT            one reply, streamed word by word        think TEXT        the same as reasoning
    tool NAME           a call that ends well                   fail NAME         a call that ends badly
    ask NAME            a call that wants an approval           question TEXT     wants an answer
    dialog METHOD TITLE an extension wants something            background SECONDS  a shell that outlives the turn
    child SECONDS       a tool process that lives that long     orphan SECONDS    the same in a session of its own
    sleep SECONDS       busy, silently                          flood COUNT       that many pieces of text at once
    write FILE TEXT     adds a line to a file                   echo-env NAME     says what its environment holds
    recall              says how many prompts it was given      long BYTES        a line of that many letters
    stderr TEXT         says it on standard error               error TEXT        the turn fails
    hang                busy until interrupted                  deaf              hears no line and no signal, ever
    ignore bye|eof|term one way to end it does not work         exit CODE         ends the process
    crash               kills itself

Anything else is said back. `{"op": "steer", "id", "text"}` is read between two words, `{"op": "interrupt"}` at once: it
ends every prompt that was sent before it and none that comes after. `{"op": "bye"}` interrupts, too, and ends the process.

The environment decides how it starts: QD_TEST_START_DELAY (seconds before it is ready), QD_TEST_NEVER_READY (it never
is), QD_TEST_BAD_START (the code with which it leaves instead). QD_TEST_STATE is a folder in which it remembers what it
was asked in each session; there, a session that it never had cannot be resumed.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from typing import Any, BinaryIO, cast
from urllib.parse import quote

Line = dict[str, Any]


class Interrupted(Exception):
    """The turn is to end now."""


class Agent:
    """Reads on one thread, works on the other; both write whole lines."""

    def __init__(self, session: str, prompts: int = 0) -> None:
        self.session = session
        self.prompts = prompts
        self.inbox: queue.Queue[Line | None] = queue.Queue()
        self.asides: queue.Queue[Line] = queue.Queue()
        self.answers: queue.Queue[Line] = queue.Queue()
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.given = self.stopped = self.current = 0
        self.count = 0
        self.ignores: set[str] = set()
        self.is_deaf = False
        self.children: list[subprocess.Popen[bytes]] = []

    def say(self, kind: str, **fields: Any) -> None:
        with self.lock:
            sys.stdout.write(json.dumps({"type": kind, **fields}) + "\n")
            sys.stdout.flush()

    # --- reading

    def read(self) -> None:
        """Every line goes to whoever waits for it; the end of input ends the process after the turn."""
        # bytes, for they are UTF-8 whatever the caller's environment says; detached, because an interpreter that ends would
        # close `sys.stdin` over them, and dies if somebody is just reading
        lines: BinaryIO = cast("Any", sys.stdin).detach()
        for text in lines:
            if self.is_deaf:
                return
            try:
                line = json.loads(text)
            except ValueError:
                self.say("complaint", text="that was no JSON")
                continue
            self.sort(line)
        if "eof" not in self.ignores:
            self.inbox.put(None)

    def sort(self, line: Line) -> None:
        op = line.get("op")
        if op == "interrupt":
            self.interrupt()
        elif op == "bye" and "bye" not in self.ignores:
            self.interrupt()
            self.inbox.put(None)
        elif op == "steer":
            self.asides.put(line)
        elif op == "answer":
            self.answers.put(line)
        else:
            self.given += op == "prompt"
            self.inbox.put(line | {"number": self.given})

    def interrupt(self) -> None:
        with self.lock:
            self.stopped = self.given
            self.stop.set()
        self.answers.put({"op": "interrupt"})

    # --- working

    def work(self) -> None:
        self.say("ready", session=self.session)
        while (line := self.inbox.get()) is not None:
            if line.get("op") == "prompt":
                self.turn(line)
            elif line.get("op") == "model":
                self.say("model", model=line.get("model"))

    def turn(self, line: Line) -> None:
        self.remember(line)
        with self.lock:
            self.current = line["number"]
            if self.current > self.stopped:
                self.stop.clear()
        self.say("turn_start", id=line.get("id"), text=line.get("text"), images=line.get("images", []))
        try:
            for word in str(line.get("text", "")).replace(";", "\n").splitlines():
                self.take_asides()
                self.obey(word.strip())
            self.take_asides()
            self.say("turn_end", outcome="completed")
        except Interrupted:
            self.say("turn_end", outcome="interrupted")
        except RuntimeError as error:
            self.say("turn_end", outcome="failed", message=str(error))

    def remember(self, line: Line) -> None:
        self.prompts += 1
        if path := transcript_of(self.session):
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps({"id": line.get("id"), "text": line.get("text")}) + "\n")

    def take_asides(self) -> None:
        if self.stop.is_set():
            raise Interrupted
        while not self.asides.empty():
            aside = self.asides.get()
            self.say("steered", id=aside.get("id"), text=aside.get("text"))

    def obey(self, word: str) -> None:
        verb, _, rest = word.partition(" ")
        handler = getattr(self, f"do_{verb.replace('-', '_')}", None)
        if handler is None:
            self.do_say(word)
        else:
            handler(rest.strip())

    def wait(self, seconds: float) -> None:
        if self.stop.wait(seconds):
            raise Interrupted

    def next_id(self, kind: str) -> str:
        """Never the same again, also not in another process of the same conversation."""
        self.count += 1
        return f"{kind}{self.count}-{self.session}-{os.getpid()}"

    # --- the words: what a model says and does

    def do_say(self, rest: str) -> None:
        name = self.next_id("m")
        for piece in rest.split(" "):
            self.say("text", id=name, delta=piece + " ")
        self.say("text_end", id=name, text=rest + " ")

    def do_think(self, rest: str) -> None:
        name = self.next_id("m")
        self.say("thought", id=name, delta=rest)
        self.say("thought_end", id=name, text=rest)

    def do_tool(self, rest: str) -> None:
        name = self.next_id("c")
        self.say("call_start", id=name, name=rest or "tool", args={"command": rest})
        self.say("call_end", id=name, ok=True, result="done")

    def do_fail(self, rest: str) -> None:
        name = self.next_id("c")
        self.say("call_start", id=name, name=rest or "tool", args={})
        self.say("call_end", id=name, ok=False, result="it broke")

    def do_ask(self, rest: str) -> None:
        name = self.next_id("c")
        self.say("call", id=name, name=rest or "tool", args={"command": rest})
        self.say("may_i", id=f"a-{name}", call=name, name=rest or "tool", args={"command": rest})
        answer = self.answered(f"a-{name}")
        if answer.get("allow"):
            self.say("call_start", id=name, name=rest or "tool", args={"command": rest})
        self.say("call_end", id=name, ok=bool(answer.get("allow")), result="done" if answer.get("allow") else "refused")

    def do_question(self, rest: str) -> None:
        name = self.next_id("q")
        self.say("question", id=name, text=rest)
        self.do_say(f"you said {self.answered(name).get('text', '')}")

    def do_dialog(self, rest: str) -> None:
        name = self.next_id("d")
        method, _, title = rest.partition(" ")
        self.say("dialog", id=name, method=method or "confirm", title=title)
        answer = self.answered(name)
        self.do_say("you closed it" if answer.get("cancelled") else f"you chose {answer.get('value')}")

    def answered(self, name: str) -> Line:
        while not self.stop.is_set():
            line = self.answers.get()
            if line.get("id") == name:
                self.say("heard", id=name)
                return line
        raise Interrupted

    def do_background(self, rest: str) -> None:
        name = self.next_id("b")
        self.say("background", id=name, title=f"sleep {rest}")
        timer = threading.Timer(float(rest or 1), lambda: self.say("background_end", id=name, ok=True))
        timer.daemon = True
        timer.start()

    def do_recall(self, _: str) -> None:
        self.do_say(f"{self.prompts} prompts")

    def do_error(self, rest: str) -> None:
        raise RuntimeError(rest or "it failed")

    # --- the words: what a process does

    def do_child(self, rest: str, apart: bool = False) -> None:
        name = self.next_id("c")
        sleep = [sys.executable, "-c", f"import time; time.sleep({float(rest or 60)})"]
        child = subprocess.Popen(sleep, start_new_session=apart)
        self.children.append(child)
        self.say("call_start", id=name, name="child", args={"pid": child.pid})
        self.say("call_end", id=name, ok=True, result=str(child.pid))

    def do_orphan(self, rest: str) -> None:
        self.do_child(rest, apart=True)

    def do_write(self, rest: str) -> None:
        """One write each, at the end of the file whatever its other writers do."""
        path, _, text = rest.partition(" ")
        with open(path, "ab", buffering=0) as file:
            file.write(text.encode() + b"\n")

    def do_echo_env(self, rest: str) -> None:
        self.do_say(os.environb.get(rest.encode(), b"").decode("utf-8", "backslashreplace"))

    def do_stderr(self, rest: str) -> None:
        sys.stderr.write(rest + "\n")
        sys.stderr.flush()

    def do_long(self, rest: str) -> None:
        with self.lock:
            left = int(rest or 1)
            while left > 0:
                sys.stdout.write("x" * min(left, 1 << 20))
                left -= 1 << 20
            sys.stdout.write("\n")
            sys.stdout.flush()

    def do_flood(self, rest: str) -> None:
        name = self.next_id("m")
        count = int(rest or 1000)
        for number in range(count):
            self.say("text", id=name, delta=f"{number} ")
        self.say("text_end", id=name, text="".join(f"{number} " for number in range(count)))

    def do_sleep(self, rest: str) -> None:
        self.wait(float(rest or 1))

    def do_hang(self, _: str) -> None:
        while True:
            self.wait(3600)

    def do_ignore(self, rest: str) -> None:
        self.ignores.add(rest)
        if rest == "term":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def do_deaf(self, _: str) -> None:
        self.is_deaf = True
        for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(one, signal.SIG_IGN)
        self.say("deaf")
        while True:
            time.sleep(3600)

    def do_exit(self, rest: str) -> None:
        sys.stdout.flush()
        os._exit(int(rest or 0))

    def do_crash(self, _: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def transcript_of(session: str) -> str:
    """The file that remembers this session; '' when it is to remember nothing."""
    folder = os.environ.get("QD_TEST_STATE")
    return os.path.join(folder, quote(session, safe="") + ".jsonl") if folder else ""


def seen_before(session: str, resumes: bool) -> int:
    """How many prompts the session was given so far. Leaves if it is to go on with one that never was."""
    path = transcript_of(session)
    if not path:
        return 0
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        with open(path, "r" if resumes else "x", encoding="utf-8") as file:
            return len(file.readlines()) if resumes else 0
    except FileNotFoundError:
        sys.exit(f"no session {session}")


def start_as_told() -> None:
    if code := os.environ.get("QD_TEST_BAD_START"):
        sys.stderr.write("it was told to start badly\n")
        sys.exit(int(code))
    time.sleep(float(os.environ.get("QD_TEST_START_DELAY") or 0))
    while os.environ.get("QD_TEST_NEVER_READY"):
        time.sleep(3600)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume", default="")
    resumed = parser.parse_args().resume
    start_as_told()
    session = resumed or f"test-{os.getpid()}-{time.time_ns()}"
    agent = Agent(session, seen_before(session, bool(resumed)))
    threading.Thread(target=agent.read, daemon=True).start()
    agent.work()


if __name__ == "__main__":
    main()
