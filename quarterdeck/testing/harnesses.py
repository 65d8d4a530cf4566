"""Check what every harness must do with a real process of its agent.

    @pytest.mark.parametrize("check", checks(HARNESS, SCRIPT), ids=lambda check: check.__name__)
    def test_my_harness(check, tmp_path):
        asyncio.run(run(check, HARNESS, SCRIPT, str(tmp_path)))

`SCRIPT` has the prompts that make the agent do what the checks need (`scene.py`). `checks` skips what the driver's
capabilities exclude. Everything that they include must be shown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from quarterdeck import events as ev
from quarterdeck.events import Body, Image
from quarterdeck.harness.base import Signal
from quarterdeck.harness.driver import CannotDo, Decision, Lines
from quarterdeck.harness.registry import Harness
from quarterdeck.process.identity import find_by_nonce, is_alive
from quarterdeck.testing.scene import Scene, Script

Check: TypeAlias = Callable[[Scene], Awaitable[None]]

CHECKS: list[Check] = []
#: Check → the capability that it needs, and the prompt of the script that it uses.
_NEEDS: dict[Check, tuple[str, str]] = {}


def checks(harness: Harness, script: Script) -> list[Check]:
    """Return the checks that apply to a harness.

    Raises:
        ValueError: the driver has a capability for which the script has no prompt, so it couldn't be checked.
    """
    capabilities = harness.make_driver().capabilities
    applicable: list[Check] = []
    for check in CHECKS:
        capability, prompt = _NEEDS.get(check, ("", ""))
        if capability and not getattr(capabilities, capability):
            continue
        if prompt and not getattr(script, prompt):
            raise ValueError(f"{harness.name} has the capability {capability}, but the script has no {prompt!r}")
        applicable.append(check)
    return applicable


async def run(check: Check, harness: Harness, script: Script, folder: str) -> None:
    """Run one check with a new process, then check what must hold after each.

    Raises:
        AssertionError: the harness doesn't conform.
    """
    scene = Scene(harness, script, folder)
    try:
        await scene.begin()
        await check(scene)
    finally:
        await scene.close()
    scene.check_end()


def _check(function: Check) -> Check:
    CHECKS.append(function)
    return function


def _check_if(capability: str, prompt: str = "") -> Callable[[Check], Check]:
    def register(function: Check) -> Check:
        _NEEDS[function] = (capability, prompt)
        return _check(function)

    return register


def kinds(bodies: list[Body], *types: type[Body]) -> list[str]:
    """Return the type names of the main agent's events of these types, in order."""
    return [type(body).__name__ for body in bodies if isinstance(body, types) and not body.agent_path]


def expect(actual: object, expected: object, what: str) -> None:
    """Assert that two values are equal, with a message: pytest explains only assertions in test files."""
    assert actual == expected, f"{what}: {actual!r}, expected {expected!r}"


_TURN = (ev.AgentStart, ev.AgentEnd, ev.AgentAbort)


# --- starting


@_check
async def becomes_ready(scene: Scene) -> None:
    await scene.ready()
    events = kinds(scene.bodies, ev.ProcessStarting, ev.AgentReady)
    expect(events[:2], ["ProcessStarting", "AgentReady"], "the first events")
    expect(kinds(scene.bodies, *_TURN), [], "turns before the first prompt")
    expect((scene.state.activity.value, scene.state.run.value), ("idle", "idle"), "activity and run")


@_check
async def says_which_session_it_has_and_what_it_can_do(scene: Scene) -> None:
    # Some agents know their session only after the first turn.
    await scene.finish(scene.script.answer)
    profile, promised = scene.state.profile, scene.driver.capabilities
    assert profile.native_session_id, "no native session id was reported"
    expect("steer" in profile.capabilities, promised.steer, "whether agent_ready lists steer")
    too_many = [name for name in profile.capabilities if not getattr(promised, name, True)]
    assert not too_many, f"agent_ready lists capabilities that the driver doesn't have: {too_many}"
    expect(profile.resumable, promised.resume, "whether agent_ready says resumable")


