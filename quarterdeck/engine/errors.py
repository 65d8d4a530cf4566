"""What a caller of the built-in agent can meet, beside the errors that all agents share."""

from __future__ import annotations

from quarterdeck.errors import QuarterdeckError


class AgentGone(QuarterdeckError):
    """The agent was stopped, or died; it takes no commands any more."""

    code = "agent_gone"

    def __init__(self, session_id: str, has_log: bool = False) -> None:
        hint = "quarterdeck.resume brings it back from its log." if has_log else "Create another one."
        super().__init__(f"agent {session_id} is not alive", hint)
        self.session_id = session_id


class AgentDown(QuarterdeckError):
    """The agent died under a listener; `reason` is what it died of."""

    code = "agent_down"

    def __init__(self, reason: QuarterdeckError) -> None:
        super().__init__(f"the agent died: {reason.message}", reason.hint)
        self.reason = reason


class PromptRefused(QuarterdeckError):
    """A plugin refused the text; no turn began."""

    code = "prompt_rejected"

    def __init__(self, reason: str) -> None:
        super().__init__(f"the prompt was rejected: {reason}", "Change the text, or the plugin that objects.")
        self.reason = reason


class SteeringRefused(QuarterdeckError):
    """A plugin refused the steering text; nothing was queued."""

    code = "steering_rejected"

    def __init__(self, reason: str) -> None:
        super().__init__(f"the steering text was rejected: {reason}", "Change the text, or the plugin that objects.")
        self.reason = reason


class SessionRefused(QuarterdeckError):
    """A plugin refused the whole session at its start."""

    code = "session_rejected"

    def __init__(self, reason: str) -> None:
        super().__init__(f"a plugin refused the session: {reason}", "Change the plugins or their options.")


class TurnNotFinished(QuarterdeckError):
    """The turn whose reply was waited for failed or was aborted. `kind` is that of turn_failed, or `aborted`."""

    code = "turn_not_finished"

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"the turn did not finish ({kind}): {message or 'no reason was given'}", "See its events.")
        self.kind = kind


class QuestionWithdrawn(QuarterdeckError):
    """What a tool meets that asks a person although its turn is over: there is nobody to ask."""

    code = "question_withdrawn"

    def __init__(self) -> None:
        super().__init__("the turn is over, and nobody is asked any more", "Go on without an answer.")


class InvalidOption(QuarterdeckError):
    """An option of create_agent has a value that makes no sense."""

    code = "invalid_option"


class NothingKept(QuarterdeckError):
    """A checkpoint was asked of an agent that has no log to keep it in."""

    code = "nothing_kept"

    def __init__(self) -> None:
        super().__init__("this agent has no log, so nothing of it outlives the process", "Give create_agent a log.")
