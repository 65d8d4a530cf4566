"""Read and drive coding agents. One folder per agent; `registry.py` finds them by name.

A harness has two pure halves: a translator turns an agent's raw signals into canonical events (`base.py`), and a driver
says what to write to the agent (`driver.py`). Translators write events through an `EventTracker` (`tracker.py`). Nothing
here starts a process, opens a file or reads a clock.
"""
