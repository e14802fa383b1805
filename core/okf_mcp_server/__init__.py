"""Documents: a repository's Markdown, as a snapshot and as an MCP server."""
