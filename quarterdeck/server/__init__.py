"""The deck over HTTP, SSE and WebSocket. `main.py` is the process, `app.py` the application, `routes/` has the API."""
