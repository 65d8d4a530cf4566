"""Connect sessions to their agents: processes of the deck's own, and agents that the user started elsewhere."""
