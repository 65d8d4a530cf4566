"""Translate pi, driven by `pi --mode rpc`: JSON lines on its standard streams. Start reading at `translate.py`."""
