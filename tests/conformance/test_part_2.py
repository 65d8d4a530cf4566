"""Show part 2: the durable lifecycle of seed 002, its list, its badge, its hints, and the retention of sessions."""

from __future__ import annotations

from itertools import product

import pytest

from quarterdeck import events as ev
from quarterdeck.errors import NotAllowed
from quarterdeck.events import Body
from quarterdeck.kernel import commands, lifecycle, phase, session_list
from quarterdeck.kernel.composer import composer
from quarterdeck.kernel.lifecycle import DAY_MS, STATES
from quarterdeck.kernel.routing import route
from quarterdeck.kernel.summary import Summary, details
from tests.conformance.marks import case, cases_from
from tests.fuzz.bodies import one_of_each
from tests.support.sessions import in_lifecycle, in_phase
from tests.support.tape import STEP, Tape

HOUR_MS = DAY_MS // 24
#: The only event that leads to each status. The one for `active` applies only to suspended sessions.
LEADS_TO: dict[str, Body] = {
    "active": ev.SessionResumed(),
    "suspended": ev.SessionSuspended(),
    "archived": ev.SessionArchived(),
    "error": ev.SessionFailed(),
}
ALLOWED_PAIRS = {("active", "suspended"), ("active", "archived"), ("active", "error"), ("suspended", "active")}

each_phase = pytest.mark.parametrize("name", phase.STATES)


def status(tape: Tape) -> str:
    return tape.state.lifecycle.value


def unresumable() -> Tape:
    """Create a suspended session whose agent can't resume."""
    return Tape().opened().add(ev.AgentReady(resumable=False), ev.SessionSuspended())


def one_of_each_status() -> list[Summary]:
    return [in_lifecycle(name).row for name in STATES]


def listed(archived: bool) -> set[str]:
    wanted = session_list.Filter(archived=archived)
    return {row.lifecycle for row in session_list.page(one_of_each_status(), wanted).sessions}


# ----------------------------------------------------------------------------------------------------- 2.A Overview


@case("2-001", "2-049")
def test_there_are_four_statuses() -> None:
    assert STATES == lifecycle.MACHINE.states == ("active", "suspended", "archived", "error")
    assert all(map(lifecycle.is_status, STATES))
    assert not any(map(lifecycle.is_status, ("completed", "cancelled", "none", "", "Active")))


@case("2-002")
@pytest.mark.parametrize("days", [0, 1, 400])
def test_a_session_does_not_complete(days: int) -> None:
    tape = in_phase("streaming").add(ev.AgentEnd(), after=days * DAY_MS)
    assert status(tape) == "active"
    commands.check(tape.state, commands.Prompt(text="Go on"))
    assert "completed" not in STATES


# ------------------------------------------------------------------------------------------------------- 2.B active


@case("2-038")
def test_a_session_is_created_active() -> None:
    assert status(Tape().opened()) == lifecycle.MACHINE.initial == "active"


@case("2-004", "2-017")
@each_phase
def test_a_suspended_session_is_resumed(name: str) -> None:
    tape = in_lifecycle("suspended", name)
    # Other events in between don't matter.
    tape.add(ev.SettingChanged())
    assert status(tape.add(ev.SessionResumed())) == "active"


@case("2-004", "2-017")
def test_the_resume_command_is_allowed_where_the_agent_can() -> None:
    tape = in_lifecycle("suspended")
    assert tape.state.profile.resumable
    commands.check(tape.state, commands.Resume())


@case("2-005")
@each_phase
def test_an_active_session_takes_messages(name: str) -> None:
    tape = in_phase(name)
    commands.check(tape.state, commands.Prompt(text="Hello"))
    assert route(tape.state).meaning != "refused"


LEAVING_ACTIVE: dict[str, tuple[Body, str]] = {
    "2-006": (ev.SessionSuspended(reason="shutdown"), "suspended"),
    "2-007": (ev.SessionArchived(), "archived"),
    "2-008": (ev.SessionFailed(message="The disk is gone"), "error"),
    "2-020": (ev.SessionArchived(end_reason="archived"), "archived"),
    "2-033": (ev.SessionFailed(message="Unhandled exception"), "error"),
    "2-034": (ev.SessionFailed(kind="agent", message="Its history cannot be read"), "error"),
}


