"""The crash suite: a real deck under a real keeper is killed, and everything that it promised is held against its log."""
