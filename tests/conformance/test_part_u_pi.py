"""Show part U.4: the checks of pi's own web client, applied to the translator."""

from __future__ import annotations

from quarterdeck.harness.base import Signal
from quarterdeck.harness.pi.translate import pi
from tests.conformance.marks import case
from tests.support.tape import Tape


def entries_after(*requests: dict[str, object]) -> list[tuple[str, str]]:
    """Return the timeline after these requests of an extension."""
    translator, tape = pi(), Tape().opened()
    for at, request in enumerate(requests):
        line = {"type": "extension_ui_request", "id": f"u{at}", **request}
        tape.add(*translator.feed(Signal("stdout", line), float(at)))
    assert translator.unknown == 0
    return [(entry.kind, entry.text) for entry in tape.entries]


@case("U-107")
def test_a_notification_is_told_and_a_text_for_the_editor_is_noticed() -> None:
    events = entries_after({"method": "notify", "message": "Index built", "notifyType": "info"})
    assert events == [("system", "Index built")]
    noticed = entries_after({"method": "set_editor_text", "text": "a secret draft"})
    assert [kind for kind, _ in noticed] == ["system"]
    # The notice doesn't contain the text, which is meant for the editor and not for the timeline.
    assert noticed == entries_after({"method": "set_editor_text", "text": "another"})


@case("U-107")
def test_what_only_decorates_is_not_told() -> None:
    assert entries_after({"method": "setStatus", "statusKey": "k", "statusText": "busy"}) == []
    assert entries_after({"method": "setWidget", "widgetKey": "k", "widgetLines": ["x"]}) == []
