"""Translate agents that speak ACP, the Agent Client Protocol: JSON-RPC over standard streams.

Gemini, OpenCode, Kilo 7, Cline 2 (`--acp`) and any other ACP agent share one translator. What one agent does differently
is data in `profile.py`; start reading at `translate.py`.
"""
