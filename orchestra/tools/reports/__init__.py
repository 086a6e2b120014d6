"""Reports on the tools: whether each is available, and which topics each is good at."""
