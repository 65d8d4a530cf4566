"""Drive and read the built-in agent, which runs in a process of its own (`quarterdeck/engine`), and its demo."""
