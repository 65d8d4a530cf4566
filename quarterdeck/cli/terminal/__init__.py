"""Follow a session in the terminal: render its events and send what the user types."""
