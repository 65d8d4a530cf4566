"""The conformance suite of whole harnesses: what every driver and its translator must do with a real process.

    @pytest.mark.parametrize("check", checks(HARNESS, SCRIPT), ids=lambda check: check.__name__)
    def test_my_harness(check, tmp_path):
        asyncio.run(run(check, HARNESS, SCRIPT, str(tmp_path)))

`SCRIPT` says which prompts bring the agent to do what (scene.py). `checks` leaves out what the driver says its agent cannot
do; what it says the agent can do, it must show.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from quarterdeck import events as ev
from quarterdeck.events import Body, Image
from quarterdeck.harness.driver import CannotDo, Decision, Lines
from quarterdeck.harness.registry import Harness
from quarterdeck.process.identity import find_by_nonce, is_alive
from quarterdeck.testing.scene import Scene, Script

Check: TypeAlias = Callable[[Scene], Awaitable[None]]

CHECKS: list[Check] = []
#: check → the capability without which it does not apply, and the prompt of the script that it uses.
_NEEDS: dict[Check, tuple[str, str]] = {}


def checks(harness: Harness, script: Script) -> list[Check]:
    """Those that apply to this harness. A promise for which the script has no prompt is an error: it would go unshown."""
    capabilities = harness.make_driver().capabilities
    found: list[Check] = []
    for check in CHECKS:
        capability, prompt = _NEEDS.get(check, ("", ""))
        if capability and not getattr(capabilities, capability):
            continue
        if prompt and not getattr(script, prompt):
            raise ValueError(f"{harness.name} promises {capability}, and the script has no {prompt!r} to show it with")
        found.append(check)
    return found


async def run(check: Check, harness: Harness, script: Script, folder: str) -> None:
    """One check with a fresh process, and after it what must hold of every one."""
    scene = Scene(harness, script, folder)
    try:
        await scene.begin()
        await check(scene)
    finally:
        await scene.close()
    scene.check_whole()


def _check(function: Check) -> Check:
    CHECKS.append(function)
    return function


def _check_if(capability: str, prompt: str = "") -> Callable[[Check], Check]:
    def marked(function: Check) -> Check:
        _NEEDS[function] = (capability, prompt)
        return _check(function)

    return marked


def kinds(bodies: list[Body], *types: type[Body]) -> list[str]:
    """The names of those events of the main agent that are of these types, in order."""
    return [type(body).__name__ for body in bodies if isinstance(body, types) and not body.agent_path]


def same(found: object, wanted: object, what: str) -> None:
    """In so many words, because pytest explains only the assertions of a test's own file."""
    assert found == wanted, f"{what}: {found!r}, and not {wanted!r}"


_TURN = (ev.AgentStart, ev.AgentEnd, ev.AgentAbort)


# --- starting


@_check
async def becomes_ready(scene: Scene) -> None:
    await scene.ready()
    events = kinds(scene.bodies, ev.ProcessStarting, ev.AgentReady)
    same(events[:2], ["ProcessStarting", "AgentReady"], "what it begins with")
    same(kinds(scene.bodies, *_TURN), [], "its work before it was asked to")
    same((scene.state.activity.value, scene.state.run.value), ("idle", "idle"), "activity and run")


@_check
async def says_which_session_it_has_and_what_it_can_do(scene: Scene) -> None:
    """At the latest with its first turn: some agents know their session only then."""
    await scene.finish(scene.script.answer)
    profile, promised = scene.state.profile, scene.driver.capabilities
    assert profile.native_session_id, "it has no session of its own"
    same("steer" in profile.capabilities, promised.steer, "whether it announces that it can be steered")
    too_many = [name for name in profile.capabilities if not getattr(promised, name, True)]
    assert not too_many, f"the translator announces what the driver does not promise: {too_many}"
    same(profile.resumable, promised.resume, "whether it announces that it can be resumed")


# --- turns


