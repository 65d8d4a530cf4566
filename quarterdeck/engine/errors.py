"""Define the errors that callers of the built-in agent can get, in addition to `quarterdeck.errors`."""

from __future__ import annotations

from quarterdeck.errors import QuarterdeckError


class AgentGone(QuarterdeckError):
    """The agent was stopped or died. It accepts no more commands."""

    code = "agent_gone"

    def __init__(self, session_id: str, has_log: bool = False) -> None:
        hint = "Restore it from its log with quarterdeck.resume." if has_log else "Create a new agent."
        super().__init__(f"agent {session_id} isn't running", hint)
        self.session_id = session_id


class AgentDown(QuarterdeckError):
    """The agent died while a subscriber was reading its events. `reason` is the error that ended it."""

    code = "agent_down"

    def __init__(self, reason: QuarterdeckError) -> None:
        super().__init__(f"the agent died: {reason.message}", reason.hint)
        self.reason = reason


class PromptRefused(QuarterdeckError):
    """A plugin rejected the prompt. No turn was started."""

    code = "prompt_rejected"

    def __init__(self, reason: str) -> None:
        super().__init__(f"the prompt was rejected: {reason}", "Change the text or the plugin that rejected it.")
        self.reason = reason


class SteeringRefused(QuarterdeckError):
    """A plugin rejected the steering text. Nothing was queued."""

    code = "steering_rejected"

    def __init__(self, reason: str) -> None:
        super().__init__(f"the steering text was rejected: {reason}", "Change the text or the plugin that rejected it.")
        self.reason = reason


class SessionRefused(QuarterdeckError):
    """A plugin rejected the session at its start."""

    code = "session_rejected"

    def __init__(self, reason: str) -> None:
        super().__init__(f"a plugin rejected the session: {reason}", "Change the plugins or their options.")


class TurnNotFinished(QuarterdeckError):
    """The turn failed or was aborted, so it has no reply. `kind` is the kind of `turn_failed`, or `aborted`."""

    code = "turn_not_finished"

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(
            f"the turn didn't finish ({kind}): {message or 'no reason given'}", "Read the session's events for details."
        )
        self.kind = kind


class QuestionWithdrawn(QuarterdeckError):
    """A tool asked a question after its turn ended, or the question was withdrawn before it was answered."""

    code = "question_withdrawn"

    def __init__(self) -> None:
        super().__init__("the turn has ended, so the question was withdrawn", "Continue without an answer.")


class InvalidOption(QuarterdeckError):
    """An option of `create_agent`, or an argument of one of the agent's methods, is invalid."""

    code = "invalid_option"


class NothingKept(QuarterdeckError):
    """A checkpoint was requested from an agent that has no log."""

    code = "nothing_kept"

    def __init__(self) -> None:
        super().__init__("this agent has no log, so it can't save a checkpoint", "Pass a log to create_agent.")
