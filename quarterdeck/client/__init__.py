"""Use the HTTP API from Python, with the names of the library.

`AsyncClient` is for programs that run an event loop, `Client` for all others. The API is written once, as coroutines
over a `Transport` (`api.py`). `AsyncClient` runs them over aiohttp. `Client` runs them over http.client, and so do the
commands of `qd`, which must not pay for importing asyncio and aiohttp.
"""
