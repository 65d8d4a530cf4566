"""Sessions that live: they are started, driven, stopped, repaired after any kill, and kept as long as they should be."""
