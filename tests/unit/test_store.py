"""Test the store of a web client: what it publishes, and for which session. Part 4 has the cases of the seed."""

from __future__ import annotations

from quarterdeck import events as ev
from quarterdeck.kernel.profile import Context
from quarterdeck.kernel.view import View
from tests.support.store import AppState, Store
from tests.support.tape import Tape, tape


def opened(session_id: str = "s1") -> Store:
    store = Store()
    store.set_sessions((), session_id)
    return store


class TestListeners:
    def test_leaving_twice_is_leaving_once(self) -> None:
        store, first, second = Store(), list[AppState](), list[AppState]()
        leave = store.subscribe(first.append)
        store.subscribe(second.append)
        leave()
        leave()
        store.update(connected=True)
        assert (len(first), len(second)) == (1, 2)

    def test_a_listener_that_changes_the_state_leaves_everybody_with_the_newest_one(self) -> None:
        store, before, after = Store(), list[AppState](), list[AppState]()

        def opens_the_sidebar(state: AppState) -> None:
            if state.connected and not state.sidebar_open:
                store.update(sidebar_open=True)

        store.subscribe(before.append)
        store.subscribe(opens_the_sidebar)
        store.subscribe(after.append)
        store.update(connected=True)
        assert before[-1] is after[-1] is store.state
        assert store.state.sidebar_open

    def test_a_listener_that_is_sent_away_by_another_is_not_called_any_more(self) -> None:
        store, seen = Store(), list[AppState]()

        def sends_the_other_away(state: AppState) -> None:
            if state.connected:
                leave()

        store.subscribe(sends_the_other_away)
        leave = store.subscribe(seen.append)
        store.update(connected=True)
        assert [state.connected for state in seen] == [False]

    def test_a_listener_may_leave_while_it_is_called(self) -> None:
        store, seen, rest = Store(), list[AppState](), list[AppState]()

        def once(state: AppState) -> None:
            seen.append(state)
            if state.connected:
                leave()

        leave = store.subscribe(once)
        store.subscribe(rest.append)
        store.update(connected=True)
        store.update(sidebar_open=True)
        assert (len(seen), len(rest)) == (2, 3)


class TestSessions:
    def test_events_of_other_sessions_change_nothing(self) -> None:
        store = opened("s1")
        before = store.state
        for event in Tape("s2").add(ev.Notice(text="x")).events:
            store.handle_event(event)
        assert store.state is before

    def test_with_no_session_open_nothing_is_taken(self) -> None:
        store = Store()
        for event in Tape("s1").add(ev.Notice(text="x")).events:
            store.handle_event(event)
        assert store.state.messages == []

    def test_opening_another_session_starts_with_an_empty_view(self) -> None:
        store = opened("s1")
        for event in Tape("s1").add(ev.AgentStart(), ev.Notice(text="x")).events:
            store.handle_event(event)
        store.set_sessions((), "s2")
        assert (store.state.messages, store.state.streaming, store.state.view) == ([], False, View())

    def test_a_new_list_keeps_the_view_of_the_session_that_stays_open(self) -> None:
        store = opened("s1")
        for event in Tape("s1").add(ev.Notice(text="x")).events:
            store.handle_event(event)
        before = store.state.view
        store.set_sessions((), "s1")
        assert store.state.view is before

    def test_a_snapshot_of_the_server_can_be_put_in(self) -> None:
        store, played = opened("s1"), tape(ev.AgentStart())
        store.update(view=played.view)
        assert store.state.streaming
        assert store.state.view is played.view


class TestFields:
    def test_they_show_the_session_that_is_open(self) -> None:
        store = opened()
        played = Tape("s1").add(
            ev.ContextUsage(tokens=7, limit=10, percent=70),
            ev.SettingChanged(thinking="high"),
            ev.PromptQueued(text="Later", message_id="q1"),
            ev.SteeringReceived(ref="r1", text="Sooner"),
            ev.AgentStart(),
        )
        for event in played.events:
            store.handle_event(event)
        assert store.state.context_usage == Context(7, 10, 70)
        assert store.state.thinking_level == "high"
        assert [(entry.id, entry.kind, entry.text) for entry in store.state.scheduled_messages] == [
            ("q1", "user", "Later"),
            ("r1", "user", "Sooner"),
        ]
        assert store.state.streaming
