"""Tools of MCP servers (the extra `mcp`). The SDK is imported only when a server is started."""
