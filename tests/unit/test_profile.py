"""Test a session's name and settings, and which events change them."""

from __future__ import annotations

import pytest

from quarterdeck import events as ev
from quarterdeck.events import Body, Repo
from quarterdeck.kernel.process import Exit
from quarterdeck.kernel.profile import Changes, Context, Profile, label
from tests.support.tape import START, Tape, tape


class TestLabels:
    @pytest.mark.parametrize(
        ("prompt", "name"),
        [
            ("", ""),
            ("  \n ", ""),
            ("Fix it", "Fix it"),
            ("\n  Fix it  \nand that", "Fix it"),
            ("x" * 40, "x" * 40),
            ("x" * 41, "x" * 39 + "…"),
            ("x" * 38 + " yz", "x" * 38 + "…"),
        ],
    )
    def test_the_first_line_is_cut_at_40_characters(self, prompt: str, name: str) -> None:
        assert label(prompt) == name

    def test_a_session_is_called_after_its_prompt_until_somebody_names_it(self) -> None:
        played = Tape().opened("Fix the bug")
        assert played.state.profile.name == "Fix the bug"
        played.add(ev.TitleGenerated(title="Login is slow"))
        assert played.state.profile.name == "Login is slow"
        played.add(ev.SessionRenamed(name="Mine"), ev.TitleGenerated(title="Another title"))
        assert (played.state.profile.name, played.state.profile.named_by) == ("Mine", "user")

    def test_a_session_without_a_prompt_is_called_after_its_first_one(self) -> None:
        played = tape(ev.PromptReceived(text="Task is done", source="agent"), ev.PromptReceived(text="Go on"))
        assert played.state.profile.name == "Go on"
        assert played.add(ev.PromptReceived(text="Then this")).state.profile.name == "Go on"

    def test_a_name_that_was_given_stays(self) -> None:
        played = Tape().add(ev.SessionOpened(agent="demo", name="Mine", prompt="Go"), ev.TitleGenerated(title="Other"))
        assert played.state.profile.name == "Mine"

    def test_a_title_is_cut_at_60_characters_and_a_blank_one_is_none(self) -> None:
        played = Tape().opened("Go").add(ev.TitleGenerated(title="x" * 70), ev.TitleGenerated(title="  "))
        assert played.state.profile.name == "x" * 60


class TestSettings:
    @pytest.mark.parametrize(
        ("profile", "itself"),
        [
            (Profile(), False),
            (Profile(auto_approve=True), True),
            (Profile(mode="plan"), False),
            (Profile(mode="ask"), False),
            (Profile(mode="edits"), False),
            (Profile(mode="auto"), True),
            (Profile(mode="bypass"), True),
        ],
        ids=str,
    )
    def test_who_approves_by_itself(self, profile: Profile, itself: bool) -> None:
        assert profile.approves_itself is itself

    def test_what_opens_a_session_is_kept(self) -> None:
        repo = Repo(root="/src", name="src", branch="main")
        opened = ev.SessionOpened(
            agent="claude", cwd="/src", model="opus", mode="plan", repo=repo, owner="terminal", continues="s0"
        )
        profile = Tape("s7").add(opened).state.profile
        assert (profile.id, profile.agent, profile.cwd, profile.model) == ("s7", "claude", "/src", "opus")
        assert (profile.mode, profile.repo, profile.owner, profile.continues) == ("plan", repo, "terminal", "s0")
        assert profile.created_at == START

    def test_a_session_is_opened_once(self) -> None:
        played = tape()
        before = played.state
        assert played.add(ev.SessionOpened(agent="other")).state is before

    @pytest.mark.parametrize(
        ("body", "changed"),
        [
            (ev.SettingChanged(mode="auto"), {"mode": "auto"}),
            (ev.SettingChanged(thinking="high"), {"thinking": "high"}),
            (ev.SettingChanged(model="opus"), {"model": "opus"}),
            (ev.SettingChanged(auto_approve=True), {"auto_approve": True}),
            (ev.ModelSwitched(to="opus"), {"model": "opus"}),
            (ev.ContextUsage(tokens=5, limit=10, percent=50), {"context": Context(5, 10, 50)}),
            (ev.ChangesUpdated(files=1, added=2, removed=3), {"changes": Changes(1, 2, 3)}),
            (ev.OwnerChanged(epoch=2), {"epoch": 2}),
            (ev.OwnerChanged(epoch=2, owner="terminal"), {"epoch": 2, "owner": "terminal"}),
            (ev.SessionMarked(pinned=True), {"pinned": True}),
            (ev.SessionMarked(snoozed_until=9), {"snoozed_until": 9}),
            (ev.SessionMarked(read_index=2), {"read_index": 2}),
            (ev.SessionMarked(), {}),
            (ev.SettingChanged(), {}),
            (
                ev.AgentReady(native_session_id="n", model="m", version="1", capabilities=("steer",), resumable=True),
                {
                    "native_session_id": "n",
                    "model": "m",
                    "agent_version": "1",
                    "capabilities": ("steer",),
                    "resumable": True,
                    "never_ready": False,
                },
            ),
            (ev.AgentReady(), {"never_ready": False}),
            (ev.SessionArchived(end_reason="cancelled"), {"end_reason": "cancelled"}),
            (ev.RequestStart(model="m"), {"model": "m"}),
        ],
        ids=str,
    )
    def test_an_event_changes_what_it_names_and_nothing_else(self, body: Body, changed: dict[str, object]) -> None:
        before = tape()
        after = tape(body)
        expected = {name: getattr(before.state.profile, name) for name in Profile.__struct_fields__} | changed
        assert {name: getattr(after.state.profile, name) for name in Profile.__struct_fields__} == expected

    def test_fields_that_are_left_out_stay(self) -> None:
        played = tape(
            ev.SettingChanged(mode="auto", thinking="high", model="opus", auto_approve=True),
            ev.SessionMarked(pinned=True, snoozed_until=9, read_index=1),
            ev.AgentReady(native_session_id="n", version="1", capabilities=("steer",), resumable=True),
        )
        before = played.state.profile
        assert played.add(ev.SettingChanged(), ev.SessionMarked(), ev.AgentReady()).state.profile == before

    def test_a_snoozed_session_is_woken_by_zero(self) -> None:
        played = tape(ev.SessionMarked(snoozed_until=9), ev.SessionMarked(snoozed_until=0))
        assert played.state.profile.snoozed_until is None

    def test_a_new_process_forgets_how_the_last_one_ended(self) -> None:
        assert tape(ev.ProcessExited(code=3, signal="SIGX")).state.exit == Exit(3, "SIGX")
        assert tape(ev.ProcessExited(code=3), ev.ProcessStarting()).state.exit is None

    def test_a_model_that_is_known_is_not_told_by_a_request(self) -> None:
        assert tape(ev.SettingChanged(model="opus"), ev.RequestStart(model="haiku")).state.profile.model == "opus"

    def test_a_session_at_rest_can_still_be_named_and_marked(self) -> None:
        played = tape(ev.SessionArchived(), ev.SessionRenamed(name="Old"), ev.SessionMarked(pinned=True))
        assert (played.state.profile.name, played.state.profile.pinned) == ("Old", True)
