"""Tools that are language models: real endpoints, simulated ones, metered calls."""