# --- turns


@_check
async def a_prompt_is_answered_in_one_turn(scene: Scene) -> None:
    bodies = await scene.finish(scene.script.answer)
    expect(kinds(bodies, ev.PromptReceived, *_TURN), ["PromptReceived", "AgentStart", "AgentEnd"], "the turn")
    expect(scene.since(0, ev.AgentEnd)[0].outcome, "completed", "the outcome")
    text = scene.texts(bodies)
    assert text.strip(), "the agent wrote no text"
    assert scene.script.answer_has in text, f"the agent wrote {text!r}"
    expect((scene.state.phase.value, scene.state.activity.value), ("completed", "idle"), "phase and activity")


@_check
async def a_prompt_keeps_its_name_or_its_text(scene: Scene) -> None:
    # Otherwise the deck can't know which of its messages the agent took.
    await scene.finish(scene.script.answer, "my-prompt-1")
    (taken,) = scene.since(0, ev.PromptReceived)
    is_known = taken.message_id == "my-prompt-1" or taken.text.strip() == scene.script.answer.strip()
    assert is_known, f"the agent took {taken!r}"


@_check
async def a_second_prompt_goes_to_the_same_process(scene: Scene) -> None:
    first = await scene.finish(scene.script.answer, "p1")
    second = await scene.finish(scene.script.answer, "p2")
    expect([kinds(first, *_TURN), kinds(second, *_TURN)], [["AgentStart", "AgentEnd"]] * 2, "the two turns")
    turns = [body.turn_id for body in scene.since(0, ev.AgentStart)]
    assert len(set(turns)) == 2, f"two turns have one id: {turns}"
    messages = [{body.message_id for body in part if isinstance(body, ev.MessageStart)} for part in (first, second)]
    assert not messages[0] & messages[1], "two replies have one id"
    expect(kinds(scene.bodies, ev.ProcessStarting), ["ProcessStarting"], "the processes")


@_check_if("interrupt")
async def an_interrupt_ends_the_turn_and_not_the_process(scene: Scene) -> None:
    await scene.prompt(scene.script.hang)
    scene.say(scene.driver.interrupt())
    await scene.over()
    expect(kinds(scene.bodies, *_TURN), ["AgentStart", "AgentAbort"], "the turn")
    assert is_alive(scene.process.identity), "the process exited as well"
    expect((scene.state.process.value, scene.state.phase.value), ("up", "stopped"), "process and phase")
    bodies = await scene.finish(scene.script.answer, "p2")
    expect(kinds(bodies, *_TURN), ["AgentStart", "AgentEnd"], "the next turn")


@_check_if("steer", "steps")
async def a_text_reaches_it_in_the_middle_of_a_turn(scene: Scene) -> None:
    await scene.prompt(scene.script.steps)
    scene.say(scene.driver.steer("and be brief", "s1"))
    await scene.until(lambda: bool(scene.since(0, ev.SteeringApplied)), "the text is taken")
    assert scene.state.turn.is_open, "the text was taken only after the turn"
    await scene.over()
    applied = scene.since(0, ev.SteeringApplied)
    expect([ref for body in applied for ref in body.refs], ["s1"], "what was taken")
    assert len(scene.since(0, ev.AgentStart)) == 1, "the text started a turn of its own"


# --- gates


@_check_if("approvals", "ask")
async def what_is_allowed_runs(scene: Scene) -> None:
    call = await _decided(scene, "approved")
    ends = [body.ok for body in scene.since(0, ev.ToolExecutionEnd) if body.call_id == call or not call]
    expect(ends, [True], "the call's ends")


@_check_if("approvals", "ask")
async def what_is_refused_does_not_run(scene: Scene) -> None:
    call = await _decided(scene, "rejected")
    ends = [body.ok for body in scene.since(0, ev.ToolExecutionEnd) if body.call_id == call or not call]
    assert True not in ends, "the call ran"
    assert ends or scene.since(0, ev.ToolBlocked), "the end of the call isn't reported"


