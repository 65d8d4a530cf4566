"""Translate Codex: `codex app-server` and `codex exec --json`, and a user's own Codex by its hooks and telemetry.

Start reading at `translate.py`, which says which source decides what. `session.py` holds what all sources share,
`names.py` the differences between sources as tables. Then one file per source: `app_server.py` (with `threads.py`,
`items.py` and `approvals.py`), `exec.py`, `hooks.py` and `telemetry.py`.
"""
