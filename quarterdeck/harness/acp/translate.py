"""Translate an ACP agent: read both directions of its JSON-RPC connection and record what they mean.

The translator finds the reader of each message. The parts that do the work hold one shared `AcpSession` (`session.py`):

    prompts    prompts, the turns that they open, how turns end, usage
    calls      tool calls
    approvals  permissions, forms and terminals that the agent asks for
    settings   mode, model and reasoning effort (here)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, cast

from quarterdeck import events as ev
from quarterdeck.events import Json
from quarterdeck.harness.acp import profile as profiles
from quarterdeck.harness.acp.approvals import Approvals, request_id_of
from quarterdeck.harness.acp.calls import Calls
from quarterdeck.harness.acp.content import REPLAYED, History, block_text, plan_of
from quarterdeck.harness.acp.profile import Profile, recognise
from quarterdeck.harness.acp.prompts import QUIET_S, Prompts, error_kind, error_text
from quarterdeck.harness.acp.session import OPENING_METHODS, AcpSession, Id, SentRequest, TextKind
from quarterdeck.harness.base import BaseTranslator, Object, Translator, object_of, objects_of, text_of
from quarterdeck.harness.protocol_detection import DetectingTranslator, acp_or_sayask
from quarterdeck.kernel.view import View

#: Requests of the agent that change nothing: its client answers them.
_IGNORED_REQUESTS = frozenset(
    {
        "fs/read_text_file",
        "fs/write_text_file",
        "terminal/create",
        "terminal/wait_for_exit",
        "terminal/kill",
        "terminal/release",
        "mcp/connect",
        "mcp/message",
        "mcp/disconnect",
    }
)

# ----------------------------------------------------------------------------------------------------------------------
# Settings
# ----------------------------------------------------------------------------------------------------------------------

#: What a configuration option sets, by its category, else by its id.
_OPTION_SETTINGS = {"model": "model", "mode": "mode", "thought_level": "thinking", "effort": "thinking"}


def _settings_of(message: Object) -> dict[str, str]:
    """Return mode, model and effort from either of the two forms that agents use."""
    settings = {
        "mode": text_of(object_of(message, "modes"), "currentModeId"),
        "model": text_of(object_of(message, "models"), "currentModelId"),
    }
    for option in objects_of(message, "configOptions"):
        setting = _OPTION_SETTINGS.get(text_of(option, "category") or text_of(option, "id"))
        if setting:
            settings[setting] = text_of(option, "currentValue")
    return settings


class Settings:
    """Mode, model and reasoning effort. A change is recorded once."""

    def __init__(self, session: AcpSession) -> None:
        self.session = session
        self.tracker = session.tracker
        self._mode = ""
        self._thinking = ""

    def restore(self, view: View) -> None:
        profile = view.state.profile
        self.session.model, self._mode, self._thinking = profile.model, profile.mode, profile.thinking or ""

    def set_mode(self, native_mode: str) -> None:
        mode = self.session.profile.modes.get(native_mode, native_mode)
        if mode and mode != self._mode:
            self._mode = mode
            self.tracker.emit(ev.SettingChanged(mode=mode))

    def set_model(self, model: str) -> None:
        if model and model != self.session.model:
            self.tracker.emit(ev.ModelSwitched(to=model, from_=self.session.model))
            self.session.model = model

    def apply(self, message: Object) -> None:
        """Apply whichever of mode, model and effort this message names."""
        settings = _settings_of(message)
        self.set_mode(settings["mode"])
        self.set_model(settings["model"])
        thinking = settings.get("thinking", "")
        if thinking and thinking != self._thinking:
            self._thinking = thinking
            self.tracker.emit(ev.SettingChanged(thinking=thinking))


# ----------------------------------------------------------------------------------------------------------------------
# The translator
# ----------------------------------------------------------------------------------------------------------------------


class AcpTranslator(BaseTranslator):
    """Reads one ACP agent. Which agent it is, the agent itself says in its answer to `initialize`."""

    def __init__(self, profile: Profile) -> None:
        super().__init__()
        self.session = AcpSession(self, profile)
        self.calls = Calls(self.session)
        self.prompts = Prompts(self.session, self.calls)
        self.approvals = Approvals(self.session, self.prompts, self.calls)
        self.settings = Settings(self.session)
        #: The agent's answer to `initialize`.
        self._initialized: Object = {}
        self.readers |= {"stdin": self.read_stdin, "stdout": self.read_stdout}
        self.timer_callbacks |= {"replay": self.prompts.finish_loading}
        self._requests_sent: dict[str, Callable[[Object, Id], bool]] = {
            "session/prompt": self.prompts.send,
            "session/cancel": self.prompts.cancel,
            "$/cancel_request": self.prompts.cancel_request,
        }
        self._answers: dict[str, Callable[[SentRequest, Object, Object | None], None]] = {
            "initialize": self._read_initialized,
            "session/prompt": self.prompts.read_answer,
            "session/set_mode": self._read_mode_set,
            "session/set_model": self._read_model_set,
            "session/set_config_option": self._read_option_set,
            "session/close": self._read_closed,
            **dict.fromkeys(OPENING_METHODS, self._read_opened),
        }
        self._requests: dict[str, Callable[[Object, Id], bool]] = {
            "session/request_permission": self.approvals.read_permission,
            "elicitation/create": self.approvals.read_elicitation,
            "elicitation/complete": self.approvals.read_elicitation_complete,
            "$/cancel_request": self.approvals.withdraw,
            "terminal/output": self.approvals.read_terminal_output,
        }
        self._updates: dict[str, Callable[[Object], None]] = {
            "agent_message_chunk": self._read_message,
            "agent_thought_chunk": self._read_thought,
            "user_message_chunk": self._ignore_echo,
            "tool_call": self._read_tool_call,
            "tool_call_update": self._read_tool_call_update,
            "plan": self._read_plan,
            "usage_update": self.prompts.read_usage,
            "available_commands_update": self._read_available_commands,
            "current_mode_update": self._read_mode,
            "config_option_update": self.settings.apply,
            "session_info_update": self._read_session_info,
        }

    def restore(self, view: View) -> None:
        super().restore(view)
        session = self.session
        session.reserve_ids(view.index)
        session.stdin_seen = True
        session.session_id = view.state.profile.native_session_id
        self.calls.restore(view)
        self.prompts.restore()
        self.approvals.restore(view)
        self.settings.restore(view)

    def end(self, now: float) -> list[ev.Body]:
        self.now = now
        self.prompts.finish_loading()
        return super().end(now)

    # --- what we send

    def read_stdin(self, data: Json) -> bool:
        self.session.stdin_seen = True
        for message in _messages(data):
            self._read_sent(message)
        return True

    def _read_sent(self, message: Object) -> None:
        method, request_id = message.get("method"), request_id_of(message)
        if not isinstance(method, str):
            self.approvals.read_reply(request_id, object_of(message, "result"), _error_of(message))
            return
        params = object_of(message, "params")
        reader = self._requests_sent.get(method)
        if reader is not None:
            is_ours = reader(params, request_id)
        elif method in OPENING_METHODS:
            is_ours = self._send_opening(method, params, request_id)
        else:
            is_ours = params.get("sessionId") in (None, self.session.session_id)
        if request_id is not None:
            self.session.sent[request_id] = SentRequest(request_id, method, params, is_ours)

    # --- what the agent sends

    def read_stdout(self, data: Json) -> bool:
        if isinstance(data, dict | list):
            # Read every message of a batch, also after an unknown one.
            known = [self._read_received(message) for message in _messages(data)]
            return all(known)
        # A line that isn't JSON is meant for people.
        return isinstance(data, str)

    def _read_received(self, message: Object) -> bool:
        method = message.get("method")
        if method == "session/update":
            return self._read_update(object_of(message, "params"))
        if isinstance(method, str):
            reader = self._requests.get(method)
            if reader is not None:
                return reader(object_of(message, "params"), request_id_of(message))
            # An underscore begins extensions of one agent, a dollar sign what an implementation may ignore.
            return method in _IGNORED_REQUESTS or method.startswith(("_", "$/"))
        if "result" in message or "error" in message:
            self._read_answer(request_id_of(message), object_of(message, "result"), _error_of(message))
            return True
        return "raw" in message

    def _read_answer(self, request_id: Id, result: Object, error: Object | None) -> None:
        request = self.session.sent.pop(request_id, None) if request_id is not None else None
        if request is None:
            self._read_unmatched_answer(result, error)
            return
        reader = self._answers.get(request.method)
        if reader is not None:
            reader(request, result, error)
        elif error is not None and request.is_ours and request.method != "session/list":
            self._fail_command(request, error)

    def _read_unmatched_answer(self, result: Object, error: Object | None) -> None:
        """Read an answer to a request that wasn't seen.

        If what we send isn't recorded, the shape of an answer tells what it answers. An error that matches nothing is
        shown, and doesn't end anything.
        """
        session = self.session
        if not session.stdin_seen and "protocolVersion" in result:
            self._read_initialized(SentRequest(None, "initialize", {}), result, None)
        elif not session.stdin_seen and not session.session_id and text_of(result, "sessionId"):
            self._read_opened(SentRequest(None, "session/new", {}), result, None)
        elif not self.prompts.read_unmatched_answer(result, error) and error is not None:
            self.tracker.add_notice(error_text(error), "error", "agent")

    def _fail_command(self, request: SentRequest, error: Object) -> None:
        """Record that the agent refused a request of ours."""
        self.tracker.emit(ev.CommandFailed(command_id=str(request.request_id), message=error_text(error)))

    # --- opening a session

    def _send_opening(self, method: str, params: Object, request_id: Id) -> bool:
        """Return whether this request is about our session. The first request that opens a session makes it ours."""
        session = self.session
        session_id = text_of(params, "sessionId")
        if session.session_id or session.opening_id is not None:
            if session_id and session_id != session.session_id:
                session.other_sessions.add(session_id)
            if session_id != session.session_id or method not in ("session/load", "session/resume"):
                return False
        else:
            session.opening_id = request_id
            session.session_id = session_id if method != "session/fork" else ""
        if method != "session/new" and not self.tracker.turn_id:
            session.history = History(session.profile)
        return True

    def _read_initialized(self, request: SentRequest, result: Object, error: Object | None) -> None:
        if error is None:
            self._initialized = result
            self.session.profile = recognise(result) or self.session.profile
        else:
            self._fail_opening(request, error)

    def _read_opened(self, request: SentRequest, result: Object, error: Object | None) -> None:
        session = self.session
        session_id = text_of(result, "sessionId") or text_of(request.params, "sessionId")
        if not request.is_ours:
            session.other_sessions.add(session_id)
            return
        is_first = request.request_id == session.opening_id
        if is_first:
            session.opening_id = None
        if error is not None:
            session.history = None
            if is_first:
                session.session_id = ""
            self._fail_opening(request, error)
            return
        session.session_id = session_id
        self._record_ready(result)
        if session.history is not None:
            session.is_loaded = session.history.answered = True
            if session.profile.replay == "before":
                self.prompts.finish_loading()
            else:
                self.set_timer("replay", QUIET_S)

    def _fail_opening(self, request: SentRequest, error: Object) -> None:
        """Record that the session can't be opened. The user waits for it, so outside a turn it is a failure of its own."""
        if self.tracker.turn_id:
            self._fail_command(request, error)
        else:
            self.tracker.emit(ev.TurnFailed(kind=error_kind(error), message=error_text(error)))

    def _record_ready(self, result: Object) -> None:
        session = self.session
        version = text_of(object_of(self._initialized, "agentInfo"), "version")
        # The model that a session opens with isn't a switch to another one.
        session.model = _settings_of(result)["model"]
        self.tracker.report_ready(
            session.session_id, session.model, version, self._capabilities(), resumable=self._is_resumable()
        )
        self.settings.apply(result)

    def _capabilities(self) -> tuple[str, ...]:
        """Return what the agent can do besides taking prompts. No ACP agent reads a text in the middle of a turn."""
        capabilities = object_of(self._initialized, "agentCapabilities")
        prompts = object_of(capabilities, "promptCapabilities")
        names = {name for name in ("image", "audio", "embeddedContext") if prompts.get(name) is True}
        names.update(object_of(capabilities, "sessionCapabilities"))
        if self._is_resumable():
            names.add("load")
        return tuple(sorted(names))

    def _is_resumable(self) -> bool:
        if self.session.profile.loads is not None:
            return self.session.profile.loads
        capabilities = object_of(self._initialized, "agentCapabilities")
        return capabilities.get("loadSession") is True or "resume" in object_of(capabilities, "sessionCapabilities")

    def _read_closed(self, request: SentRequest, _result: Object, error: Object | None) -> None:
        if request.is_ours and error is not None:
            self._fail_command(request, error)
        elif request.is_ours and self.session.session_id:
            self.session.prompts.clear()
            self.tracker.end_session("closed")

    # --- settings

    def _read_mode_set(self, request: SentRequest, _result: Object, error: Object | None) -> None:
        if self._check_success(request, error):
            self.settings.set_mode(text_of(request.params, "modeId"))

    def _read_model_set(self, request: SentRequest, _result: Object, error: Object | None) -> None:
        if self._check_success(request, error):
            self.settings.set_model(text_of(request.params, "modelId"))

    def _read_option_set(self, request: SentRequest, result: Object, error: Object | None) -> None:
        if self._check_success(request, error):
            self.settings.apply(result)

    def _check_success(self, request: SentRequest, error: Object | None) -> bool:
        """Return whether a request about our session succeeded, after recording its failure if it didn't."""
        if request.is_ours and error is not None:
            self._fail_command(request, error)
        return request.is_ours and error is None

    # --- updates

    def _read_update(self, params: Object) -> bool:
        update = object_of(params, "update")
        kind = update.get("sessionUpdate")
        if not isinstance(kind, str):
            return False
        reader = self._updates.get(kind)
        if reader is None:
            return kind.startswith("_")
        if self.session.claim(params.get("sessionId")) and not self._add_to_history(kind, update):
            reader(update)
        return True

    def _add_to_history(self, kind: str, update: Object) -> bool:
        """Add the update to the history if a replay is under way. Return whether it was."""
        session, history = self.session, self.session.history
        if history is None or kind not in REPLAYED:
            return False
        # After the load request is answered, a call that is still open can only be new.
        is_open_call = kind == "tool_call" and text_of(update, "status") in ("pending", "in_progress")
        if history.answered and is_open_call and session.profile.replay == "after":
            self.prompts.finish_loading()
            return False
        history.add(kind, update)
        if history.answered:
            self.set_timer("replay", QUIET_S)
        return True

    def _read_message(self, update: Object) -> None:
        text = block_text(object_of(update, "content"))
        echo = self.session.profile.mode_echo
        if echo and text.startswith(echo):
            self.settings.set_mode(text.removeprefix(echo).strip())
        else:
            self._add_text("text", text_of(update, "messageId"), text)

    def _read_thought(self, update: Object) -> None:
        self._add_text("thinking", text_of(update, "messageId"), block_text(object_of(update, "content")))

    def _ignore_echo(self, _update: Object) -> None:
        """Ignore a user's message: outside of a replay it repeats what we sent."""

    def _add_text(self, kind: TextKind, native_id: str, text: str) -> None:
        texts = self.session.texts
        if not texts.continues(kind, native_id):
            texts.finish()
            in_turn = self.prompts.ensure_turn()
            # Outside a turn, drop the rest of a replay, and thoughts.
            if not in_turn and (self.session.is_loaded or kind == "thinking"):
                return
            if in_turn:
                self.calls.block_refused()
                self.prompts.start_joined(native_id)
            texts.begin(kind, native_id, native_id or self.session.new_id("message"), in_turn)
        texts.append(text)

    def _read_tool_call(self, update: Object) -> None:
        call_id = text_of(update, "toolCallId")
        if call_id and not self.calls.has_ended(call_id):
            self._update_call(call_id, update, is_first=True)

    def _read_tool_call_update(self, update: Object) -> None:
        call_id = text_of(update, "toolCallId")
        if call_id and not self.calls.is_late(call_id):
            self._update_call(call_id, update, is_first=False)

    def _update_call(self, call_id: str, update: Object, is_first: bool) -> None:
        """Apply an update of a call, unless the call is new and begins outside of a turn."""
        if call_id in self.calls.open or self.prompts.ensure_turn():
            self.calls.update(call_id, update, is_first)

    def _read_plan(self, update: Object) -> None:
        self.tracker.emit(ev.PlanGenerated(plan=plan_of(update)))

    def _read_mode(self, update: Object) -> None:
        self.settings.set_mode(text_of(update, "currentModeId"))

    def _read_session_info(self, update: Object) -> None:
        title = text_of(update, "title")
        if title:
            self.tracker.emit(ev.TitleGenerated(title=title))

    def _read_available_commands(self, _update: Object) -> None:
        """Take the list of commands as the end of a replay: Gemini sends it when the replay is complete."""
        history = self.session.history
        if history is not None and history.answered:
            history.marked = True
            if self.session.prompts:
                self.prompts.finish_loading()

    # --- the process

    def read_proc(self, data: Json) -> bool:
        event = object_of(data).get("event")
        if event == "start":
            self.session.process_exited = False
            self._clear_connection()
        elif event == "stdin_closed":
            # A client closes its end only to stop the agent.
            self.tracker.stop_requested = True
        return super().read_proc(data)

    def is_server(self) -> bool:
        return True

    def on_exit(self, code: int | None, signal: str | None) -> None:
        self.session.process_exited = True
        self._clear_connection()
        super().on_exit(code, signal)

    def _clear_connection(self) -> None:
        self.session.clear_connection()
        self.calls.clear()
        self.prompts.clear()
        self.approvals.clear()


