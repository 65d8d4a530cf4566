"""Read Claude Code. Start with `translate.py`."""
