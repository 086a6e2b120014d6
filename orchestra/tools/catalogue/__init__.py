"""The catalogue: every tool, its schema and its dated price."""
