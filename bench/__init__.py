"""Measure Quarterdeck. Every figure is a ratio to a floor measured in the same run, on CPU time. See README.md."""
