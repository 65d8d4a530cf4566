"""What the model says, as it says it. A start always precedes the first delta; response_complete restates the whole."""

from __future__ import annotations

from quarterdeck.events.base import Block, Body


class MessageStart(Body):
    """A text block of a message begins."""

    message_id: str
    block: int = 0


class MessageDelta(Body):
    """More text of a block. May be dropped from the log once the whole is restated."""

    delta: str
    message_id: str
    block: int = 0


class ThinkingStart(Body):
    """A reasoning block begins."""

    message_id: str
    block: int = 0


class ThinkingDelta(Body):
    """More reasoning. May be dropped from the log once the whole is restated."""

    delta: str
    message_id: str
    block: int = 0


class ResponseComplete(Body):
    """One reply of the model, whole: text, reasoning and tool calls, with the inline tags taken out."""

    message_id: str
    blocks: tuple[Block, ...] = ()
    stop_reason: str = ""


class MessageAborted(Body):
    """The reply was cut off. `keep` when what came so far stays in the conversation; `text` restates it."""

    message_id: str
    keep: bool = False
    blocks: tuple[Block, ...] = ()


class StatusUpdate(Body):
    """The agent's own word on what it does, from an inline status tag."""

    text: str


class TitleGenerated(Body):
    """A title for the session, at most 60 characters."""

    title: str
