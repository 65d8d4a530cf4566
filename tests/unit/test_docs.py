"""Check that the generated pages are current and that the examples in the documentation run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = re.compile(r"```python\n(.*?)```", re.DOTALL)
LINKS = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "bench").glob("*.md")])
#: Pages with their own test (test_NAME_page.py): their examples are async and need a deck or a model.
OTHERS = ("agent.md", "library.md", "plugins.md", "tools.md")
PAGES_WITH_EXAMPLES = [page for page in PAGES if EXAMPLES.search(page.read_text()) and page.name not in OTHERS]


@pytest.mark.parametrize("tool", ["tools/diagrams.py", "tools/conformance.py", "tools/agents.py", "tools/plugins.py"])
def test_generated_pages_are_what_the_code_says(tool: str) -> None:
    answer = subprocess.run([sys.executable, tool, "--check"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("page", PAGES_WITH_EXAMPLES, ids=lambda page: page.name)
def test_examples_run(page: Path) -> None:
    """All examples of a page form one program, from top to bottom."""
    program = "\n".join(EXAMPLES.findall(page.read_text()))
    names: dict[str, object] = {"__name__": page.stem}
    exec(compile(program, str(page), "exec"), names)
    assert names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    missing = [link for link in LINKS.findall(page.read_text()) if not (page.parent / link).exists()]
    assert not missing


def test_the_walks_name_functions_that_exist() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    hops = re.findall(r"^ *\d+  (\S+\.py) +(?:\w+\.)?(\w+)", page, re.MULTILINE)
    assert len(hops) > 30
    missing = [
        f"{name} in {file}"
        for file, name in hops
        if not re.search(rf"(def|class) {name}\b", (ROOT / "quarterdeck" / file).read_text(encoding="utf-8"))
    ]
    assert missing == []
