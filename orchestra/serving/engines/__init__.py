"""vLLM servers that play episodes for a stage and end with it."""
