"""Domains, tasks and preferences that a model writes."""