@_check
async def a_prompt_is_answered_in_one_turn(scene: Scene) -> None:
    bodies = await scene.finish(scene.script.answer)
    same(kinds(bodies, ev.PromptReceived, *_TURN), ["PromptReceived", "AgentStart", "AgentEnd"], "the turn")
    same(scene.since(0, ev.AgentEnd)[0].outcome, "completed", "the outcome")
    text = scene.texts(bodies)
    assert text.strip(), "it said nothing"
    assert scene.script.answer_has in text, f"it said {text!r}"
    same((scene.state.phase.value, scene.state.activity.value), ("completed", "idle"), "phase and activity")


@_check
async def a_prompt_keeps_its_name_or_its_text(scene: Scene) -> None:
    """So that the deck knows which of its messages was taken."""
    await scene.finish(scene.script.answer, "my-prompt-1")
    (taken,) = scene.since(0, ev.PromptReceived)
    is_known = taken.message_id == "my-prompt-1" or taken.text.strip() == scene.script.answer.strip()
    assert is_known, f"it took {taken!r}"


@_check
async def a_second_prompt_goes_to_the_same_process(scene: Scene) -> None:
    first = await scene.finish(scene.script.answer, "p1")
    second = await scene.finish(scene.script.answer, "p2")
    same([kinds(first, *_TURN), kinds(second, *_TURN)], [["AgentStart", "AgentEnd"]] * 2, "the two turns")
    turns = [body.turn_id for body in scene.since(0, ev.AgentStart)]
    assert len(set(turns)) == 2, f"two turns of one name: {turns}"
    messages = [{body.message_id for body in part if isinstance(body, ev.MessageStart)} for part in (first, second)]
    assert not messages[0] & messages[1], "two replies of one name"
    same(kinds(scene.bodies, ev.ProcessStarting), ["ProcessStarting"], "the processes")


@_check_if("interrupt")
async def an_interrupt_ends_the_turn_and_not_the_process(scene: Scene) -> None:
    await scene.prompt(scene.script.hang)
    scene.say(scene.driver.interrupt())
    await scene.over()
    same(kinds(scene.bodies, *_TURN), ["AgentStart", "AgentAbort"], "the turn")
    assert is_alive(scene.process.identity), "the process ended, too"
    same((scene.state.process.value, scene.state.phase.value), ("up", "stopped"), "process and phase")
    bodies = await scene.finish(scene.script.answer, "p2")
    same(kinds(bodies, *_TURN), ["AgentStart", "AgentEnd"], "the next turn")


@_check_if("steer", "steps")
async def a_text_reaches_it_in_the_middle_of_a_turn(scene: Scene) -> None:
    await scene.prompt(scene.script.steps)
    scene.say(scene.driver.steer("and be brief", "s1"))
    await scene.until(lambda: bool(scene.since(0, ev.SteeringApplied)), "the text is taken")
    assert scene.state.turn.is_open, "only after the turn"
    await scene.over()
    applied = scene.since(0, ev.SteeringApplied)
    same([ref for body in applied for ref in body.refs], ["s1"], "what was taken")
    assert len(scene.since(0, ev.AgentStart)) == 1, "it became a turn of its own"


# --- gates


@_check_if("approvals", "ask")
async def what_is_allowed_runs(scene: Scene) -> None:
    call = await _decided(scene, "approved")
    ends = [body.ok for body in scene.since(0, ev.ToolExecutionEnd) if body.call_id == call or not call]
    same(ends, [True], "the call's ends")


@_check_if("approvals", "ask")
async def what_is_refused_does_not_run(scene: Scene) -> None:
    call = await _decided(scene, "rejected")
    ends = [body.ok for body in scene.since(0, ev.ToolExecutionEnd) if body.call_id == call or not call]
    assert True not in ends, "it ran"
    assert ends or scene.since(0, ev.ToolBlocked), "its end is not told"


