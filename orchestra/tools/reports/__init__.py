"""What is known of the tools: whether each is available, and what each is good at."""
