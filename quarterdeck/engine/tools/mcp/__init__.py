"""Tools of MCP servers, behind the extra `mcp`. Nothing of the SDK is imported before a server is started."""
