"""The page in a browser. A link that lets its reader in is for the person who is shown it, and for nobody else."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from urllib.parse import quote

from quarterdeck.cli.wire import Wire
from quarterdeck.errors import QuarterdeckError


def login_address(address: str, token: str) -> str:
    return f"{address}/login?token={quote(token, safe='')}"


def has_display(environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> bool:
    """Whether a browser would have a screen: none is opened at the other end of an SSH connection."""
    if platform == "darwin":
        return "SSH_CONNECTION" not in environment
    return bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def open_page(wire: Wire) -> bool:
    """Everybody on this machine can read a browser's command line, so the address has a code that works once."""
    import webbrowser

    try:
        code = wire.post("/login/code")["code"]
    except QuarterdeckError:
        return False
    return webbrowser.open(f"{wire.beacon.address}/login?code={quote(code, safe='')}")
