"""A scripted model beside a test: the real server over real HTTP on a thread of its own, and variables that lead to it."""

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
    """For whoever is not on a loop, or in another process."""
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
    """What a process needs to ask this model as `anthropic:NAME`, and nothing of the machine's own."""
    return {
        "ANTHROPIC_API_KEY": KEY,
        "ANTHROPIC_BASE_URL": model.url,
        "HOME": home,
        "QUARTERDECK_HOME": f"{home}/quarterdeck",
    }