async def _decided(scene: Scene, status: str) -> str:
    """The call that a gate was about, after the gate was decided so and the turn has ended."""
    await scene.prompt(scene.script.ask)
    gate = await scene.gate("approval")
    shown = scene.state.activity.value, scene.state.phase.value
    same(shown, ("active/waiting_for_permission", "waiting_approval"), "activity and phase")
    assert not scene.since(0, ev.ToolExecutionEnd), "it did not wait"
    scene.decide(gate, Decision(status="approved" if status == "approved" else "rejected", reason="a check"))
    await scene.over()
    same([body.status for body in scene.since(0, ev.ApprovalResolved)], [status], "the decisions")
    same(scene.state.gates.open, (), "open gates")
    return gate.call_id


@_check_if("approvals", "ask")
async def an_interrupt_withdraws_what_is_asked(scene: Scene) -> None:
    await scene.prompt(scene.script.ask)
    await scene.gate("approval")
    scene.say(scene.driver.interrupt())
    await scene.over()
    same(scene.state.gates.open, (), "open gates")
    decisions = [body.status for body in scene.since(0, ev.ApprovalResolved)]
    assert decisions in (["withdrawn"], ["cancelled"]), f"the decisions: {decisions}"
    same(kinds(scene.bodies, *_TURN), ["AgentStart", "AgentAbort"], "the turn")
    assert True not in [body.ok for body in scene.since(0, ev.ToolExecutionEnd)], "it ran"


@_check_if("questions", "question")
async def a_question_is_answered(scene: Scene) -> None:
    await scene.prompt(scene.script.question)
    gate = await scene.gate("question")
    same(scene.state.phase.value, "waiting_input", "phase")
    scene.decide(gate, Decision(status="answered", answer=scene.script.reply))
    await scene.over()
    same([body.status for body in scene.since(0, ev.UserResponded)], ["answered"], "the answers")
    same(scene.state.gates.open, (), "open gates")
    same(kinds(scene.bodies, *_TURN), ["AgentStart", "AgentEnd"], "the turn")


@_check_if("dialogs", "dialog")
async def a_dialog_is_answered(scene: Scene) -> None:
    await _dialog(scene, Decision(status="answered", answer=scene.script.choice))


@_check_if("dialogs", "dialog")
async def a_dialog_is_dismissed(scene: Scene) -> None:
    await _dialog(scene, Decision(status="cancelled"))


async def _dialog(scene: Scene, decision: Decision) -> None:
    await scene.prompt(scene.script.dialog)
    scene.decide(await scene.gate("dialog"), decision)
    await scene.until(lambda: not scene.state.gates.open, "the dialog is closed")
    await scene.over()
    same([body.status for body in scene.since(0, ev.DialogResolved)], [decision.status], "the answers")


# --- what it can and cannot do


@_check_if("switch_model", "other_model")
async def the_model_is_switched(scene: Scene) -> None:
    await scene.finish(scene.script.answer)
    scene.say(scene.driver.switch_model(scene.script.other_model))
    bodies = await scene.finish(scene.script.answer, "p2")
    same(scene.state.profile.model, scene.script.other_model, "the model")
    same(kinds(bodies, *_TURN), ["AgentStart", "AgentEnd"], "the next turn")


@_check
async def what_it_cannot_do_is_refused_and_nothing_is_said(scene: Scene) -> None:
    await scene.finish(scene.script.answer)
    said = [signal for _, signal in scene.parts[-1].heard if signal is not None and signal.src == "stdin"]
    for what, can, attempt in _attempts(scene):
        lines = _lines_of(attempt)
        assert can or lines is None, f"it does not promise to {what}, and does not refuse"
        assert not can or lines, f"it promises to {what}, and has no word for it"
    heard = [signal for _, signal in scene.parts[-1].heard if signal is not None and signal.src == "stdin"]
    same(heard, said, "what it was told")
    assert is_alive(scene.process.identity), "the process ended"


def _lines_of(attempt: Callable[[], Lines]) -> Lines | None:
    """What would be said; None when it is refused in so many words."""
    try:
        return attempt()
    except CannotDo:
        return None


