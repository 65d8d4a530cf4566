"""The HTTP API from Python: `AsyncClient`, and `Client` for programs without a loop. The names are the library's."""
