"""Run the built-in agent as a process: `python -m quarterdeck.engine`."""

from __future__ import annotations

from quarterdeck.engine.process import main

main()
