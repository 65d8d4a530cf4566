"""Generate parts of docs/plugins.md: the hooks, their answers, and the options of the shipped plugins.

python tools/plugins.py --write    write the page
python tools/plugins.py --check    fail if the page differs from the code
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
#: Arguments of each hook, and when it runs.
WHEN = {
    "session_start": ("", "a session was created or resumed"),
    "session_end": ("", "the agent is stopped"),
    "after_turn": ("payload", "a turn is finished or aborted, before the agent is idle"),
    "before_prompt": ("text", "a prompt is about to start a turn"),
    "before_request": ("messages", "a request is about to be sent; a list of messages replaces those of the request"),
    "after_response": ("message", "a reply is complete"),
    "before_tool": ("name, args, call_id", "a tool call is about to run"),
    "on_tool_error": ("name, call_id, error, attempt", "a tool call failed"),
    "after_tool": ("name, call_id, outcome", "a tool call is done"),
    "after_tool_batch": ("results", "all calls of a reply are done"),
    "before_finish": ("", "the turn is about to end; `Intervene` keeps it going"),
    "before_compact": (
        "messages",
        "the conversation is about to be compacted; a list of messages, one for each, is summarised instead",
    ),
    "before_steering": ("text", "a steering text is about to be queued"),
}
_PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def _hooks() -> list[str]:
    rows = [
        (_signature(hook), WHEN[hook][1], ", ".join(f"`{kind.__name__}`" for kind in kinds))
        for hook, kinds in HOOKS.items()
    ]
    return table(("hook", "runs when", "may return"), rows)


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
        lines += _section(name)
    return lines[:-1]


def _section(name: str) -> list[str]:
    kind = shipped(name)
    hooks = ", ".join(f"`{hook}`" for hook in HOOKS if hasattr(kind, hook))
    mounted = "Mounted by default. " if name in DEFAULTS else ""
    facts = f"{mounted}Priority {kind.priority}; {hooks}."
    options = [
        (
            f"`{option.name}`",
            _type(option),
            "required" if option.default is option.empty else f"`{_default(option.default)}`",
        )
        for option in inspect.signature(kind).parameters.values()
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


def _type(option: inspect.Parameter) -> str:
    return (
        str(option.annotation).replace("Sequence[str]", "list of strings").replace("dict[str, str]", "table of strings")
    )


def _default(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(repr, value)) + "]"
    return repr(value)


PARTS: dict[str, Callable[[], list[str]]] = {"hooks": _hooks, "answers": _answers, "shipped": _shipped}


def plugins_page() -> str:
    """Return the page with its generated parts replaced."""
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    names = [name for _, name, _ in _PART.findall(text)]
    assert names == list(PARTS), f"{PAGE} has the parts {names}, not {list(PARTS)}"
    return _PART.sub(lambda part: part[1] + "\n" + "\n".join(PARTS[part[2]]()) + "\n\n" + part[3], text)


PAGES = {PAGE: plugins_page}


def main(arguments: Sequence[str] | None = None) -> int:
    return page_main(PAGES, "Generate parts of docs/plugins.md.", arguments)


if __name__ == "__main__":
    sys.exit(main())
