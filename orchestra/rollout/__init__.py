"""The one multi-turn loop and what it needs: rendering, parsing, policies."""
