"""Translate agents that print say/ask messages: Cline 1, Cline 2 and Kilo before 7. Start reading at `translate.py`."""
