"""GRPO's episodes through a vLLM server: its life, its weights, the proof that it has them, and its policy."""
