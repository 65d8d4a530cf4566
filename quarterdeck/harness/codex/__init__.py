"""Codex: `codex app-server` and `codex exec --json`, and what a Codex of the user's own shows by hooks and telemetry.

Read translate.py first: it says which source decides what. names.py holds the differences between sources as tables,
desk.py what all sources share, then one file for each source and subject.
"""
