"""vLLM, the OpenAI-compatible gateway, and what runs now."""
