"""ACP, the Agent Client Protocol: JSON-RPC over stdio. Gemini, OpenCode, Kilo 7, Cline 2 and any other agent of it."""
