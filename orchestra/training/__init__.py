"""SFT warm-up and GRPO."""
