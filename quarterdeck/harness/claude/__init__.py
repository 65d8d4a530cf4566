"""Claude Code: what its stream, its hooks, its session file and its telemetry say, read together or alone."""
