"""What can come between the steps of a turn: `base.py` has the thirteen hooks, each shipped plugin is a file of its own.

`shipped.py` names them and gives the set that the built-in agent mounts; `installed.py` finds those of other packages.
Nothing is imported here: a plugin that nobody mounts costs nothing.
"""
