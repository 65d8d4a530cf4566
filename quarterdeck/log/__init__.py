"""The log: append-only and durable, with one rising index per session.

`base.py` is the port; `memory.py` and `sqlite/` are its adapters. `session_writer.py` writes one session, `tail.py` follows.
"""
