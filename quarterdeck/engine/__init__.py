"""The built-in agent: the turn loop of seed 001, its tools, plugins and providers. It knows nothing of the deck."""
