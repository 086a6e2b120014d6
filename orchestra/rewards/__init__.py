"""Outcome and group rewards (Eq. 1-2)."""
