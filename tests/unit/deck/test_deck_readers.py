"""Test readers of a live deck: they miss nothing, get nothing twice, and don't wait for each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest

from quarterdeck import SessionHandle
from quarterdeck import events as ev
from quarterdeck.events import Event
from quarterdeck.log.base import Append, NoSuchSession, Receipt
from quarterdeck.log.tail import Feed
from tests.conformance.marks import case
from tests.support import scripted_agents
from tests.support.decks import all_events, at_home, busy, texts_of, until

#: The log may drop these once the complete text is written (design section 4).
DELTAS = {"message_delta", "thinking_delta", "tool_execution_output"}


@pytest.fixture(autouse=True)
def _agents(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted_agents.known(monkeypatch)


async def _read(events: AsyncGenerator[Event], last: str = "agent_end", pause: float = 0) -> list[Event]:
    """Read up to and including the first event of this type."""
    seen: list[Event] = []
    async with aclosing(events):
        async for event in events:
            seen.append(event)
            await asyncio.sleep(pause)
            if event.type == last:
                break
    return seen


def _indexes(events: list[Event]) -> list[int]:
    return [event.index for event in events]


async def _nothing_lost(session: SessionHandle, seen: list[Event]) -> None:
    """Check that the events are in order and unique, and that none that the log still has is missing."""
    assert _indexes(seen) == sorted(set(_indexes(seen)))
    kept = [event.index for event in await all_events(session) if event.index <= seen[-1].index]
    assert set(kept) <= set(_indexes(seen))


class TestOneSession:
    async def test_everything_from_the_beginning_while_it_is_busy(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "flood 3000; say end", cwd=str(tmp_path))
            seen = await _read(session.subscribe())
            await _nothing_lost(session, seen)
            whole = [event.body.blocks[0].text for event in seen if event.type == "response_complete"]
            assert whole == ["".join(f"{number} " for number in range(3000)), "end "]

    async def test_a_slow_one_misses_nothing_but_dropped_deltas(self, tmp_path: Path) -> None:
        async with at_home(tmp_path, tail=10) as deck:
            session = await deck.create("test", cwd=str(tmp_path))
            slow = asyncio.create_task(_read(session.subscribe(), "session_archived", pause=0.001))
            await session.prompt("flood 2000; say end")
            await session.settled()
            for number in range(30):
                await session.rename(f"n{number}")
            await session.archive()
            seen = await slow
            assert _indexes(seen) == sorted(set(_indexes(seen)))
            kept = [event for event in await all_events(session) if event.type not in DELTAS]
            assert [event.index for event in seen if event.type not in DELTAS] == _indexes(kept)

    async def test_one_that_comes_back_goes_on_where_it_was(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "say one", cwd=str(tmp_path))
            first = await _read(session.subscribe(), "agent_ready")
            await session.settled()
            rest = await _read(session.subscribe(since=first[-1].index))
            kept = [event.index for event in await all_events(session)]
            both = _indexes(first) + _indexes(rest)
            assert [index for index in both if index in kept] == [index for index in kept if index <= both[-1]]
            assert both == sorted(set(both))
        async with at_home(tmp_path) as deck:
            session = deck.session(session.id)
            later = asyncio.create_task(_read(session.subscribe(since=rest[-1].index), "session_renamed"))
            await asyncio.sleep(0)
            await session.rename("later")
            assert (await later)[-1].body.name == "later"

    async def test_only_what_is_asked_for(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "say one; tool ls; say two", cwd=str(tmp_path))
            seen = await _read(session.subscribe(types={"tool_execution_end", "agent_end"}))
            assert [event.type for event in seen] == ["tool_execution_end", "agent_end"]
            await session.settled()
            assert [event.type for event in await session.events(types={"tool_execution_end"})] == [
                "tool_execution_end"
            ]

    async def test_many_at_once_see_the_same(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", cwd=str(tmp_path))
            readers = [asyncio.create_task(_read(session.subscribe())) for _ in range(20)]
            await asyncio.sleep(0)
            await session.prompt("flood 500; say end")
            seen = await asyncio.gather(*readers)
            # Readers that fall behind the tail read from the log, which has dropped the deltas of complete messages.
            last = seen[0][-1].index
            kept = [event.index for event in await all_events(session) if event.index <= last]
            assert all([index for index in _indexes(one) if index in kept] == kept for one in seen)

    async def test_one_that_leaves_disturbs_nobody(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", cwd=str(tmp_path))
            stays = asyncio.create_task(_read(session.subscribe()))
            leaves = [asyncio.create_task(_read(session.subscribe())) for _ in range(5)]
            await asyncio.sleep(0)
            await session.prompt("flood 500; say end")
            for number, one in enumerate(leaves):
                await until(session, lambda view, number=number: view.index > 10 * number)
                one.cancel()
            await asyncio.gather(*leaves, return_exceptions=True)
            await _nothing_lost(session, await stays)
            assert deck.feed._sessions == {} or not deck.feed._sessions[session.id].readers

    async def test_a_session_that_is_not_there(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            with pytest.raises(NoSuchSession):
                await anext(SessionHandle(deck, "nobody").subscribe())
            assert deck.feed._sessions == {}


class TestATailThatBeginsInTheMiddle:
    async def test_nothing_is_lost_between_the_question_and_the_answer(self, tmp_path: Path) -> None:
        """Write events while the log is asked for its last index: they are in the tail."""
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", cwd=str(tmp_path))
            asked, answer = asyncio.Event(), asyncio.Event()
            ask = deck.services.log.session

            async def slowly(name: str) -> object:
                stored = await ask(name)
                asked.set()
                await answer.wait()
                return stored

            deck.services.log.session = slowly  # type: ignore[method-assign]
            reader = asyncio.create_task(_read(session.subscribe(), "session_archived"))
            await asked.wait()
            await session.rename("while it asks")
            answer.set()
            await asyncio.sleep(0)
            await session.archive()
            seen = await reader
            assert _indexes(seen) == list(range(1, len(seen) + 1))
            assert "while it asks" in [getattr(event.body, "name", "") for event in seen]

    async def test_several_that_begin_at_once_while_events_come(self, tmp_path: Path) -> None:
        async with at_home(tmp_path, tail=4) as deck:
            session = await deck.create("test", "flood 1500; say end", cwd=str(tmp_path))
            await until(session, lambda view: view.state.process.value == "up")
            readers = []
            for _ in range(30):
                readers.append(asyncio.create_task(_read(session.subscribe())))
                await asyncio.sleep(0)
            seen = await asyncio.gather(*readers)
            kept = [event.index for event in await all_events(session)]
            for one in seen:
                assert _indexes(one) == sorted(set(_indexes(one)))
                missing = [index for index in kept if index <= one[-1].index and index not in set(_indexes(one))]
                assert missing == []

    async def test_a_reader_that_gives_up_while_the_tail_is_asked_for(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", cwd=str(tmp_path))
            for _ in range(5):
                reader = asyncio.create_task(_read(session.subscribe()))
                await asyncio.sleep(0)
                reader.cancel()
                await asyncio.gather(reader, return_exceptions=True)
            stays = asyncio.create_task(_read(session.subscribe(), "session_archived"))
            await session.rename("a")
            await session.archive()
            seen = await stays
            assert _indexes(seen) == list(range(1, len(seen) + 1))

    async def test_the_second_reader_at_the_end_while_the_first_still_asks(self, tmp_path: Path) -> None:
        """Let the second reader finish the log before the start of the tail is known."""
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", cwd=str(tmp_path))
            asked, answer = asyncio.Event(), asyncio.Event()
            ask, count = deck.services.log.session, []

            async def slowly(name: str) -> object:
                stored = await ask(name)
                count.append(name)
                if len(count) == 1:
                    asked.set()
                    await answer.wait()
                return stored

            deck.services.log.session = slowly  # type: ignore[method-assign]
            readers = [asyncio.create_task(_read(session.subscribe(since=1), "session_archived"))]
            await asked.wait()
            readers.append(asyncio.create_task(_read(session.subscribe(since=1), "session_archived")))
            await asyncio.sleep(0.1)
            answer.set()
            await session.rename("later")
            await session.archive()
            for seen in await asyncio.gather(*readers):
                assert [event.type for event in seen] == ["session_renamed", "session_archived"]

    async def test_a_flood_while_it_asks(self, tmp_path: Path) -> None:
        """Write more events than the tail holds: the tail must not claim to reach back to the requested index."""
        async with at_home(tmp_path, tail=3) as deck:
            session = await deck.create("test", cwd=str(tmp_path))
            asked, answer = asyncio.Event(), asyncio.Event()
            ask = deck.services.log.session

            async def slowly(name: str) -> object:
                stored = await ask(name)
                asked.set()
                await answer.wait()
                return stored

            deck.services.log.session = slowly  # type: ignore[method-assign]
            reader = asyncio.create_task(_read(session.subscribe(since=1), "session_archived"))
            await asked.wait()
            for number in range(20):
                await session.rename(f"n{number}")
            answer.set()
            await session.archive()
            seen = await reader
            assert _indexes(seen) == list(range(2, 23))

    async def test_the_second_reader_while_the_first_still_asks(self, tmp_path: Path) -> None:
        """Share one tail: the second reader must not use it before the first knows how far back it reaches."""
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "say one", cwd=str(tmp_path))
            await session.settled()
            feed = Feed(deck.services.log, 4)
            first, second = await asyncio.gather(
                _read(feed.follow(session.id)), _read(feed.follow(session.id)), return_exceptions=False
            )
            assert _indexes(first) == _indexes(second)
            assert first[0].index == 1


async def test_who_waits_for_a_state_is_not_ahead_of_it(tmp_path: Path) -> None:
    """Delay a receipt, so that the event is in the log before the view shows it. `until` must check the view again."""
    async with at_home(tmp_path) as deck:
        session = await deck.create("test", cwd=str(tmp_path))
        real, is_kept, go = deck.services.log.append, asyncio.Event(), asyncio.Event()

        async def slowly(append: Append) -> Receipt:
            receipt = await real(append)
            is_kept.set()
            await go.wait()
            return receipt

        deck.services.log.append = slowly  # type: ignore[method-assign]
        renaming = asyncio.create_task(session.rename("x"))
        await is_kept.wait()
        waiting = asyncio.create_task(session.until(lambda view: view.state.profile.name == "x"))
        while not deck.feed._sessions:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        go.set()
        await asyncio.gather(renaming, asyncio.wait_for(waiting, 10))


class TestAllSessions:
    async def test_one_stream_in_one_order(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            count = 5
            events = deck.subscribe()
            seen: list[Event] = []

            async def read() -> None:
                ended = 0
                async for event in events:
                    seen.append(event)
                    ended += event.type == "agent_end"
                    if ended == count:
                        break

            reader = asyncio.create_task(read())
            sessions = [await deck.create("test", "flood 200; say end", cwd=str(tmp_path)) for _ in range(count)]
            await reader
            await events.aclose()
            assert [event.cursor for event in seen] == sorted({event.cursor for event in seen})
            for session in sessions:
                await _nothing_lost(session, [event for event in seen if event.session_id == session.id])
            again = deck.subscribe(since=seen[len(seen) // 2].cursor, types={"agent_end"})
            assert (await anext(again)).cursor > seen[len(seen) // 2].cursor
            await again.aclose()

    async def test_a_slow_reader_of_everything(self, tmp_path: Path) -> None:
        async with at_home(tmp_path, tail=5) as deck:
            slow = asyncio.create_task(_read(deck.subscribe(types=None), "session_archived", pause=0.0005))
            session = await deck.create("test", "flood 1000; say end", cwd=str(tmp_path))
            await session.settled()
            await session.archive()
            seen = await slow
            kept = _indexes([event for event in await all_events(session) if event.type not in DELTAS])
            assert [event.index for event in seen if event.type not in DELTAS] == kept


class TestStreams:
    """Upstream stores streams by message id. Here a reply in progress is a timeline entry with that id."""

    @case("U-064")
    async def test_a_reply_that_is_begun_twice_is_one(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "hang", cwd=str(tmp_path))
            await busy(session)
            live = deck.services.supervisor.sessions[session.id]
            begun = ev.MessageStart(message_id="m", turn_id=session.view.state.turn.id)
            a, b = (ev.MessageDelta(message_id="m", delta=piece) for piece in "ab")
            live.record(begun, a, begun, b)
            await live.writer.flush()
            assert len(session.view.timeline.open) == 1
            assert await texts_of(session, "assistant") == ["ab"]

    @case("U-066")
    async def test_one_reply_is_one_entry_that_grows_to_its_whole(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "say a b c; sleep 0.2; say d", cwd=str(tmp_path))
            grown: dict[str, list[str]] = {}
            async for event in session.subscribe():
                for entry in (await session.view_at(event.index)).timeline.entries:
                    if entry.kind == "assistant":
                        grown.setdefault(entry.id, []).append(entry.text)
                if event.type == "agent_end":
                    break
            view = await session.settled()
            assert [entry.text for entry in view.timeline.entries if entry.kind == "assistant"] == ["a b c ", "d "]
            assert len(grown) == 2
            for texts in grown.values():
                assert all(texts[-1].startswith(text) for text in texts)
            starts = [event.body.message_id for event in await all_events(session) if event.type == "message_start"]
            assert len(starts) == len(set(starts)) == 2
            assert not view.timeline.streaming
            assert view.timeline.open == ()

    @case("U-068")
    async def test_two_sessions_stream_apart(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            one, two = [await deck.create("test", f"flood 300; say {name}", cwd=str(tmp_path)) for name in ("x", "y")]
            for session, name in ((one, "x"), (two, "y")):
                await session.settled()
                said = await texts_of(session, "assistant")
                assert said == [" ".join(str(number) for number in range(300)), name]
                assert {event.session_id for event in await all_events(session)} == {session.id}
