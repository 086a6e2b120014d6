"""What runs inside vLLM, in its own environment: nothing here may import anything of ours."""
