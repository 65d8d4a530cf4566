"""One folder per agent, the same file names in each. `base.py` is the contract; `tracker.py` writes the events.

A translator is pure: it takes raw signals (and what we send to the agent) with the time at which they came, and gives
events. Nothing here starts a process or opens a file; drivers do that, later and beside it.
"""
