"""The process, and the turns that it serves."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from quarterdeck import events as ev
from quarterdeck.events import Body, FailureKind, HistoryMessage, Image, TokenUsage
from quarterdeck.harness.tracker.calls import Calls
from quarterdeck.harness.tracker.context import Context
from quarterdeck.harness.tracker.core import Path
from quarterdeck.harness.tracker.texts import Texts
from quarterdeck.kernel.process import was_stopped


class Turns(Calls, Texts, Context):
    """The beginning and the end of everything else."""

    def process_starting(self) -> None:
        """A process was started; what an earlier one had open is not open any more."""
        self._let_go("process restarted")
        self.process_seen, self.exited, self.stop_asked, self.ready_seen = True, False, False, False
        self.activity = "initialized"
        self.out.append(ev.ProcessStarting())

    def process_exited(self, code: int | None, signal: str | None = None, asked: bool | None = None) -> None:
        """The process is gone. What closes an open turn follows it, so that the exit decides what is shown."""
        asked = self.stop_asked if asked is None else asked
        if self.texts.messages:
            self._cut_texts(None)
        open_turn = self.turn
        self.exited, self.process_seen = True, False
        self.activity = "exited"
        self.out.append(ev.ProcessExited(code=code, signal=signal, asked=asked))
        if open_turn:
            self.out.append(_closing(code, signal, asked, open_turn))
        self._forget()

    def process_failed(self, message: str) -> None:
        """The process could not be started, or said that it failed."""
        self._cut_texts(None)
        open_turn = self.turn
        self.exited, self.process_seen = True, False
        self.activity = "exited"
        self.out.append(ev.ProcessError(message=message))
        if open_turn:
            self.out.append(ev.AgentEnd(outcome="failed", turn_id=open_turn))
        self._forget()

    def ended(self, reason: str = "") -> None:
        """The agent's session is over; its process may live on and bind another one."""
        self._let_go(reason or "session ended")
        self.exited = True
        self.activity = "exited"
        self.out.append(ev.AgentEnded(reason=reason))

    def _let_go(self, reason: str) -> None:
        """Nobody is there any more who asks or works: all that is open is closed in so many words."""
        if self.turn:
            self.abort(reason)
        for ref in list(self.gates) if self.gates else ():
            self.close_gate(ref, "withdrawn")
        for name in list(self.background) if self.background else ():
            self.background_end(name)
        if self.texts.messages:
            self._cut_texts(None)
        self._forget()

    def close_path(self, path: Path) -> None:
        """A sub-agent is over: nobody of it asks, runs a call or speaks any more."""
        self.close_gates("withdrawn", "approval", "question", "dialog", path=path)
        for call_id, call in list(self.calls.items()):
            if call.path == path:
                del self.calls[call_id]
                self.out.append(
                    ev.ToolKilled(
                        name=call.name,
                        call_id=call_id,
                        reason="its agent ended",
                        turn_id=self.turn or None,
                        agent_path=path,
                    )
                )
        self._cut_texts(path)
        self._settle()

    def prompt(
        self,
        text: str,
        message_id: str = "",
        source: Literal["user", "agent"] = "user",
        images: tuple[Image, ...] = (),
        new_task: bool = False,
        turn_id: str = "",
    ) -> None:
        """The agent took a prompt. Outside a turn that begins one: a prompt that nothing follows would spin for ever."""
        self.live()
        self.out.append(
            ev.PromptReceived(
                text=text,
                message_id=message_id,
                source=source,
                images=images,
                new_task=new_task,
                turn_id=self.turn or None,
            )
        )
        self.begin(turn_id)

    def request(self, model: str = "", messages: int | None = None) -> None:
        """A request goes to the model: whatever the main agent asked is answered, no call of it runs any more."""
        self.begin()
        self.compacting = self.compaction_turn = self.lingering = False
        if self.gates:
            self.close_gates("answered_elsewhere", "approval", "question")
        self.out.append(ev.RequestStart(model=model, messages=messages, turn_id=self.turn))
        self._settle()

    def end(self, outcome: Literal["completed", "failed"] = "completed", usage: TokenUsage | None = None) -> None:
        """The turn is over by itself. Calls that still run go on in the background."""
        if not self.turn:
            return
        self._close_turn_gates("answered_elsewhere")
        for call_id, call in list(self.calls.items()) if self.calls else ():
            if call.running and not call.path:
                self.background_start("shell", call_id, call.title)
            elif not call.path:
                del self.calls[call_id]
        if self.texts.messages:
            self._cut_texts(())
        turn = self._close_turn()
        self.out.append(ev.AgentEnd(outcome=outcome, usage=usage, turn_id=turn))
        self._settle()

    def abort(self, reason: str | None = None, kill_calls: bool = True, keep: Collection[str] = ()) -> None:
        """The turn was ended from outside. Its calls are gone with it, unless they are known to go on (all, or these)."""
        if not self.turn:
            return
        self._cut_off(kill_calls, keep)
        turn = self._close_turn()
        self.out.append(ev.AgentAbort(reason=reason, turn_id=turn))
        self._settle()

    def interrupted(self) -> None:
        """The agent was cut off and offers to go on: its turn is over, neither done nor stopped by a person."""
        if not self.turn:
            return
        self._cut_off(kill_calls=True)
        turn = self._close_turn()
        self.out.append(ev.TurnRestored(finished=False, turn_id=turn))
        self.out.append(ev.AgentEnd(outcome="failed", turn_id=turn))
        self._settle()

    def _cut_off(self, kill_calls: bool, keep: Collection[str] = ()) -> None:
        """What the main agent asked, ran and said is over before it was whole."""
        if self.gates:
            self.close_gates("withdrawn", "dialog")
            self._close_turn_gates("withdrawn")
        for call_id, call in list(self.calls.items()) if self.calls else ():
            if call.path:
                continue
            if call.running and (not kill_calls or call_id in keep):
                self.background_start("shell", call_id, call.title)
                continue
            del self.calls[call_id]
            self.out.append(ev.ToolKilled(name=call.name, call_id=call_id, reason="interrupted", turn_id=self.turn))
        if self.texts.messages:
            self._cut_texts(())

    def leave(self, path: Path, reason: str = "its agent ended") -> None:
        """A sub-agent is over: what it asked, ran and said is over too."""
        self.close_gates("withdrawn", "approval", "question", "dialog", path=path)
        for call_id in [name for name, call in self.calls.items() if call.path == path]:
            call = self.calls.pop(call_id)
            self.out.append(ev.ToolKilled(name=call.name, call_id=call_id, reason=reason, agent_path=path))
        self._cut_texts(path)

    def fail(self, kind: FailureKind, message: str = "", resets_at: int | None = None) -> None:
        """The turn cannot go on, and is over."""
        self.begin()
        self.out.append(ev.TurnFailed(kind=kind, message=message, resets_at=resets_at, turn_id=self.turn))
        self.end("failed")

    def restored(self, finished: bool, history: tuple[HistoryMessage, ...] = ()) -> None:
        """An earlier conversation was loaded; it is not new work. In the middle of a turn there is nothing to restore."""
        if self.turn:
            return
        self.out.append(ev.TurnRestored(finished=finished, history=history))

    def _close_turn_gates(self, status: Literal["answered_elsewhere", "withdrawn"]) -> None:
        """What the turn asked is over with it; a sub-agent that goes on in the background may still wait."""
        if not self.gates:
            return
        outliving = "subagent" in self.background.values()
        for ref, gate in list(self.gates.items()):
            if gate.kind != "dialog" and not (gate.path and outliving):
                self.close_gate(ref, status)

    def _close_turn(self) -> str:
        turn, self.turn = self.turn, ""
        self.lingering = self.compacting = self.compaction_turn = False
        return turn

    def detach_call(self, call_id: str) -> None:
        """The call goes on in the background: the turn does not wait for it any more."""
        call = self.calls.get(call_id)
        if call is not None and call.running and not call.path:
            self.background_start("shell", call_id, call.title)
            self._settle()

    def compact_start(self, trigger: Literal["manual", "auto"] | None = None) -> None:
        """The conversation is being shortened. Outside a turn that is work of its own: a turn is opened for it."""
        if self.compacting:
            return
        if not self.turn:
            self.begin()
            self.compaction_turn = True
        self.compacting = True
        # it is a request of its own: as with any other, what the main agent asked is answered
        self.close_gates("answered_elsewhere", "approval", "question")
        self.out.append(ev.CompactStart(trigger=trigger, turn_id=self.turn))
        self._settle()

    def compact_end(self, removed: int = 0, ok: bool = True, summary: str = "") -> None:
        """Shortened, or given up."""
        if not self.compacting:
            return
        self.compacting = False
        self.out.append(ev.CompactEnd(removed_count=removed, ok=ok, summary=summary, turn_id=self.turn or None))
        if self.compaction_turn:
            self.end("completed")
        else:
            self._settle()


def _closing(code: int | None, signal: str | None, asked: bool, turn: str) -> Body:
    if asked or was_stopped(code, signal):
        return ev.AgentAbort(reason="process exited", turn_id=turn)
    return ev.AgentEnd(outcome="completed" if code == 0 else "failed", turn_id=turn)
