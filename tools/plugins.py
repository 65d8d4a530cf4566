"""Writes the generated parts of docs/plugins.md: the hooks, their answers, and the options of the shipped plugins.

python tools/plugins.py --write    write them again
python tools/plugins.py --check    fail when they are not what the code says
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from pages import ROOT, table
from pages import main as page_main

from quarterdeck.engine.plugins.base import HOOKS, Continue
from quarterdeck.engine.plugins.shipped import DEFAULTS, SHIPPED, shipped

PAGE = "docs/plugins.md"
#: hook → its arguments, and when it is asked.
WHEN = {
    "session_start": ("", "the session has just begun, or was resumed"),
    "session_end": ("", "it ends in the usual way"),
    "after_turn": ("payload", "just before the agent is idle, when a turn is done and when it was aborted"),
    "before_prompt": ("text", "a prompt is about to begin a turn"),
    "before_request": ("messages", "a request is about to go out; a list of messages is sent in their place"),
    "after_response": ("message", "a reply is whole"),
    "before_tool": ("name, args, call_id", "a call is about to run"),
    "on_tool_error": ("name, call_id, error, attempt", "a call failed"),
    "after_tool": ("name, call_id, outcome", "a call is done"),
    "after_tool_batch": ("results", "all calls of a reply are done"),
    "before_finish": ("", "the turn is about to end; whoever intervenes keeps it going"),
    "before_compact": (
        "messages",
        "the conversation is about to be shortened; a list of messages, one for each, is summarised in their place",
    ),
    "before_steering": ("text", "a steering text is about to be queued"),
}
_PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def _hooks() -> list[str]:
    rows = [
        (_signature(hook), WHEN[hook][1], ", ".join(f"`{kind.__name__}`" for kind in kinds))
        for hook, kinds in HOOKS.items()
    ]
    return table(("hook", "asked when", "may answer"), rows)


def _signature(hook: str) -> str:
    return f"`{hook}({', '.join([*filter(None, [WHEN[hook][0]]), 'context'])})`"


def _answers() -> list[str]:
    kinds = dict.fromkeys(kind for allowed in HOOKS.values() for kind in allowed)
    kinds = {Continue: None, **kinds}
    return table(
        ("answer", "means"),
        [(f"`{kind.__name__}({', '.join(kind.__struct_fields__)})`", _doc(kind)) for kind in kinds],
    )


def _doc(kind: type) -> str:
    return " ".join((inspect.getdoc(kind) or "").split())


def _shipped() -> list[str]:
    lines: list[str] = []
    for name in SHIPPED:
        lines += _one(name)
    return lines[:-1]


def _one(name: str) -> list[str]:
    kind = shipped(name)
    hooks = ", ".join(f"`{hook}`" for hook in HOOKS if hasattr(kind, hook))
    mounted = "In the default set. " if name in DEFAULTS else ""
    facts = f"{mounted}Priority {kind.priority}; {hooks}."
    options = [
        (f"`{one.name}`", _type(one), "required" if one.default is one.empty else f"`{_default(one.default)}`")
        for one in inspect.signature(kind).parameters.values()
    ]
    return [
        f"### {kind.__name__} (`{name}`)",
        "",
        _doc(kind),
        "",
        facts,
        "",
        *table(("option", "type", "default"), options),
        "",
    ]


def _type(one: inspect.Parameter) -> str:
    return str(one.annotation).replace("Sequence[str]", "list of texts").replace("dict[str, str]", "name → text")


def _default(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(repr, value)) + "]"
    return repr(value)


PARTS: dict[str, Callable[[], list[str]]] = {"hooks": _hooks, "answers": _answers, "shipped": _shipped}


def plugins_page() -> str:
    """The page as it is, with its generated parts as they should be."""
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    found = [name for _, name, _ in _PART.findall(text)]
    assert found == list(PARTS), f"{PAGE} has the parts {found}, not {list(PARTS)}"
    return _PART.sub(lambda part: part[1] + "\n" + "\n".join(PARTS[part[2]]()) + "\n\n" + part[3], text)


PAGES = {PAGE: plugins_page}


def main(arguments: Sequence[str] | None = None) -> int:
    return page_main(PAGES, "Writes the generated parts of the page about plugins.", arguments)


if __name__ == "__main__":
    sys.exit(main())
