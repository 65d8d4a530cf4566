"""Run sessions: carry out commands, start and stop agents, record everything in the log."""
