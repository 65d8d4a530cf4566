"""What the built-in agent can do, one file each."""
