"""params.yaml: its schema, and edits to it from the command line."""
