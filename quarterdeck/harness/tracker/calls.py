"""Tool calls: announced, running, ended."""

from __future__ import annotations

from quarterdeck import events as ev
from quarterdeck.events import Json
from quarterdeck.harness.tracker.core import OpenCall, Path
from quarterdeck.harness.tracker.gates import Gates
from quarterdeck.kernel.turn import target_of


class Calls(Gates):
    """Calls by id; whatever an agent leaves out of start, output and end is put in."""

    def announce(
        self,
        call_id: str,
        name: str,
        args: Json = None,
        message_id: str = "",
        block: int = 0,
        partial: bool = False,
        path: Path = (),
    ) -> None:
        """The model wants this call."""
        if path:
            self.live()
        else:
            if self.compacting:
                self._moves_on()
            self.begin()
        if call_id not in self.calls:
            self.calls[call_id] = OpenCall(name, path, target=target_of(args))
        elif name:
            self.calls[call_id].name = name
        self.out.append(
            ev.ToolCall(
                name=name,
                call_id=call_id,
                args=args,
                partial=partial,
                message_id=message_id,
                block=block,
                turn_id=self.turn or None,
                agent_path=path,
            )
        )
        self._settle()

    def start_call(self, call_id: str, name: str = "", args: Json = None, path: Path = ()) -> None:
        """The call runs; started twice it is started once."""
        call = self.calls.get(call_id)
        if call is not None and call.running:
            return
        if call is None:
            call = OpenCall(name, path, target=target_of(args))
        if self.compacting and not call.path:
            self._moves_on()
        if self.gates:
            self.close_call_gate(call_id)
        self.live() if path else self.begin()
        self.calls[call_id] = call
        call.running = True
        self.out.append(
            ev.ToolExecutionStart(
                name=call.name or name, call_id=call_id, args=args, turn_id=self.turn or None, agent_path=call.path
            )
        )
        self._settle()

    def output(self, call_id: str, delta: str) -> None:
        """More output of a running call."""
        call = self.calls.get(call_id)
        if call is None or not delta:
            return
        self.out.append(
            ev.ToolExecutionOutput(call_id=call_id, delta=delta, turn_id=self.turn or None, agent_path=call.path)
        )

    def output_so_far(self, call_id: str, whole: str) -> None:
        """Output whose agent repeats all of it each time."""
        call = self.calls.get(call_id)
        if call is not None and whole.startswith(call.output):
            delta, call.output = whole[len(call.output) :], whole
            self.output(call_id, delta)

    def end_call(self, call_id: str, ok: bool = True, result: Json = None, name: str = "", path: Path = ()) -> None:
        """The call ended. One that nobody announced is told as a whole; an open approval of it is answered."""
        if self.gates:
            self.close_call_gate(call_id)
        call = self.calls.pop(call_id, None)
        if call is None:
            call = OpenCall(name, path)
        if not call.running:
            self.out.append(
                ev.ToolExecutionStart(
                    name=call.name or name, call_id=call_id, turn_id=self.turn or None, agent_path=call.path
                )
            )
        self.out.append(
            ev.ToolExecutionEnd(
                name=call.name or name,
                call_id=call_id,
                ok=ok,
                result=result,
                turn_id=self.turn or None,
                agent_path=call.path,
            )
        )
        if self.background.pop(call_id, None) is not None:
            self.out.append(ev.BackgroundEnded(kind="shell", id=call_id, ok=ok))
        self._settle()

    def allow_call(self, ref: str, by: str = "", rule: str = "") -> None:
        """A person allowed the call that asked: it runs from here on (003: from waiting straight to tool_use)."""
        gate = self.gates.pop(ref, None)
        if gate is None:
            return
        self._write_resolved(ref, gate, "approved", by, rule)
        if gate.call_id in self.calls:
            self.start_call(gate.call_id, path=gate.path)
        self._settle()

    def refuse_call(self, ref: str, by: str = "", rule: str = "", reason: str = "") -> None:
        """A person refused the call that asked. Until its end is told it counts as in use (003's edge for every decision);
        an agent that never tells it wants `block_call` next."""
        gate = self.gates.pop(ref, None)
        if gate is None:
            return
        self._write_resolved(ref, gate, "rejected", by, rule, reason)
        call = self.calls.get(gate.call_id)
        # a confused agent may use one name for a call of its own and for one of a sub-agent
        if call is not None and call.path == gate.path:
            call.running, call.refusal = True, "open"
        self._settle()

    def block_call(self, call_id: str, reason: str = "", name: str = "") -> None:
        """The call was kept from running."""
        self.close_call_gate(call_id)
        call = self.calls.pop(call_id, None) or OpenCall(name, ())
        self.out.append(
            ev.ToolBlocked(
                name=call.name or name,
                call_id=call_id,
                reason=reason,
                turn_id=self.turn or None,
                agent_path=call.path,
            )
        )
        self._settle()

    def close_call_gate(self, call_id: str) -> None:
        """A call that runs, or is over, waits for no approval."""
        for ref, gate in list(self.gates.items()):
            if gate.kind == "approval" and gate.call_id == call_id and call_id:
                self.resolve(ref, "answered_elsewhere")
