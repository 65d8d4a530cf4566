"""The built-in agent, in a process of its own (quarterdeck/engine), and the demo: the same with a scripted model."""