def _messages(data: Json) -> list[Object]:
    """Return the messages of a line: one object, or the objects of a batch."""
    batch = cast("list[Any]", data if isinstance(data, list) else [data])
    return [message for message in batch if isinstance(message, dict)]


def _error_of(message: Object) -> Object | None:
    return object_of(message, "error") if message.get("error") is not None else None


# ----------------------------------------------------------------------------------------------------------------------
# Entry points for the registry
# ----------------------------------------------------------------------------------------------------------------------


def acp() -> Translator:
    """Create a translator for any ACP agent."""
    return AcpTranslator(profiles.NEUTRAL)


def gemini() -> Translator:
    return AcpTranslator(profiles.GEMINI)


def opencode() -> Translator:
    return AcpTranslator(profiles.OPENCODE)


def cline() -> Translator:
    """Create a translator for Cline 2 started with `--acp`."""
    return AcpTranslator(profiles.CLINE)


def kilo_acp() -> Translator:
    """Create a translator for Kilo 7."""
    return AcpTranslator(profiles.KILO)


def kilo() -> Translator:
    """Create a translator for any Kilo: version 7 speaks ACP, earlier ones print say/ask messages as JSON lines."""
    return DetectingTranslator(_KILO, acp_or_sayask)


@cache
def _sayask() -> Callable[[], Translator]:
    # Import the other protocol only when an agent speaks it.
    from quarterdeck.harness.sayask.translate import sayask

    return sayask


_KILO: dict[str, Callable[[], Translator]] = {"acp": kilo_acp, "sayask": lambda: _sayask()()}
