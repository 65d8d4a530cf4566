"""004's store: one immutable state, published whole to whoever listens.

It is what a front end holds: the list of sessions, the one that is open, and that session's conversation. What only one
view of it knows (the text being typed, what is folded, images not sent yet) is kept by that view and never comes in here.
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
    """004's fields."""

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
        """Texts that were sent and not read yet; drawn between the timeline and the text field."""
        return [Entry(item.id, "user", item.text, images=item.images, at=item.since) for item in self.view.state.queue]

    @property
    def context_usage(self) -> Context | None:
        return self.view.state.profile.context

    @property
    def thinking_level(self) -> str | None:
        return self.view.state.profile.thinking


Listener = Callable[[AppState], None]


class Store:
    """The one mutable thing: which state is the present one."""

    def __init__(self) -> None:
        self.state = AppState()
        self._listeners: list[Listener] = []

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Calls `listener` with the present state at once and with every later one; the answer ends that."""
        self._listeners.append(listener)
        listener(self.state)

        def unsubscribe() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return unsubscribe

    def update(self, **changes: Any) -> None:
        """Publishes a state with these fields changed."""
        self._publish(replace(self.state, **changes))

    def handle_event(self, event: Event) -> None:
        """004's `handleServerEvent`, for the session that is open."""
        if event.session_id == self.state.current_session_id:
            self._publish(replace(self.state, view=fold(self.state.view, event)))

    def set_sessions(self, sessions: tuple[Summary, ...], current: str | None) -> None:
        """The list, newest first, and the open session change in one step."""
        ordered = tuple(sorted(sessions, key=lambda row: (row.created_at, row.id), reverse=True))
        view = self.state.view if current == self.state.current_session_id else View()
        self._publish(replace(self.state, sessions=ordered, current_session_id=current, view=view))

    def clear_scheduled_messages(self) -> list[Entry]:
        """Removes the waiting texts here and gives them back, in order; the server is told by `clear_queue`."""
        taken = self.state.scheduled_messages
        view = self.state.view
        self._publish(replace(self.state, view=replace(view, state=replace(view.state, queue=()))))
        return taken

    def _publish(self, state: AppState) -> None:
        """A listener may itself change the state or end a subscription; nobody is told what is no longer so."""
        self.state = state
        for listener in tuple(self._listeners):
            if listener in self._listeners:
                listener(self.state)
