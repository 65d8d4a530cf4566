"""The log: append-only, durable, one rising index per session. `base.py` is the port; the rest are adapters.

Whoever reads is a cursor (`tail.py`): live readers are served from a short tail in memory, all others from the store.
"""
