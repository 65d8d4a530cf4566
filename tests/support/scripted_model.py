"""Run the scripted model server on a thread, for tests that use it over HTTP."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager

from quarterdeck.testing.model import ScriptedModel
from quarterdeck.testing.script import Script

KEY = "sk-a-key-that-must-not-be-seen"


@contextmanager
def serving(script: Script) -> Generator[ScriptedModel]:
    """Serve a script, for code outside of an event loop or in another process."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    model = ScriptedModel(script)
    asyncio.run_coroutine_threadsafe(model.__aenter__(), loop).result(30)
    try:
        yield model
    finally:
        asyncio.run_coroutine_threadsafe(model.__aexit__(None, None, None), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


def variables(model: ScriptedModel, home: str) -> dict[str, str]:
    """Return the environment of a process that uses this server as `anthropic:NAME`, isolated from the machine's own."""
    return {
        "ANTHROPIC_API_KEY": KEY,
        "ANTHROPIC_BASE_URL": model.url,
        "HOME": home,
        "QUARTERDECK_HOME": f"{home}/quarterdeck",
    }
