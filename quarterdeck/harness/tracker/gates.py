"""What a person is asked, and how it is decided."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from quarterdeck import events as ev
from quarterdeck.events import Body, Json, Option, Question
from quarterdeck.harness.tracker.core import Core, GateKind, OpenGate, Path


class Gates(Core):
    """Approvals, questions and dialogs; each is asked once and decided once."""

    def _opens(self, ref: str, kind: GateKind, path: Path = (), call_id: str = "") -> bool:
        """Whether this is asked now; asked twice under one ref it is asked once. A dialog is an extension's, no turn's."""
        if ref in self.gates:
            return False
        if path or kind == "dialog":
            self.live()
        else:
            # the main agent asks in a turn, and compacts no more
            self._moves_on()
            self.begin()
        self.gates[ref] = OpenGate(kind, path, call_id)
        return True

    def _tell(self, body: Body) -> None:
        """What was asked or decided, and the activity that follows."""
        self.out.append(body)
        self._settle()

    def ask(
        self,
        ref: str,
        tool: str,
        args: Json = None,
        call_id: str = "",
        ask: Literal["tool", "command", "browser", "mcp"] = "tool",
        title: str = "",
        hint: str = "",
        options: tuple[Option, ...] = (),
        deadline: int | None = None,
        path: Path = (),
    ) -> None:
        """A person is asked to allow a call."""
        if not self._opens(ref, "approval", path, call_id):
            return
        request = ev.GateRequest(
            ref=ref,
            tool=tool,
            args=args,
            call_id=call_id,
            ask=ask,
            title=title or tool,
            hint=hint,
            options=options,
            deadline=deadline,
        )
        self._tell(ev.ApprovalRequired(gate=request, turn_id=self.turn or None, agent_path=path))

    def resolve(self, ref: str, status: ev.GateStatus, by: str = "", rule: str = "", reason: str = "") -> None:
        """An approval is decided; a second decision is not told."""
        gate = self.gates.pop(ref, None)
        if gate is not None:
            self._write_resolved(ref, gate, status, by, rule, reason)
            self._settle()

    def _write_resolved(
        self, ref: str, gate: OpenGate, status: ev.GateStatus, by: str = "", rule: str = "", reason: str = ""
    ) -> None:
        self.out.append(
            ev.ApprovalResolved(
                status=status,
                ref=ref,
                by=by,
                rule=rule,
                reason=reason,
                turn_id=self.turn or None,
                agent_path=gate.path,
            )
        )

    def question(
        self,
        ref: str,
        question: str,
        options: tuple[Option, ...] = (),
        questions: tuple[Question, ...] = (),
        call_id: str = "",
        deadline: int | None = None,
        path: Path = (),
    ) -> None:
        """A person is asked something."""
        if not self._opens(ref, "question", path, call_id):
            return
        self._tell(
            ev.AskUser(
                question=question,
                ref=ref,
                options=options,
                questions=questions,
                call_id=call_id,
                deadline=deadline,
                turn_id=self.turn or None,
                agent_path=path,
            )
        )

    def answer(
        self,
        ref: str,
        response: Json = None,
        status: Literal["answered", "timeout", "answered_elsewhere", "withdrawn", "stale", "superseded"] = "answered",
        by: str = "",
        message_id: str = "",
    ) -> None:
        """A question is answered, or closed without an answer."""
        gate = self.gates.pop(ref, None)
        if gate is None:
            return
        self._tell(
            ev.UserResponded(
                response=response,
                ref=ref,
                status=status,
                by=by,
                message_id=message_id,
                turn_id=self.turn or None,
                agent_path=gate.path,
            )
        )

    def dialog(
        self,
        ref: str,
        method: Literal["select", "confirm", "input", "editor"],
        title: str = "",
        message: str = "",
        options: tuple[Option, ...] = (),
        deadline: int | None = None,
        prefill: str = "",
    ) -> None:
        """An extension wants something of a person."""
        if not self._opens(ref, "dialog"):
            return
        self._tell(
            ev.DialogRequired(
                method=method,
                title=title,
                ref=ref,
                message=message,
                options=options,
                deadline=deadline,
                prefill=prefill,
                turn_id=self.turn or None,
            )
        )

    def close_dialog(
        self,
        ref: str,
        value: Json = None,
        status: Literal["answered", "cancelled", "timeout", "answered_elsewhere", "withdrawn"] = "answered",
        by: str = "",
    ) -> None:
        """A dialog is closed."""
        if self.gates.pop(ref, None) is not None:
            self._tell(ev.DialogResolved(value=value, ref=ref, status=status, by=by, turn_id=self.turn or None))

    def close_gates(
        self, status: Literal["answered_elsewhere", "withdrawn"], *kinds: GateKind, path: Path = ()
    ) -> None:
        """The agent of this path moved on: nothing of these kinds is asked any more."""
        for ref, gate in list(self.gates.items()) if self.gates else ():
            if gate.kind in kinds and gate.path == path:
                self.close_gate(ref, status)

    def close_gate(self, ref: str, status: Literal["answered_elsewhere", "withdrawn"]) -> None:
        """One gate is closed, of whatever kind it is, without an answer of ours."""
        gate = self.gates.get(ref)
        if gate is not None:
            _CLOSED[gate.kind](self, ref, status=status)


_CLOSED: dict[GateKind, Callable[..., None]] = {
    "approval": Gates.resolve,
    "question": Gates.answer,
    "dialog": Gates.close_dialog,
}
