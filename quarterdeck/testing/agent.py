"""A scripted agent: a real process that does what a test tells it, over JSON lines.

    python -m quarterdeck.testing.agent [--resume ID]

It says `{"type": "ready", "session": ID}` first. A prompt `{"op": "prompt", "id", "text"}` is a script of words, obeyed
one after the other, each in a line of its own or after a semicolon:

    say TEXT            one reply, streamed word by word        think TEXT        the same as reasoning
    tool NAME           a call that ends well                   fail NAME         a call that ends badly
    ask NAME            a call that wants an approval           question TEXT     wants an answer
    child SECONDS       a tool process that lives that long     orphan SECONDS    the same in a session of its own
    sleep SECONDS       busy, silently                          flood COUNT       that many pieces of text at once
    hang                busy until interrupted                  deaf              reads nothing more, ever
    exit CODE           ends the process                        crash             kills itself
    error TEXT          the turn fails

Anything else is said back. `{"op": "steer", "id", "text"}` is read between two words, `{"op": "interrupt"}` at once.
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
from typing import Any

Line = dict[str, Any]


class Interrupted(Exception):
    """The turn is to end now."""


class Agent:
    """Reads on one thread, works on the other; both write whole lines."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.inbox: queue.Queue[Line | None] = queue.Queue()
        self.asides: queue.Queue[Line] = queue.Queue()
        self.answers: queue.Queue[Line] = queue.Queue()
        self.stop = threading.Event()
        self.count = 0
        self.children: list[subprocess.Popen[bytes]] = []

    def say(self, kind: str, **fields: Any) -> None:
        sys.stdout.write(json.dumps({"type": kind, **fields}) + "\n")
        sys.stdout.flush()

    def read(self) -> None:
        """Every line goes to whoever waits for it; the end of input ends the process after the turn."""
        for text in sys.stdin:
            try:
                line = json.loads(text)
            except ValueError:
                self.say("complaint", text="that was no JSON")
                continue
            self.sort(line)
        self.inbox.put(None)

    def sort(self, line: Line) -> None:
        op = line.get("op")
        if op == "interrupt":
            self.stop.set()
            self.answers.put(line)
        elif op == "steer":
            self.asides.put(line)
        elif op == "answer":
            self.answers.put(line)
        else:
            self.inbox.put(line)

    def work(self) -> None:
        self.say("ready", session=self.session)
        while (line := self.inbox.get()) is not None:
            if line.get("op") == "prompt":
                self.turn(line)
            elif line.get("op") == "model":
                self.say("model", model=line.get("model"))

    def turn(self, line: Line) -> None:
        self.stop.clear()
        self.answers = queue.Queue()  # an interrupt that came too late was for the turn before
        self.say("turn_start", id=line.get("id"), text=line.get("text"))
        try:
            for word in str(line.get("text", "")).replace(";", "\n").splitlines():
                self.obey(word.strip())
                self.take_asides()
            self.say("turn_end", outcome="completed")
        except Interrupted:
            self.say("turn_end", outcome="interrupted")
        except RuntimeError as error:
            self.say("turn_end", outcome="failed", message=str(error))

    def take_asides(self) -> None:
        if self.stop.is_set():
            raise Interrupted
        while not self.asides.empty():
            aside = self.asides.get()
            self.say("steered", id=aside.get("id"), text=aside.get("text"))

    def obey(self, word: str) -> None:
        verb, _, rest = word.partition(" ")
        handler = getattr(self, f"do_{verb}", None)
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
        return f"{kind}{self.count}-{os.getpid()}"

    # --- the words

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

    def answered(self, name: str) -> Line:
        while True:
            line = self.answers.get()
            if line.get("op") == "interrupt":
                raise Interrupted
            if line.get("id") == name:
                self.say("heard", id=name)
                return line

    def do_child(self, rest: str, apart: bool = False) -> None:
        name = self.next_id("c")
        sleep = [sys.executable, "-c", f"import time; time.sleep({float(rest or 60)})"]
        child = subprocess.Popen(sleep, start_new_session=apart)
        self.children.append(child)
        self.say("call_start", id=name, name="child", args={"pid": child.pid})
        self.say("call_end", id=name, ok=True, result=str(child.pid))

    def do_orphan(self, rest: str) -> None:
        self.do_child(rest, apart=True)

    def do_sleep(self, rest: str) -> None:
        self.wait(float(rest or 1))

    def do_flood(self, rest: str) -> None:
        name = self.next_id("m")
        count = int(rest or 1000)
        for number in range(count):
            self.say("text", id=name, delta=f"{number} ")
        self.say("text_end", id=name, text="".join(f"{number} " for number in range(count)))

    def do_hang(self, _: str) -> None:
        while True:
            self.wait(3600)

    def do_deaf(self, _: str) -> None:
        for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(one, signal.SIG_IGN)
        while True:
            time.sleep(3600)

    def do_exit(self, rest: str) -> None:
        sys.stdout.flush()
        os._exit(int(rest or 0))

    def do_crash(self, _: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def do_error(self, rest: str) -> None:
        raise RuntimeError(rest or "it failed")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume", default="")
    agent = Agent(parser.parse_args().resume or f"test-{os.getpid()}")
    threading.Thread(target=agent.read, daemon=True).start()
    agent.work()


if __name__ == "__main__":
    main()