async def _decided(scene: Scene, status: str) -> str:
    """Decide the approval of a call, wait for the end of the turn and return the call's id."""
    await scene.prompt(scene.script.ask)
    gate = await scene.gate("approval")
    shown = scene.state.activity.value, scene.state.phase.value
    expect(shown, ("active/waiting_for_permission", "waiting_approval"), "activity and phase")
    assert not scene.since(0, ev.ToolExecutionEnd), "the agent didn't wait for the decision"
    scene.decide(gate, Decision(status="approved" if status == "approved" else "rejected", reason="a check"))
    await scene.over()
    expect([body.status for body in scene.since(0, ev.ApprovalResolved)], [status], "the decisions")
    expect(scene.state.gates.open, (), "open gates")
    return gate.call_id


@_check_if("approvals", "ask")
async def an_interrupt_withdraws_what_is_asked(scene: Scene) -> None:
    await scene.prompt(scene.script.ask)
    await scene.gate("approval")
    scene.say(scene.driver.interrupt())
    await scene.over()
    expect(scene.state.gates.open, (), "open gates")
    decisions = [body.status for body in scene.since(0, ev.ApprovalResolved)]
    assert decisions in (["withdrawn"], ["cancelled"]), f"the decisions: {decisions}"
    expect(kinds(scene.bodies, *_TURN), ["AgentStart", "AgentAbort"], "the turn")
    assert True not in [body.ok for body in scene.since(0, ev.ToolExecutionEnd)], "the call ran"


@_check_if("questions", "question")
async def a_question_is_answered(scene: Scene) -> None:
    await scene.prompt(scene.script.question)
    gate = await scene.gate("question")
    expect(scene.state.phase.value, "waiting_input", "phase")
    scene.decide(gate, Decision(status="answered", answer=scene.script.reply))
    await scene.over()
    expect([body.status for body in scene.since(0, ev.UserResponded)], ["answered"], "the answers")
    expect(scene.state.gates.open, (), "open gates")
    expect(kinds(scene.bodies, *_TURN), ["AgentStart", "AgentEnd"], "the turn")


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
    expect([body.status for body in scene.since(0, ev.DialogResolved)], [decision.status], "the answers")


# --- capabilities


@_check_if("switch_model", "other_model")
async def the_model_is_switched(scene: Scene) -> None:
    await scene.finish(scene.script.answer)
    scene.say(scene.driver.switch_model(scene.script.other_model))
    bodies = await scene.finish(scene.script.answer, "p2")
    expect(scene.state.profile.model, scene.script.other_model, "the model")
    expect(kinds(bodies, *_TURN), ["AgentStart", "AgentEnd"], "the next turn")


@_check
async def what_it_cannot_do_is_refused_and_nothing_is_said(scene: Scene) -> None:
    await scene.finish(scene.script.answer)
    before = _lines_written(scene)
    for what, can, attempt in _attempts(scene):
        lines = _lines_of(attempt)
        assert can or lines is None, f"the driver has no capability to {what}, but doesn't raise CannotDo"
        assert not can or lines, f"the driver has the capability to {what}, but returns no lines"
    expect(_lines_written(scene), before, "the lines written to the agent")
    assert is_alive(scene.process.identity), "the process exited"


def _lines_written(scene: Scene) -> list[Signal]:
    return [signal for _, signal in scene.parts[-1].signals if signal is not None and signal.src == "stdin"]


def _lines_of(attempt: Callable[[], Lines]) -> Lines | None:
    """Return the lines that a driver would write, or None if it raises CannotDo."""
    try:
        return attempt()
    except CannotDo:
        return None


