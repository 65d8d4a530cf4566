"""Model the store of a web client (seed 004): one immutable state that is published to its listeners.

The conformance cases about the page are shown with it: the list of sessions, the open session and its conversation. State
of a single component (a draft, folded entries, unsent images) belongs to that component and isn't in the store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from quarterdeck.events import Event
from quarterdeck.kernel.profile import Context
from quarterdeck.kernel.summary import Summary
from quarterdeck.kernel.timeline import Entry, window
from quarterdeck.kernel.view import View, fold


class AppState(Struct, frozen=True, gc=False):
    """The fields of 004's state."""

    connected: bool = False
    sessions: tuple[Summary, ...] = ()
    current_session_id: str | None = None
    sidebar_open: bool = False
    view: View = View()

    @property
    def streaming(self) -> bool:
        return self.view.timeline.streaming

    @property
    def messages(self) -> list[Entry]:
        return window(self.view.timeline)

    @property
    def scheduled_messages(self) -> list[Entry]:
        """Messages that were sent but not read, drawn between the timeline and the text field."""
        return [Entry(item.id, "user", item.text, images=item.images, at=item.since) for item in self.view.state.queue]

    @property
    def context_usage(self) -> Context | None:
        return self.view.state.profile.context

    @property
    def thinking_level(self) -> str | None:
        return self.view.state.profile.thinking


Listener = Callable[[AppState], None]


class Store:
    """Hold the current state and publish each new one."""

    def __init__(self) -> None:
        self.state = AppState()
        self._listeners: list[Listener] = []

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with the current state now and with every later one. Return a function that ends this."""
        self._listeners.append(listener)
        listener(self.state)

        def unsubscribe() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return unsubscribe

    def update(self, **changes: Any) -> None:
        """Publish a state with these fields changed."""
        self._publish(replace(self.state, **changes))

    def handle_event(self, event: Event) -> None:
        """Fold an event of the open session (004's `handleServerEvent`)."""
        if event.session_id == self.state.current_session_id:
            self._publish(replace(self.state, view=fold(self.state.view, event)))

    def set_sessions(self, sessions: tuple[Summary, ...], current: str | None) -> None:
        """Change the list, sorted newest first, and the open session in one step."""
        ordered = tuple(sorted(sessions, key=lambda row: (row.created_at, row.id), reverse=True))
        view = self.state.view if current == self.state.current_session_id else View()
        self._publish(replace(self.state, sessions=ordered, current_session_id=current, view=view))

    def clear_scheduled_messages(self) -> list[Entry]:
        """Remove the queued messages and return them in order. The client sends `clear_queue` to the server itself."""
        messages = self.state.scheduled_messages
        view = self.state.view
        self._publish(replace(self.state, view=replace(view, state=replace(view.state, queue=()))))
        return messages

    def _publish(self, state: AppState) -> None:
        """Call the listeners. A listener may change the state or unsubscribe others, so each call gets the current state."""
        self.state = state
        for listener in tuple(self._listeners):
            if listener in self._listeners:
                listener(self.state)
