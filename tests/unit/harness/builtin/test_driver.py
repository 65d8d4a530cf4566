"""Test the lines that are written to the engine's process, and the events from which it restores a session."""

from __future__ import annotations

from quarterdeck import events as ev
from quarterdeck.events import Body, Event
from quarterdeck.harness.base import Signal
from quarterdeck.harness.builtin import history
from quarterdeck.harness.builtin.driver import BuiltinDriver, DemoDriver
from quarterdeck.harness.driver import Decision, Start
from quarterdeck.harness.registry import harness
from quarterdeck.kernel.gate import Gate

GATE = Gate("g7", "approval", "rm", {}, (), 0, None, (), "a1", "c1", "ask:command")


def log(*bodies: Body) -> tuple[Event, ...]:
    return tuple(Event("s1", place, 0, "engine", body) for place, body in enumerate(bodies, 1))


def test_a_new_conversation_is_opened() -> None:
    driver = BuiltinDriver()
    assert driver.open(Start(cwd="/", model="chat:m", mode="ask")) == [{"op": "open", "model": "chat:m", "mode": "ask"}]
    assert driver.spawn(Start(cwd="/", arguments=("--x",))).argv[1:] == ("-P", "-m", "quarterdeck.engine", "--x")


def test_the_demo_has_a_model_of_its_own() -> None:
    assert [DemoDriver().model(name) for name in ("", "tour", "demo:other")] == ["demo:tour", "demo:tour", "demo:other"]


def test_answers() -> None:
    def told(**fields: object) -> object:
        return BuiltinDriver().answer(GATE, Decision(**fields))[0]  # type: ignore[arg-type]

    assert told(status="approved") == {"op": "answer", "ref": "a1", "status": "approved"}
    assert told(status="approved", resumes=False)["auto_resume"] is False
    assert told(status="rejected", reason="no")["reason"] == "no"
    assert told(status="answered", answer=["a", "b"])["answer"] == ["a", "b"]


def test_what_it_wants_kept_is_answered() -> None:
    driver = BuiltinDriver()
    assert driver.respond(Signal("stdout", {"keep": 4})) == [{"op": "kept", "n": 4}]
    assert driver.respond(Signal("stdout", {"type": "agent_start"})) == []
    assert driver.respond(Signal("stdin", {"keep": 4})) == []


def test_a_session_that_goes_on_gets_its_events_back() -> None:
    reply = ev.ResponseComplete(message_id="m", blocks=(ev.Block(text="hi"),))
    told = history.bodies_to_restore(
        log(
            ev.AgentReady(native_session_id="old"),
            ev.PromptReceived(text="of another conversation"),
            ev.AgentReady(native_session_id="n1"),
            ev.PromptReceived(text="first"),
            ev.SteeringReceived(ref="s1", text="taken"),
            ev.SteeringReceived(ref="s2", text="not taken"),
            ev.SteeringApplied(refs=("s1",)),
            reply,
            ev.PromptQueued(text="waits in the deck", message_id="p9"),
            ev.ResponseComplete(message_id="c", agent_path=("child",)),
            ev.AgentEnd(messages=({"role": "user"},)),
            ev.AgentReady(native_session_id="n1"),
        ),
        "n1",
    )
    kinds = [(one["type"], one.get("text") or one.get("ref")) for one in told]
    assert kinds == [
        ("prompt_received", "first"),
        ("steering_received", "taken"),
        ("steering_applied", None),
        ("response_complete", None),
        ("agent_end", None),
    ]
    assert "messages" not in told[-1]


def test_without_a_conversation_of_this_name_nothing_is_told() -> None:
    assert history.bodies_to_restore(log(ev.PromptReceived(text="x")), "n1") == []


def test_both_are_always_there_and_the_demo_needs_no_key() -> None:
    for name in ("builtin", "demo"):
        assert harness(name).availability({"HOME": "/nowhere", "QUARTERDECK_HOME": "/nowhere"}).installed
    empty = {"QUARTERDECK_HOME": "/nowhere"}
    assert harness("demo").availability(empty).login == "ok"
    assert harness("demo").prompt
    assert harness("builtin").availability(empty).login == "missing"
    assert harness("builtin").availability(empty | {"OPENAI_API_KEY": "k"}).login == "ok"
