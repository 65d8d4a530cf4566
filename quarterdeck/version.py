"""Hold the version number, importable from every package."""

__version__ = "0.1.0"
