"""List what the built-in agent can do."""

from __future__ import annotations

from quarterdeck.harness.driver import Capabilities

CAPABILITIES = Capabilities(
    steer=True,
    interrupt=True,
    approvals=True,
    questions=True,
    resume=True,
    images=True,
    switch_model=True,
    compact=True,
    bash=True,
    modes=("plan", "ask", "edits", "auto", "bypass"),
)
