"""Rivals of the trained model: fixed rules, and routers that learn."""
