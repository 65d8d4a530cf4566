"""`python -m quarterdeck.engine` is the built-in agent as a process of its own."""

from __future__ import annotations

from quarterdeck.engine.process import main

main()
