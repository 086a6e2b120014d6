"""Held-out evaluation: baselines, statistics, the gate, the report."""