def _attempts(scene: Scene) -> list[tuple[str, bool, Callable[[], Lines]]]:
    """Return (what, whether the driver has the capability, the attempt).

    Some agents take a mode only when they start, so only an agent without modes must refuse to switch.
    """
    driver, can = scene.driver, scene.driver.capabilities
    image = Image(media_type="image/png", data="iVBORw0KGgo=")
    attempts: list[tuple[str, bool, Callable[[], Lines]]] = [
        ("interrupt", can.interrupt, driver.interrupt),
        ("steer", can.steer, lambda: driver.steer("text", "s1")),
        ("switch its model", can.switch_model, lambda: driver.switch_model(scene.script.other_model or "other")),
        ("compact", can.compact, driver.compact),
        ("run commands", can.bash, lambda: driver.bash("true", "b1")),
        ("take images", can.images, lambda: driver.prompt("look", "p9", (image,))),
    ]
    return attempts if can.modes else [*attempts, ("switch its mode", False, lambda: driver.switch_mode("plan"))]


# --- ends


@_check
async def a_crash_in_the_middle_closes_the_turn(scene: Scene) -> None:
    await scene.prompt(scene.script.hang)
    await scene.crash()
    _expect_closed(scene)


@_check_if("approvals", "ask")
async def a_crash_closes_what_is_asked(scene: Scene) -> None:
    await scene.prompt(scene.script.ask)
    await scene.gate("approval")
    await scene.crash()
    _expect_closed(scene)


def _expect_closed(scene: Scene) -> None:
    assert len(kinds(scene.bodies, *_TURN)) == 2, "the turn wasn't closed exactly once"
    expect(len(scene.since(0, ev.ProcessExited)), 1, "the number of exits")
    state = scene.state
    shown = state.process.value, state.run.value, state.activity.value
    expect(shown, ("none", "idle", "exited"), "process, run and activity")
    expect((state.gates.open, state.turn.id), ((), ""), "what is still open")


@_check
async def a_stop_leaves_nothing(scene: Scene) -> None:
    await (scene.finish(scene.script.children) if scene.script.children else scene.ready())
    if scene.script.children:
        assert len(find_by_nonce([scene.nonces[-1]])) > 1, "the agent left no process running"
    await scene.stop()
    expect(find_by_nonce([scene.nonces[-1]]), [], "processes that are left")
    (exited,) = scene.since(0, ev.ProcessExited)
    assert exited.asked or exited.signal, "the exit isn't marked as requested"
    assert scene.state.phase.value != "error", "a stop is shown as an error"


@_check
async def a_stop_in_the_middle_closes_the_turn(scene: Scene) -> None:
    await scene.prompt(scene.script.hang)
    await scene.stop()
    _expect_closed(scene)
    expect(scene.state.phase.value, "stopped", "phase")


# --- resuming


@_check_if("resume")
async def a_resumed_session_goes_on(scene: Scene) -> None:
    # It has the same session, remembers what came before, and reports none of it as new.
    await scene.finish(scene.script.answer)
    native = scene.state.profile.native_session_id
    await scene.stop()
    since = len(scene.bodies)
    await scene.begin(native)
    await scene.ready()
    bodies = await scene.finish(scene.script.recall or scene.script.answer, "p2")
    new = kinds(scene.bodies[since:], ev.PromptReceived, *_TURN)
    expect(new, ["PromptReceived", "AgentStart", "AgentEnd"], "the new events")
    expect(scene.state.profile.native_session_id, native, "its native session")
    assert scene.script.recall_has in scene.texts(bodies), f"the agent answered {scene.texts(bodies)!r}"


@_check_if("resume")
async def a_session_that_crashed_is_resumed_without_its_work(scene: Scene) -> None:
    await scene.finish(scene.script.answer)
    await scene.prompt(scene.script.hang, "p2")
    native = scene.state.profile.native_session_id
    await scene.crash()
    since = len(scene.bodies)
    await scene.begin(native)
    bodies = await scene.finish(scene.script.answer, "p3")
    expect(kinds(scene.bodies[since:], *_TURN), ["AgentStart", "AgentEnd"], "the new events")
    assert scene.texts(bodies).strip(), "the agent wrote no text"
