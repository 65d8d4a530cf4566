"""Fold a session's events into its state, without I/O.

Nothing in this package reads a clock, generates ids or does I/O: time and ids arrive with the events. Folding the same
events therefore always gives the same state.

Start with `view.py` (the fold and its result), `moves/` (which event changes which part of the state) and the state
machines `lifecycle`, `process`, `run`, `activity` and `phase`.
"""
