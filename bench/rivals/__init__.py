"""One agent's turn, written as each project's own documentation writes it: a module `turn_of(url) -> Turn` for each.

The agent is made once and asked again and again, a new conversation each time, with one tool, streamed, every event looked
at. All of them speak chat completions with the model at `url`. What they would tell others about it is switched off.
"""
