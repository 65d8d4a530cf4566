"""Reads an ACP agent: JSON-RPC over stdio, both directions.

One translator serves one session: the first that is opened, loaded, resumed or forked on the connection. What concerns
another one is known and moves nothing. The parts, each resting on the one before:
    connection  the messages of both directions, and what is not answered yet
    prompts     prompts, the turns that they are, how they end
    speech      texts and thoughts
    tools       calls, permissions
    translate   sessions and settings, here
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from quarterdeck import events as ev
from quarterdeck.harness.acp import profile as profiles
from quarterdeck.harness.acp.connection import QUIET_S, Id, Sent
from quarterdeck.harness.acp.history import History
from quarterdeck.harness.acp.outcome import error_kind, error_text
from quarterdeck.harness.acp.profile import Profile, recognised
from quarterdeck.harness.acp.tools import Tools
from quarterdeck.harness.base import Object, Translator, is_object, object_of, objects_of, text_of
from quarterdeck.harness.protocol_detection import Detecting, acp_or_sayask
from quarterdeck.harness.tracker import AgentPath
from quarterdeck.kernel.view import View

#: Requests that make a session ours. All but the first bring its history back.
_OPENING = ("session/new", "session/load", "session/resume", "session/fork")
#: What the names of configuration options mean, by category where there is one.
_OPTION_WORDS = {"model": "model", "mode": "mode", "thought_level": "thinking", "effort": "thinking"}


class Acp(Tools):
    """The whole translator: sessions, settings, the process."""

    def __init__(self, profile: Profile) -> None:
        Tools.__init__(self, profile)
        self.mode = ""
        self.thinking = ""
        self._opening: Id = None
        self._others: set[str] = set()
        self._initialized: Object = {}
        self.readers |= {"stdin": self.read_stdin, "stdout": self.read_stdout}
        self.timer_callbacks |= {"replay": self.on_replay}

    # --- sessions

    def sent_opening(self, method: str, params: Object, key: Id) -> bool:
        """Whether this request is about our session. The first one of its kind makes it ours."""
        named = text_of(params, "sessionId")
        if self.session or self._opening is not None:
            again = named == self.session and method in ("session/load", "session/resume")
            if named and named != self.session:
                self._others.add(named)
            if not again:
                return False
        else:
            self._opening = key
            self.session = named if method != "session/fork" else ""
        if method != "session/new" and not self.tracker.turn_id:
            self.history = History(self.profile)
        return True

    def answered_initialize(self, sent: Sent, result: Object, error: Object | None) -> None:
        if error is None:
            self._initialized = result
            self.profile = recognised(result) or self.profile
        else:
            self._not_opened(sent, error)

    def answered_opening(self, sent: Sent, result: Object, error: Object | None) -> None:
        named = text_of(result, "sessionId") or text_of(sent.params, "sessionId")
        if not sent.mine:
            self._others.add(named)
            return
        was_first = sent.key == self._opening
        self._opening = None if was_first else self._opening
        if error is not None:
            self.history = None
            self.session = "" if was_first else self.session
            self._not_opened(sent, error)
            return
        self.session = named
        self._ready(result)
        if self.history is not None:
            self.loaded = self.history.answered = True
            if self.profile.replay == "before":
                self.finish_loading()
            else:
                self.set_timer("replay", QUIET_S)

    def _not_opened(self, sent: Sent, error: Object) -> None:
        """Somebody waits for the session: it is told as a failure though there is no turn that could fail."""
        if self.tracker.turn_id:
            self.refused(sent, error)
        else:
            self.tracker.emit(ev.TurnFailed(kind=error_kind(error), message=error_text(error)))

    def _ready(self, result: Object) -> None:
        info = object_of(self._initialized, "agentInfo")
        settings = _settings_of(result)
        self.model = settings["model"]
        self.tracker.report_ready(
            self.session, self.model, text_of(info, "version"), self._capabilities(), resumable=self._resumable()
        )
        self._settle_settings(settings)

    def _capabilities(self) -> tuple[str, ...]:
        """What the agent can do besides taking prompts. None of them reads a text in the middle of a turn."""
        told = object_of(self._initialized, "agentCapabilities")
        prompts = object_of(told, "promptCapabilities")
        names = [name for name in ("image", "audio", "embeddedContext") if prompts.get(name) is True]
        names += object_of(told, "sessionCapabilities")
        return tuple(sorted({*names, "load"} if self._resumable() else names))

    def _resumable(self) -> bool:
        if self.profile.loads is not None:
            return self.profile.loads
        told = object_of(self._initialized, "agentCapabilities")
        return told.get("loadSession") is True or "resume" in object_of(told, "sessionCapabilities")

    def answered_close(self, sent: Sent, _result: Object, error: Object | None) -> None:
        if sent.mine and error is None and self.session:
            self.prompts.clear()
            self.tracker.end_session("closed")
        elif sent.mine and error is not None:
            self.refused(sent, error)

    def is_mine(self, params: Object) -> bool:
        session = params.get("sessionId")
        if session == self.session:
            return bool(session)
        # a fork has no name yet when its history is replayed; without our own words the first session is ours
        if not self.session and isinstance(session, str) and (self.history is not None or not self.stdin_seen):
            self.session = session
            return True
        return False

    def path_of(self, session: str) -> AgentPath | None:
        if self.is_mine({"sessionId": session}):
            return ()
        unopened = session and session not in self._others and self.session and self._opening is None
        return (session,) if unopened and not any(one.method in _OPENING for one in self.sent.values()) else None

    def stray(self, result: Object, error: Object | None) -> None:
        """Without our own words an answer is known by its shape."""
        if not self.stdin_seen and "protocolVersion" in result:
            self.answered_initialize(Sent(None, "initialize", {}), result, None)
        elif not self.stdin_seen and not self.session and text_of(result, "sessionId"):
            self.answered_opening(Sent(None, "session/new", {}), result, None)
        else:
            super().stray(result, error)

    def refused(self, sent: Sent, error: Object) -> None:
        self.tracker.emit(ev.CommandFailed(command_id=str(sent.key), message=error_text(error)))

    # --- settings

    def read_mode(self, update: Object) -> None:
        self.mode_is(text_of(update, "currentModeId"))

    def answered_set_mode(self, sent: Sent, _result: Object, error: Object | None) -> None:
        self._set(sent, error, lambda: self.mode_is(text_of(sent.params, "modeId")))

    def answered_set_model(self, sent: Sent, _result: Object, error: Object | None) -> None:
        self._set(sent, error, lambda: self.model_is(text_of(sent.params, "modelId")))

    def answered_set_config_option(self, sent: Sent, result: Object, error: Object | None) -> None:
        self._set(sent, error, lambda: self.settings_are(result))

    def _set(self, sent: Sent, error: Object | None, change: Callable[[], None]) -> None:
        if not sent.mine:
            return
        if error is not None:
            self.refused(sent, error)
        else:
            change()

    def mode_is(self, native: str) -> None:
        mode = self.profile.modes.get(native, native)
        if mode and mode != self.mode:
            self.mode = mode
            self.tracker.emit(ev.SettingChanged(mode=mode))

    def model_is(self, model: str) -> None:
        if model and model != self.model:
            self.tracker.emit(ev.ModelSwitched(to=model, from_=self.model))
            self.model = model

    def settings_are(self, result: Object) -> None:
        """Whatever of mode, model and effort this message names."""
        self._settle_settings(_settings_of(result))

    def _settle_settings(self, found: dict[str, str]) -> None:
        self.mode_is(found["mode"])
        self.model_is(found["model"])
        thinking = found.get("thinking", "")
        if thinking and thinking != self.thinking:
            self.thinking = thinking
            self.tracker.emit(ev.SettingChanged(thinking=thinking))

    def read_session_info(self, update: Object) -> None:
        title = text_of(update, "title")
        if title:
            self.tracker.emit(ev.TitleGenerated(title=title))

    def read_available_commands(self, _update: Object) -> None:
        """Gemini sends its commands when a replay is through."""
        if self.history is not None and self.history.answered:
            self.history.marked = True
            if self.prompts:
                self.finish_loading()

    # --- the process

    def read_proc(self, data: Any) -> bool:
        event = data.get("event") if is_object(data) else None
        if event == "start":
            self.gone = False
            self.forget_connection()
        elif event == "stdin_closed":
            # a client closes it for one reason only
            self.tracker.stop_requested = True
        return Tools.read_proc(self, data)

    def is_server(self) -> bool:
        return True

    def on_exit(self, code: int | None, signal: str | None) -> None:
        self.gone = True
        self.forget_connection()
        super().on_exit(code, signal)

    def end(self, now: float) -> list[ev.Body]:
        self.now = now
        self.finish_loading()
        return super().end(now)

    def restore(self, view: View) -> None:
        super().restore(view)
        known = view.state.profile
        self.session, self.model, self.mode = known.native_session_id, known.model, known.mode
        self.thinking = known.thinking or ""

    def forget_connection(self) -> None:
        Tools.forget_connection(self)
        self._opening = None
        self._others.clear()


def _settings_of(result: Object) -> dict[str, str]:
    """Mode, model and effort, from either of the two forms that agents use."""
    found = {
        "mode": text_of(object_of(result, "modes"), "currentModeId"),
        "model": text_of(object_of(result, "models"), "currentModelId"),
    }
    for option in objects_of(result, "configOptions"):
        word = _OPTION_WORDS.get(text_of(option, "category") or text_of(option, "id"))
        if word:
            found[word] = text_of(option, "currentValue")
    return found


def _opening(method: str) -> Callable[[Acp, Object, Id], bool]:
    return lambda acp, params, key: acp.sent_opening(method, params, key)


Acp.sends = {
    "session/prompt": Acp.sent_prompt,
    "session/cancel": Acp.sent_cancel,
    "$/cancel_request": Acp.sent_cancel_request,
    **{method: _opening(method) for method in _OPENING},
}
Acp.answers = {
    "initialize": Acp.answered_initialize,
    "session/prompt": Acp.answered_prompt,
    "session/set_mode": Acp.answered_set_mode,
    "session/set_model": Acp.answered_set_model,
    "session/set_config_option": Acp.answered_set_config_option,
    "session/close": Acp.answered_close,
    **dict.fromkeys(_OPENING, Acp.answered_opening),
}
Acp.requests = {
    "session/request_permission": Acp.read_permission,
    "elicitation/create": Acp.read_elicitation,
    "elicitation/complete": Acp.read_elicitation_complete,
    "$/cancel_request": Acp.read_cancel_request,
    "terminal/output": Acp.read_terminal_output,
}
Acp.replies = {
    "permission": Acp.replied_permission,
    "elicitation": Acp.replied_elicitation,
    "terminal": Acp.replied_terminal_output,
}
Acp.updates = {
    "agent_message_chunk": Acp.read_message,
    "agent_thought_chunk": Acp.read_thought,
    "user_message_chunk": Acp.read_echo,
    "tool_call": Acp.read_tool_call,
    "tool_call_update": Acp.read_tool_call_update,
    "plan": Acp.read_plan,
    "usage_update": Acp.read_usage,
    "available_commands_update": Acp.read_available_commands,
    "current_mode_update": Acp.read_mode,
    "config_option_update": Acp.settings_are,
    "session_info_update": Acp.read_session_info,
}


def acp() -> Translator:
    """Any ACP agent; which one it is, it says itself."""
    return Acp(profiles.NEUTRAL)


def gemini() -> Translator:
    return Acp(profiles.GEMINI)


def opencode() -> Translator:
    return Acp(profiles.OPENCODE)


def cline() -> Translator:
    """Cline 2 started with --acp."""
    return Acp(profiles.CLINE)


def kilo_acp() -> Translator:
    """Kilo 7."""
    return Acp(profiles.KILO)


def kilo() -> Translator:
    """Kilo 7 speaks ACP; before that it printed say/ask messages as JSON lines."""
    return Detecting(_KILO, acp_or_sayask)


@cache
def _sayask() -> Callable[[], Translator]:
    from quarterdeck.harness.sayask.translate import sayask  # loaded only when it is spoken

    return sayask


_KILO: dict[str, Callable[[], Translator]] = {"acp": kilo_acp, "sayask": lambda: _sayask()()}
