"""`python -m quarterdeck.cli` is `qd`: for a service file, which names an interpreter and no script."""

from __future__ import annotations

from quarterdeck.cli import main

main()
