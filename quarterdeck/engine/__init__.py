"""The built-in agent: its turn loop, tools, plugins and model providers. It doesn't import the deck."""
