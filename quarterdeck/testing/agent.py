"""A scripted agent: a real process that does what a test tells it, over JSON lines.

    python -m quarterdeck.testing.agent [--resume ID]

The agent first writes `{"type": "ready", "session": ID}`. A prompt is `{"op": "prompt", "id", "text"}`. Its text is a script
of commands that run one after the other, each on a line of its own or after a semicolon:

    say TEXT            reply, streamed word by word            think TEXT        the same as reasoning
    tool NAME           call a tool that succeeds               fail NAME         call a tool that fails
    ask NAME            call a tool that needs an approval      question TEXT     ask the user and wait
    dialog METHOD TITLE open a dialog of an extension           background SECONDS  start a shell that outlives the turn
    child SECONDS       start a process that runs so long       orphan SECONDS    the same in a session of its own
    sleep SECONDS       stay busy without output                flood COUNT       write so many text deltas at once
    write FILE TEXT     append a line to a file                 echo-env NAME     reply with an environment variable
    recall              reply with the number of prompts        long BYTES        write one line of so many characters
    stderr TEXT         write to standard error                 error TEXT        end the turn with an error
    hang                stay busy until interrupted             deaf              ignore all input and signals forever
    ignore bye|eof|term ignore one way to end the process       exit CODE         end the process
    crash               kill the process with SIGKILL

Any other text is repeated as a reply. `{"op": "steer", "id", "text"}` is read between two commands.
`{"op": "interrupt"}` takes effect at once: it ends every prompt that was sent before it, and none that is sent after it.
`{"op": "bye"}` interrupts too and ends the process.

The environment controls the start: QD_TEST_START_DELAY (seconds before it is ready), QD_TEST_NEVER_READY (it never
becomes ready), QD_TEST_BAD_START (it exits with this code instead). QD_TEST_STATE is a folder in which the agent stores
the prompts of each session; with it, a session that doesn't exist can't be resumed.
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
    """The current turn was interrupted."""


class ScriptedAgent:
    """The agent. One thread reads input, the main thread runs prompts; both write whole lines."""

    def __init__(self, session: str, prompts: int = 0) -> None:
        self.session = session
        self.prompts = prompts
        self.inbox: queue.Queue[Line | None] = queue.Queue()
        self.steering: queue.Queue[Line] = queue.Queue()
        self.answers: queue.Queue[Line] = queue.Queue()
        self.stop = threading.Event()
        self.lock = threading.Lock()
        #: How many prompts were received, and the last one that an interrupt ended. An interrupt that arrives before a
        #: prompt was started ends it too, so both are counted as they are read.
        self.received = self.interrupted = 0
        self.count = 0
        self.ignores: set[str] = set()
        self.is_deaf = False
        self.children: list[subprocess.Popen[bytes]] = []

    def say(self, kind: str, **fields: Any) -> None:
        with self.lock:
            sys.stdout.write(json.dumps({"type": kind, **fields}) + "\n")
            sys.stdout.flush()

    # ------------------------------------------------------------------------------------------------- reading

    def read(self) -> None:
        """Read lines and put each into the queue it belongs to. The end of input ends the process after the turn."""
        # Read bytes, because the lines are UTF-8 whatever the locale is. Detach the buffer: at exit the interpreter closes
        # sys.stdin, and crashes if another thread is reading from it at that moment.
        lines: BinaryIO = cast("Any", sys.stdin).detach()
        for text in lines:
            if self.is_deaf:
                return
            try:
                line = json.loads(text)
            except ValueError:
                self.say("complaint", text="not valid JSON")
                continue
            self.dispatch(line)
        if "eof" not in self.ignores:
            self.inbox.put(None)

    def dispatch(self, line: Line) -> None:
        op = line.get("op")
        if op == "interrupt":
            self.interrupt()
        elif op == "bye" and "bye" not in self.ignores:
            self.interrupt()
            self.inbox.put(None)
        elif op == "steer":
            self.steering.put(line)
        elif op == "answer":
            self.answers.put(line)
        else:
            self.received += op == "prompt"
            self.inbox.put(line | {"number": self.received})

    def interrupt(self) -> None:
        with self.lock:
            self.interrupted = self.received
            self.stop.set()
        self.answers.put({"op": "interrupt"})

    # ------------------------------------------------------------------------------------------ running prompts

    def run(self) -> None:
        self.say("ready", session=self.session)
        while (line := self.inbox.get()) is not None:
            if line.get("op") == "prompt":
                self.run_turn(line)
            elif line.get("op") == "model":
                self.say("model", model=line.get("model"))

    def run_turn(self, line: Line) -> None:
        self.store_prompt(line)
        with self.lock:
            if line["number"] > self.interrupted:
                self.stop.clear()
        self.say("turn_start", id=line.get("id"), text=line.get("text"), images=line.get("images", []))
        try:
            for command in str(line.get("text", "")).replace(";", "\n").splitlines():
                self.take_steering()
                self.run_command(command.strip())
            self.take_steering()
            self.say("turn_end", outcome="completed")
        except Interrupted:
            self.say("turn_end", outcome="interrupted")
        except RuntimeError as error:
            self.say("turn_end", outcome="failed", message=str(error))

    def store_prompt(self, line: Line) -> None:
        self.prompts += 1
        if path := transcript_path(self.session):
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps({"id": line.get("id"), "text": line.get("text")}) + "\n")

    def take_steering(self) -> None:
        if self.stop.is_set():
            raise Interrupted
        while not self.steering.empty():
            line = self.steering.get()
            self.say("steered", id=line.get("id"), text=line.get("text"))

    def run_command(self, command: str) -> None:
        verb, _, rest = command.partition(" ")
        handler = getattr(self, f"do_{verb.replace('-', '_')}", None)
        if handler is None:
            self.do_say(command)
        else:
            handler(rest.strip())

    def wait(self, seconds: float) -> None:
        if self.stop.wait(seconds):
            raise Interrupted

    def next_id(self, kind: str) -> str:
        """Return an id that is unique, also among all processes of the same conversation."""
        self.count += 1
        return f"{kind}{self.count}-{self.session}-{os.getpid()}"

    # ------------------------------------------------------------------ commands: what a model says and does

    def do_say(self, rest: str) -> None:
        message_id = self.next_id("m")
        for piece in rest.split(" "):
            self.say("text", id=message_id, delta=piece + " ")
        self.say("text_end", id=message_id, text=rest + " ")

    def do_think(self, rest: str) -> None:
        message_id = self.next_id("m")
        self.say("thought", id=message_id, delta=rest)
        self.say("thought_end", id=message_id, text=rest)

    def do_tool(self, rest: str) -> None:
        call_id = self.next_id("c")
        self.say("call_start", id=call_id, name=rest or "tool", args={"command": rest})
        self.say("call_end", id=call_id, ok=True, result="done")

    def do_fail(self, rest: str) -> None:
        call_id = self.next_id("c")
        self.say("call_start", id=call_id, name=rest or "tool", args={})
        self.say("call_end", id=call_id, ok=False, result="it broke")

    def do_ask(self, rest: str) -> None:
        call_id = self.next_id("c")
        self.say("call", id=call_id, name=rest or "tool", args={"command": rest})
        self.say("may_i", id=f"a-{call_id}", call=call_id, name=rest or "tool", args={"command": rest})
        answer = self.wait_for_answer(f"a-{call_id}")
        if answer.get("allow"):
            self.say("call_start", id=call_id, name=rest or "tool", args={"command": rest})
        self.say(
            "call_end", id=call_id, ok=bool(answer.get("allow")), result="done" if answer.get("allow") else "refused"
        )

    def do_question(self, rest: str) -> None:
        question_id = self.next_id("q")
        self.say("question", id=question_id, text=rest)
        self.do_say(f"you said {self.wait_for_answer(question_id).get('text', '')}")

    def do_dialog(self, rest: str) -> None:
        dialog_id = self.next_id("d")
        method, _, title = rest.partition(" ")
        self.say("dialog", id=dialog_id, method=method or "confirm", title=title)
        answer = self.wait_for_answer(dialog_id)
        self.do_say("you closed it" if answer.get("cancelled") else f"you chose {answer.get('value')}")

    def wait_for_answer(self, request_id: str) -> Line:
        while not self.stop.is_set():
            line = self.answers.get()
            if line.get("id") == request_id:
                self.say("heard", id=request_id)
                return line
        raise Interrupted

    def do_background(self, rest: str) -> None:
        task_id = self.next_id("b")
        self.say("background", id=task_id, title=f"sleep {rest}")
        timer = threading.Timer(float(rest or 1), lambda: self.say("background_end", id=task_id, ok=True))
        timer.daemon = True
        timer.start()

    def do_recall(self, _: str) -> None:
        self.do_say(f"{self.prompts} prompts")

    def do_error(self, rest: str) -> None:
        raise RuntimeError(rest or "it failed")

    # ------------------------------------------------------------------------- commands: what a process does

    def do_child(self, rest: str, apart: bool = False) -> None:
        call_id = self.next_id("c")
        sleep = [sys.executable, "-c", f"import time; time.sleep({float(rest or 60)})"]
        child = subprocess.Popen(sleep, start_new_session=apart)
        self.children.append(child)
        self.say("call_start", id=call_id, name="child", args={"pid": child.pid})
        self.say("call_end", id=call_id, ok=True, result=str(child.pid))

    def do_orphan(self, rest: str) -> None:
        self.do_child(rest, apart=True)

    def do_write(self, rest: str) -> None:
        # Unbuffered and in append mode, so every line is one write at the end, whatever other writers do.
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
        message_id = self.next_id("m")
        count = int(rest or 1000)
        for number in range(count):
            self.say("text", id=message_id, delta=f"{number} ")
        self.say("text_end", id=message_id, text="".join(f"{number} " for number in range(count)))

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
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        self.say("deaf")
        while True:
            time.sleep(3600)

    def do_exit(self, rest: str) -> None:
        sys.stdout.flush()
        os._exit(int(rest or 0))

    def do_crash(self, _: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def transcript_path(session: str) -> str:
    """Return the file with the prompts of a session, or '' if none are stored."""
    folder = os.environ.get("QD_TEST_STATE")
    return os.path.join(folder, quote(session, safe="") + ".jsonl") if folder else ""


def count_stored_prompts(session: str, resumes: bool) -> int:
    """Return how many prompts the session has had. Exit if a session that doesn't exist is to be resumed."""
    path = transcript_path(session)
    if not path:
        return 0
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        with open(path, "r" if resumes else "x", encoding="utf-8") as file:
            return len(file.readlines()) if resumes else 0
    except FileNotFoundError:
        sys.exit(f"no session {session}")


def start_as_configured() -> None:
    if code := os.environ.get("QD_TEST_BAD_START"):
        sys.stderr.write("QD_TEST_BAD_START is set\n")
        sys.exit(int(code))
    time.sleep(float(os.environ.get("QD_TEST_START_DELAY") or 0))
    while os.environ.get("QD_TEST_NEVER_READY"):
        time.sleep(3600)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume", default="")
    resumed_session = parser.parse_args().resume
    start_as_configured()
    session = resumed_session or f"test-{os.getpid()}-{time.time_ns()}"
    agent = ScriptedAgent(session, count_stored_prompts(session, bool(resumed_session)))
    threading.Thread(target=agent.read, daemon=True).start()
    agent.run()


if __name__ == "__main__":
    main()
