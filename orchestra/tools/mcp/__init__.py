"""Tools of MCP servers: what the catalogue says of them, sessions, the tool, and the import that freezes them."""
