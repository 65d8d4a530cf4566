"""The commands of `qd`, one module per group. Each is imported only when it runs."""
