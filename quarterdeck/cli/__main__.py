"""`python -m quarterdeck.cli` is `qd`. Service files use it, because they name an interpreter and not a script."""

from __future__ import annotations

from quarterdeck.cli import main

main()
