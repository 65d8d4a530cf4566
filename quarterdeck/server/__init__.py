"""The deck over HTTP, SSE and WebSocket. `app.py` puts it together, `routes/` says what can be asked."""
