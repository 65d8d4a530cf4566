"""The pure heart: every state of a session is a fold of its events. No clock, no I/O, no randomness in here.

Start with `view.py` (the fold and what it gives), `moves.py` (which event moves which owner) and the tables.
"""