@cases_from(LEAVING_ACTIVE, "body, after")
def test_an_active_session_is_left_from_every_phase(body: Body, after: str) -> None:
    for name in phase.STATES:
        tape = in_phase(name).add(body)
        assert status(tape) == after
        assert (tape.state.process.value, tape.state.run.value) == ("none", "idle")


@case("2-007", "2-020")
@each_phase
def test_a_person_may_archive_whatever_goes_on(name: str) -> None:
    commands.check(in_phase(name).state, commands.Archive())


EXITS: dict[str, tuple[ev.ProcessExited, ...]] = {
    "2-009": (ev.ProcessExited(code=0),),
    "2-010": (ev.ProcessExited(code=1), ev.ProcessExited(signal="SIGKILL"), ev.ProcessExited(signal="SIGSEGV")),
    "2-037": (ev.ProcessExited(code=139), ev.ProcessExited(signal="SIGABRT")),
    "2-042": (ev.ProcessExited(code=0), ev.ProcessExited(code=2), ev.ProcessExited(code=0, asked=True)),
}


@cases_from(EXITS, "exits")
def test_an_exit_of_the_process_leaves_the_session_active(exits: tuple[ev.ProcessExited, ...]) -> None:
    for name, gone in product(phase.STATES, exits):
        tape = in_phase(name).add(gone)
        assert (status(tape), tape.state.process.value) == ("active", "none")
        commands.check(tape.state, commands.Prompt(text="Go on"))


@case("2-011")
@each_phase
def test_an_active_session_can_be_written_to_read_and_cancelled(name: str) -> None:
    tape = in_phase(name)
    assert {"prompt", "cancel"} <= set(commands.allowed(tape.state))
    assert "active" in lifecycle.MACHINE.flags["inputEnabled"]
    assert "active" in lifecycle.MACHINE.flags["viewable"]


# ---------------------------------------------------------------------------------------------------- 2.C suspended


@case("2-014")
@pytest.mark.parametrize("kept", ["suspended", "archived", "error"])
def test_a_shutdown_changes_active_sessions_only(kept: str) -> None:
    tape = in_lifecycle(kept)
    before = tape.state
    assert tape.add(ev.SessionSuspended(reason="shutdown")).state is before


@case("2-015")
@each_phase
def test_a_shutdown_is_the_last_activity(name: str) -> None:
    tape = in_phase(name)
    at = tape.view.at + 7 * STEP
    tape.add(ev.SessionSuspended(), after=7 * STEP)
    assert tape.state.last_active_at == tape.row.last_active_at == at


@case("2-016")
def test_a_suspended_session_has_no_process_and_is_resumed_where_the_agent_can() -> None:
    tape = in_lifecycle("suspended", "streaming")
    assert (tape.state.process.value, tape.state.turn.is_open) == ("none", False)
    assert route(tape.state).meaning == "resume_then_prompt"
    assert route(unresumable().state).meaning == "refused"


@case("2-018")
def test_cleaning_up_by_hand_leaves_a_session_suspended() -> None:
    for command in (commands.Archive(), commands.Cancel(), commands.Abort()):
        tape = in_lifecycle("suspended")
        with pytest.raises(NotAllowed):
            commands.check(tape.state, command)
        assert status(tape) == "suspended"
    for body in (ev.SessionArchived(), ev.SessionFailed(), ev.SessionRenamed(name="x"), ev.PromptDropped(text="y")):
        assert status(in_lifecycle("suspended").add(body)) == "suspended"


@case("2-019")
def test_a_suspended_session_is_read_only_and_says_what_may_come() -> None:
    tape = in_lifecycle("suspended")
    assert "suspended" not in lifecycle.MACHINE.flags["inputEnabled"]
    assert "suspended" in lifecycle.MACHINE.flags["viewable"]
    assert [entry.text for entry in tape.entries] == ["Fix the bug", "Done."]
    with pytest.raises(NotAllowed, match="may be resumable when agent supports it"):
        commands.check(tape.state, commands.Steer(text="Left"))


