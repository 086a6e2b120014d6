"""Benchmarks by their published schemas."""
