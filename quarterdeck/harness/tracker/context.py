"""What surrounds the turn: background work and usage."""

from __future__ import annotations

from typing import Literal

from quarterdeck import events as ev
from quarterdeck.events import TokenUsage
from quarterdeck.harness.tracker.core import BackgroundKind, Core, Path


class Context(Core):
    """Background work and usage."""

    def background_start(self, kind: BackgroundKind, name: str, title: str = "") -> None:
        """Work that outlives the turn."""
        if name not in self.background:
            self.background[name] = kind
            self.out.append(ev.BackgroundStarted(kind=kind, id=name, title=title, turn_id=self.turn or None))

    def background_end(self, name: str, ok: bool | None = None, title: str = "") -> None:
        """That work is over."""
        kind = self.background.pop(name, None)
        if kind is not None:
            self.out.append(ev.BackgroundEnded(kind=kind, id=name, title=title, ok=ok, turn_id=self.turn or None))

    def usage(
        self,
        tokens: TokenUsage,
        message_id: str = "",
        model: str = "",
        billing: Literal["metered", "plan", "unknown"] = "unknown",
        path: Path = (),
    ) -> None:
        """Tokens of one message; the same message again restates them."""
        self.out.append(
            ev.Usage(
                tokens=tokens,
                message_id=message_id,
                model=model,
                billing=billing,
                turn_id=self.turn or None,
                agent_path=path,
            )
        )
