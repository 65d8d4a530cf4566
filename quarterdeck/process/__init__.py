"""Processes and their descendants: who a process is, its tree, how one is run and ended, and the subreaper."""
