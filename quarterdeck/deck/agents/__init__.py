"""Connect a session to its agent: start the process, read its signals, and follow agents that the user started."""
