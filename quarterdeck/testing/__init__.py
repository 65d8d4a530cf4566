"""Shipped for everyone who writes an adapter, a harness or a tool: what it must do, as checks to run against it."""
