"""Agents that speak 000's say/ask vocabulary: Cline 1 and 2, Kilo before 7."""
