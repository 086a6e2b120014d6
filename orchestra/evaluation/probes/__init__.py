"""Controlled re-evaluations: the same examples with one thing changed, to see whether the policy reads it."""
