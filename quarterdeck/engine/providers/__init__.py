"""The models that the built-in agent can speak to, one file each."""