def _attempts(scene: Scene) -> list[tuple[str, bool, Callable[[], Lines]]]:
    """A mode may also be one that only a start can choose, so only an agent without any must refuse one."""
    driver, can = scene.driver, scene.driver.capabilities
    image = Image(media_type="image/png", data="iVBORw0KGgo=")
    found: list[tuple[str, bool, Callable[[], Lines]]] = [
        ("interrupt", can.interrupt, driver.interrupt),
        ("steer", can.steer, lambda: driver.steer("text", "s1")),
        ("switch its model", can.switch_model, lambda: driver.switch_model(scene.script.other_model or "other")),
        ("compact", can.compact, driver.compact),
        ("run commands", can.bash, lambda: driver.bash("true", "b1")),
        ("take images", can.images, lambda: driver.prompt("look", "p9", (image,))),
    ]
    return found if can.modes else [*found, ("switch its mode", False, lambda: driver.switch_mode("plan"))]


# --- ends


@_check
async def a_crash_in_the_middle_closes_the_turn(scene: Scene) -> None:
    await scene.prompt(scene.script.hang)
    await scene.crash()
    _assert_over(scene)


@_check_if("approvals", "ask")
async def a_crash_closes_what_is_asked(scene: Scene) -> None:
    await scene.prompt(scene.script.ask)
    await scene.gate("approval")
    await scene.crash()
    _assert_over(scene)


def _assert_over(scene: Scene) -> None:
    assert len(kinds(scene.bodies, *_TURN)) == 2, "the turn was not closed, or twice"
    same(len(scene.since(0, ev.ProcessExited)), 1, "how often its exit is told")
    state = scene.state
    shown = state.process.value, state.run.value, state.activity.value
    same(shown, ("none", "idle", "exited"), "process, run and activity")
    same((state.gates.open, state.turn.id), ((), ""), "what is still open")


@_check
async def a_stop_leaves_nothing(scene: Scene) -> None:
    await (scene.finish(scene.script.children) if scene.script.children else scene.ready())
    if scene.script.children:
        assert len(find_by_nonce([scene.nonces[-1]])) > 1, "it left no process running"
    await scene.stop()
    same(find_by_nonce([scene.nonces[-1]]), [], "processes that are left")
    (exited,) = scene.since(0, ev.ProcessExited)
    assert exited.asked or exited.signal, "nobody knows that it was asked for"
    assert scene.state.phase.value != "error", "a stop is shown as an error"


@_check
async def a_stop_in_the_middle_closes_the_turn(scene: Scene) -> None:
    await scene.prompt(scene.script.hang)
    await scene.stop()
    _assert_over(scene)
    same(scene.state.phase.value, "stopped", "phase")


# --- resuming


@_check_if("resume")
async def a_resumed_session_goes_on(scene: Scene) -> None:
    """With the same session, what was before in mind, and none of it told as new work."""
    await scene.finish(scene.script.answer)
    native = scene.state.profile.native_session_id
    await scene.stop()
    since = len(scene.bodies)
    await scene.begin(native)
    await scene.ready()
    bodies = await scene.finish(scene.script.recall or scene.script.answer, "p2")
    told = kinds(scene.bodies[since:], ev.PromptReceived, *_TURN)
    same(told, ["PromptReceived", "AgentStart", "AgentEnd"], "what is told as new")
    same(scene.state.profile.native_session_id, native, "its native session")
    assert scene.script.recall_has in scene.texts(bodies), f"it remembers {scene.texts(bodies)!r}"


@_check_if("resume")
async def a_session_that_crashed_is_resumed_without_its_work(scene: Scene) -> None:
    await scene.finish(scene.script.answer)
    await scene.prompt(scene.script.hang, "p2")
    native = scene.state.profile.native_session_id
    await scene.crash()
    since = len(scene.bodies)
    await scene.begin(native)
    bodies = await scene.finish(scene.script.answer, "p3")
    same(kinds(scene.bodies[since:], *_TURN), ["AgentStart", "AgentEnd"], "what is told as new")
    assert scene.texts(bodies).strip(), "it said nothing"
