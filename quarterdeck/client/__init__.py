"""Use the HTTP API from Python, with the names of the library.

`AsyncClient` is for programs that run an event loop, `Client` for all others. The API is written once, as coroutines
over a `Transport` (`api.py`). `AsyncClient` runs them over aiohttp, `Client` over http.client.

The commands of `qd` import neither asyncio nor aiohttp. Those that only send a request or two use `JsonApi`: the same
transport without the types, because importing the types takes longer than the requests.
"""