@case("2-019")
def test_a_text_in_a_suspended_session_resumes_it_first() -> None:
    box = composer(in_lifecycle("suspended").state)
    assert (box.enabled, box.action) == (True, "resume_and_send")


# ----------------------------------------------------------------------------------------------------- 2.D archived


@case("2-023", "2-035")
@pytest.mark.parametrize("final", ["archived", "error"])
def test_a_terminal_status_is_never_left(final: str) -> None:
    for body in one_of_each():
        assert status(in_lifecycle(final).add(body)) == final, body


@case("2-023", "2-024", "2-036")
@pytest.mark.parametrize("final", ["archived", "error"])
def test_a_terminal_status_takes_no_command_but_delete(final: str) -> None:
    tape = in_lifecycle(final)
    assert commands.allowed(tape.state) == ("delete",)
    for command in (commands.Prompt(text="Hello"), commands.Resume(), commands.Steer(text="x"), commands.Retry()):
        with pytest.raises(NotAllowed):
            commands.check(tape.state, command)
    assert route(tape.state).meaning == "refused"


@case("2-024")
def test_an_archived_session_says_so_and_can_be_read() -> None:
    tape = in_lifecycle("archived")
    assert (composer(tape.state).enabled, composer(tape.state).reason) == (False, "Session is archived")
    assert session_list.matches(tape.row, session_list.Filter(archived=True))
    assert "archived" in lifecycle.MACHINE.flags["viewable"]
    assert [entry.text for entry in tape.entries] == ["Fix the bug", "Done."]


@case("2-025", "2-026", "2-027")
def test_an_archived_session_is_hidden_uncounted_and_shown_on_request() -> None:
    rows = [in_lifecycle("archived").row]
    assert session_list.page(rows, session_list.Filter()).sessions == ()
    assert session_list.badge(rows).count == 0
    assert session_list.page(rows, session_list.Filter(archived=True)).sessions == tuple(rows)


@case("2-029")
def test_archiving_finished_work_takes_it_off_the_list() -> None:
    tape = in_phase("completed")
    assert session_list.matches(tape.row, session_list.Filter())
    commands.check(tape.state, commands.Archive())
    tape.add(ev.SessionArchived(), origin="user")
    assert (status(tape), tape.row.end_reason) == ("archived", "archived")
    assert not session_list.matches(tape.row, session_list.Filter())
    assert session_list.matches(tape.row, session_list.Filter(archived=True))


@case("2-032")
@each_phase
def test_nothing_but_the_archive_action_archives(name: str) -> None:
    for body in one_of_each():
        if not isinstance(body, ev.SessionArchived):
            assert status(in_phase(name).add(body)) != "archived", body


@case("2-036")
def test_a_failed_session_is_hidden_and_takes_nothing() -> None:
    tape = in_lifecycle("error")
    assert not composer(tape.state).enabled
    for archived in (False, True):
        assert not session_list.matches(tape.row, session_list.Filter(archived=archived))


def test_a_failed_session_can_still_be_found_by_its_status() -> None:
    assert session_list.matches(in_lifecycle("error").row, session_list.Filter(status=("error",)))


# ------------------------------------------------------------------------------------------- 2.F Transition diagram


@case("2-039", "2-040")
def test_the_ways_out() -> None:
    ways = {source: {row.target for row in lifecycle.MACHINE.explain(source)} for source in STATES}
    assert ways == {
        "active": {"suspended", "archived", "error"},
        "suspended": {"active"},
        "archived": set(),
        "error": set(),
    }


@case("2-041")
@pytest.mark.parametrize(("source", "target"), list(product(STATES, STATES)))
def test_pair(source: str, target: str) -> None:
    tape = in_lifecycle(source)
    before = tape.state
    tape.add(LEADS_TO[target])
    if (source, target) in ALLOWED_PAIRS:
        assert lifecycle.may_move(source, target)
        assert status(tape) == target
    else:
        assert not lifecycle.may_move(source, target)
        assert tape.state is before


# --------------------------------------------------------------------------------------------- 2.G UI filtering rules


