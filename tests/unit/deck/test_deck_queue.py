"""Test queued messages: steering, order, receipts, and edits by the user before the agent reads them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from quarterdeck import Deck, SessionHandle
from quarterdeck.deck.commands.texts import NoSuchText
from quarterdeck.deck.validation import InvalidInput
from quarterdeck.errors import NotAllowed, QueueFull
from tests.conformance.marks import case
from tests.support import scripted_agents
from tests.support.decks import all_events, at_home, busy, eventually, pid_of, texts_of, until


@pytest.fixture(autouse=True)
def _agents(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted_agents.known(monkeypatch)


async def _receipts(session: SessionHandle, message_id: str) -> list[str]:
    """Return the delivery states of one message in the log, in order."""
    found = [event.body for event in await all_events(session)]
    return [body.status for body in found if getattr(body, "message_id", "") == message_id and hasattr(body, "status")]


async def _all_read(session: SessionHandle) -> None:
    await until(session, lambda view: not view.state.queue and not view.state.turn.is_open)


class TestSteer:
    async def test_when_nothing_runs_it_is_a_prompt(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", cwd=str(tmp_path))
            answer = await session.steer("say hello", ref="r1")
            assert (answer.ref, answer.status) == ("r1", "prompted")
            await session.settled()
            assert await texts_of(session) == ["say hello", "hello"]

    async def test_in_a_turn_it_is_read_at_the_next_step(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "sleep 1; say done", cwd=str(tmp_path))
            await busy(session)
            answer = await session.steer("left")
            assert answer.status == "queued"
            await _all_read(session)
            applied = [event.body for event in await all_events(session) if event.type == "steering_applied"]
            assert [body.refs for body in applied] == [(answer.ref,)]

    async def test_an_agent_that_cannot_is_told_first_after_the_turn(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("plain", "sleep 1; say one", cwd=str(tmp_path))
            await busy(session)
            await session.steer("say two")
            await session.prompt("say three")
            await _all_read(session)
            assert await texts_of(session, "assistant") == ["one", "two", "three"]

    async def test_what_the_turn_did_not_read_is_the_next_prompt(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "question which?", cwd=str(tmp_path))
            view = await until(session, lambda view: view.state.gates.open)
            for number in range(3):
                await session.steer(f"aside {number}")
            with pytest.raises(QueueFull, match="3 messages"):
                await session.steer("aside 4")
            await session.respond(view.state.gates.open[0].id, "red")
            await _all_read(session)
            said = await texts_of(session)
            assert [text for text in said if text.startswith("aside")][:3] == ["aside 0", "aside 1", "aside 2"]


class TestTheWayOfAText:
    @case("U-034", "U-075")
    async def test_queued_sending_taken_one_at_a_time_in_order(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("plain", "sleep 1; say one", cwd=str(tmp_path))
            await busy(session)
            names = [(await session.prompt(f"say {word}")).message_id for word in ("two", "three", "four")]
            assert [(item.id, item.receipt) for item in session.queue] == [(name, "queued") for name in names]
            await _all_read(session)
            way = [
                (body.message_id, getattr(body, "status", "received"))
                for body in (event.body for event in await all_events(session))
                if type(body).__name__ in ("DeliveryChanged", "PromptReceived") and body.message_id in names
            ]
            assert way == [(name, step) for name in names for step in ("sending", "received")]
            assert await texts_of(session, "assistant") == ["one", "two", "three", "four"]

    @case("U-034", "U-075")
    async def test_failed_with_the_reason(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("early", "say one", cwd=str(tmp_path))
            view = await until(session, lambda view: any(item.receipt == "failed" for item in view.state.queue))
            assert view.state.phase.value == "error"
            failed = [event.body for event in await all_events(session) if event.type == "delivery_changed"]
            assert failed[-1].status == "failed"
            assert failed[-1].reason

    async def test_a_process_that_dies_in_between_leaves_the_outcome_unknown(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "say one", cwd=str(tmp_path))
            await session.settled()
            pid = pid_of(deck, session)
            # A stopped process doesn't read its input.
            os.kill(pid, signal.SIGSTOP)
            await session.prompt("say two")
            await until(session, lambda view: view.state.queue[0].receipt == "sending")
            os.kill(pid, signal.SIGKILL)
            view = await until(session, lambda view: view.state.process.value == "none" and view.state.queue)
            await until(session, lambda view: view.state.queue[0].receipt == "unknown")
            assert view.state.lifecycle.value == "active"
            assert session.view.state.phase.value != "streaming"
            assert await _receipts(session, session.queue[0].id) == ["sending", "unknown"]


class TestEdit:
    async def test_a_waiting_text_is_read_as_edited(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("plain", "sleep 1; say one", cwd=str(tmp_path))
            await busy(session)
            name = (await session.prompt("say tow")).message_id
            await session.edit_queued(name, "say two")
            assert [(item.id, item.text) for item in session.queue] == [(name, "say two")]
            await _all_read(session)
            assert await texts_of(session, "assistant") == ["one", "two"]
            assert "say tow" not in await texts_of(session)

    async def test_no_other_can_be(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("plain", "hang", cwd=str(tmp_path))
            await busy(session)
            name = (await session.prompt("say two")).message_id
            before = session.view
            with pytest.raises(NoSuchText) as missing:
                await session.edit_queued("nobody", "x")
            assert missing.value.code == "no_such_text"
            assert missing.value.hint
            with pytest.raises(InvalidInput, match="empty"):
                await session.edit_queued(name, "  ")
            with pytest.raises(InvalidInput, match="NUL"):
                await session.edit_queued(name, "a\0b")
            assert session.view is before

    async def test_one_on_its_way_cannot_be(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "say one", cwd=str(tmp_path))
            await session.settled()
            pid = pid_of(deck, session)
            os.kill(pid, signal.SIGSTOP)
            name = (await session.prompt("say two")).message_id
            await until(session, lambda view: view.state.queue[0].receipt == "sending")
            with pytest.raises(NotAllowed, match="on its way"):
                await session.edit_queued(name, "say three")
            with pytest.raises(NotAllowed, match="on its way"):
                await session.drop_queued(name)
            with pytest.raises(NotAllowed, match="sending"):
                await session.resend(name)
            assert (await session.drop_queued()).dropped == ()
            os.kill(pid, signal.SIGCONT)
            await session.settled()
            assert (await texts_of(session, "assistant"))[-1] == "two"


async def test_a_name_of_the_callers_own_is_of_one_text(tmp_path: Path) -> None:
    async with at_home(tmp_path) as deck:
        session = await deck.create("plain", "sleep 0.3; say one", cwd=str(tmp_path))
        await busy(session)
        await session.steer("say two", ref="r")
        await session.steer("say two", ref="r")
        with pytest.raises(InvalidInput, match="ref: is used by another"):
            await session.steer("say three", ref="r")
        await _all_read(session)
        assert await texts_of(session, "assistant") == ["one", "two"]


class TestDrop:
    async def test_one_or_all(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("plain", "sleep 1; say one", cwd=str(tmp_path))
            await busy(session)
            names = [(await session.prompt(f"say {word}")).message_id for word in ("two", "three", "four")]
            assert (await session.drop_queued(names[1])).dropped == ("say three",)
            assert [item.id for item in session.queue] == [names[0], names[2]]
            assert (await session.drop_queued()).dropped == ("say two", "say four")
            assert session.queue == ()
            assert (await session.drop_queued()).dropped == ()
            await session.settled()
            assert await texts_of(session, "assistant") == ["one"]
            with pytest.raises(NoSuchText):
                await session.drop_queued(names[0])

    async def test_the_text_that_the_session_is_made_for(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("gated", "say one", cwd=str(tmp_path))
            assert session.summary.phase == "creating"
            assert (await session.drop_queued()).dropped == ("say one",)
            assert session.summary.phase == "stopped"
            (tmp_path / "go").touch()
            await session.prompt("say two")
            await session.settled()
            assert await texts_of(session, "assistant") == ["two"]


class TestResend:
    @staticmethod
    async def _failed(deck: Deck, folder: Path) -> tuple[SessionHandle, str]:
        session = await deck.create("early", "say one", cwd=str(folder))
        view = await until(session, lambda view: any(item.receipt == "failed" for item in view.state.queue))
        return session, view.state.queue[0].id

    @case("U-035", "U-075")
    async def test_back_to_queued_at_most_three_times(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session, name = await self._failed(deck, tmp_path)
            for number in (1, 2, 3):
                index = session.view.index
                await session.resend(name)
                view = await until(
                    session,
                    lambda view, index=index: view.index > index + 2 and view.state.queue[0].receipt == "failed",
                )
                assert view.state.queue[0].retries == number
            before = session.view
            with pytest.raises(NotAllowed, match="already sent again 3 times"):
                await session.resend(name)
            assert session.view is before
            assert await _receipts(session, name) == ["failed", "queued"] * 3 + ["failed"]

    async def test_a_text_of_unknown_outcome(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "say one", cwd=str(tmp_path))
            await session.settled()
            pid = pid_of(deck, session)
            os.kill(pid, signal.SIGSTOP)
            name = (await session.prompt("say two")).message_id
            await until(session, lambda view: view.state.queue[0].receipt == "sending")
            os.kill(pid, signal.SIGKILL)
            await until(session, lambda view: view.state.queue[0].receipt == "unknown")
            assert await texts_of(session, "assistant") == ["one"]
            await session.resend(name)
            await _all_read(session)
            assert await texts_of(session, "assistant") == ["one", "two"]

    async def test_a_suspended_session_is_resumed_for_it(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "say one", cwd=str(tmp_path))
            await session.settled()
            os.kill(pid_of(deck, session), signal.SIGSTOP)
            name = (await session.prompt("say two")).message_id
            await until(session, lambda view: view.state.queue[0].receipt == "sending")
        async with at_home(tmp_path) as deck:
            session = deck.session(session.id)
            assert (session.summary.lifecycle, session.queue[0].receipt) == ("suspended", "unknown")
            await session.resend(name)
            assert session.summary.lifecycle == "active"
            await _all_read(session)
            assert await texts_of(session, "assistant") == ["one", "two"]

    async def test_one_that_cannot_be_resumed_promises_nothing(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("forgetful", "say one", cwd=str(tmp_path))
            await session.settled()
            os.kill(pid_of(deck, session), signal.SIGSTOP)
            name = (await session.prompt("say two")).message_id
            await until(session, lambda view: view.state.queue[0].receipt == "sending")
        async with at_home(tmp_path) as deck:
            session = deck.session(session.id)
            before = session.view.index
            with pytest.raises(NotAllowed, match="cannot be resumed"):
                await session.resend(name)
            assert session.view.index == before

    async def test_one_that_nobody_will_read_is_not_promised_again(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("early", "say one", cwd=str(tmp_path))
            await until(session, lambda view: any(item.receipt == "failed" for item in view.state.queue))
            await session.archive()
            before = session.view
            with pytest.raises(NotAllowed, match="archived"):
                await session.resend(before.state.queue[0].id)
            assert session.view is before

    async def test_nothing_else_waits_behind_a_failed_text_for_ever(self, tmp_path: Path) -> None:
        """Check that the failed message stays in the queue, and that the next one is delivered before it."""
        async with at_home(tmp_path) as deck:
            session = await deck.create("test", "say one", cwd=str(tmp_path))
            await session.settled()
            pid = pid_of(deck, session)
            os.kill(pid, signal.SIGSTOP)
            await session.prompt("say two")
            await until(session, lambda view: view.state.queue[0].receipt == "sending")
            os.kill(pid, signal.SIGKILL)
            await until(session, lambda view: view.state.queue[0].receipt == "unknown")
            await session.prompt("say three")
            await until(session, lambda view: len(view.state.queue) == 1 and not view.state.turn.is_open)
            await session.settled()
            assert await texts_of(session, "assistant") == ["one", "three"]
            assert [item.receipt for item in session.queue] == ["unknown"]

    async def test_a_text_that_waits_is_not_sent_twice(self, tmp_path: Path) -> None:
        async with at_home(tmp_path) as deck:
            session = await deck.create("plain", "hang", cwd=str(tmp_path))
            await busy(session)
            name = (await session.prompt("say two")).message_id
            with pytest.raises(NotAllowed, match="the text is queued"):
                await session.resend(name)
            with pytest.raises(NoSuchText):
                await session.resend("nobody")


@case("U-032")
async def test_a_message_for_a_session_that_still_starts_is_kept(tmp_path: Path) -> None:
    """Queue a message also while the agent starts because of a resume."""
    agents_home = tmp_path
    (agents_home / "go").touch()
    async with at_home(agents_home) as deck:
        session = await deck.create("gated", "say one", cwd=str(tmp_path))
        await session.settled()
    (agents_home / "go").unlink()
    async with at_home(agents_home) as deck:
        session = deck.session(session.id)
        await session.resume()
        await until(session, lambda view: view.state.process.value == "starting")
        receipt = await session.prompt("say two")
        assert receipt.accepted
        assert [item.text for item in session.queue] == ["say two"]
        (agents_home / "go").touch()
        await _all_read(session)
        await eventually(lambda: session.is_settled)
        assert await texts_of(session, "assistant") == ["one", "two"]
