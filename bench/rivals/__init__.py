"""Run one agent's turn, written as in each project's own documentation: a module with `turn_of(url) -> Turn` for each.

The agent is created once and prompted repeatedly, with a new conversation each time, one tool, streamed, and every event
read. All of them use chat completions with the model at `url`. Their telemetry is off.
"""