@case("2-043")
def test_the_list_shows_active_and_suspended_sessions() -> None:
    assert listed(archived=False) == {"active", "suspended"}


@case("2-044")
def test_show_archived_adds_the_archived_ones_only() -> None:
    assert listed(archived=True) == {"active", "suspended", "archived"}


@case("2-045")
def test_the_badge_counts_active_and_suspended_sessions() -> None:
    assert session_list.badge(one_of_each_status()).count == 2
    assert [session_list.badge([in_lifecycle(name).row]).count for name in STATES] == [1, 1, 0, 0]


@case("2-046")
def test_input_is_enabled_in_active_sessions() -> None:
    assert lifecycle.MACHINE.flags["inputEnabled"] == ("active",)
    offers = {name: composer(in_lifecycle(name).state) for name in STATES}
    assert {name: box.enabled for name, box in offers.items()} == {
        "active": True,
        # By the amendment, a message resumes the session first.
        "suspended": True,
        "archived": False,
        "error": False,
    }
    assert offers["suspended"].action == "resume_and_send"


# -------------------------------------------------------------------------------------------------- 2.J Resumption


@case("2-058")
@pytest.mark.parametrize("final", ["archived", "error"])
def test_a_terminal_session_is_not_resumed(final: str) -> None:
    tape = in_lifecycle(final)
    before = tape.view
    with pytest.raises(NotAllowed):
        commands.check(tape.state, commands.Resume())
    assert tape.view is before


@case("2-058")
@each_phase
def test_resume_in_an_active_session_is_000s(name: str) -> None:
    tape = in_phase(name)
    if name in phase.FLAGS["showResumeButton"]:
        commands.check(tape.state, commands.Resume())
        assert tape.add(ev.TurnContinued()).phase == "streaming"
    else:
        with pytest.raises(NotAllowed):
            commands.check(tape.state, commands.Resume())


# ----------------------------------------------------------------------------------------- 2.M Old session cleanup

KEPT: dict[str, tuple[str, bool, int, bool]] = {
    "2-070": ("suspended", False, 6 * DAY_MS, True),
    "2-071": ("suspended", False, 7 * DAY_MS + 1, False),
    "2-072": ("suspended", True, 8 * DAY_MS, True),
    "2-073": ("suspended", True, 30 * DAY_MS + 1, False),
    "2-074": ("error", False, 23 * HOUR_MS, True),
    "2-075": ("error", False, 24 * HOUR_MS + 1, False),
    "2-076": ("archived", False, 100_000 * DAY_MS, True),
    "2-078": ("active", False, 100_000 * DAY_MS, True),
}


@cases_from(KEPT, "name, resumable, age, kept")
def test_the_daily_clean_up_keeps_it(name: str, resumable: bool, age: int, kept: bool) -> None:
    assert lifecycle.is_expired(name, 1_000, resumable, 1_000 + age) is not kept


@pytest.mark.parametrize(("name", "days"), [("suspended", 7), ("error", 1)])
def test_the_age_itself_is_still_kept(name: str, days: int) -> None:
    assert not lifecycle.is_expired(name, 0, False, days * DAY_MS)
    assert lifecycle.is_expired(name, 0, False, days * DAY_MS + 1)


@pytest.mark.parametrize(("name", "days"), [("active", None), ("suspended", 30), ("archived", None), ("error", 1)])
def test_the_date_of_deletion_is_shown_beforehand(name: str, days: int | None) -> None:
    tape = in_lifecycle(name)
    expected = None if days is None else tape.state.last_active_at + days * DAY_MS
    assert details(tape.view).deletes_at == expected


# --------------------------------------------------------------------------- 2.I the model of five states (deck: 2.I)


@pytest.mark.parametrize(
    ("former", "now"),
    [("completed", "active"), ("cancelled", "archived"), *((name, name) for name in STATES)],
)
def test_a_former_status_has_its_place(former: str, now: str) -> None:
    assert lifecycle.migrated(former) == now
    assert lifecycle.migrated(lifecycle.migrated(former)) == now
    assert lifecycle.is_status(now)
