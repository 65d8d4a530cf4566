"""Spawn, recognize, watch and end processes together with everything they start.

- `identity`: tell one process from a later process with the same pid, and find processes by the nonce in their environment.
- `tree`: find all processes that descend from one, signal exactly those, and end them.
- `child`: run one child process on the event loop, with bounded pipes, and end its whole tree.
- `subreaper`: the small parent process of the server that cleans up after it.

The deck's agents, the shell and search tools, MCP servers and the user's own shell commands all run through `child.Child`.
"""
