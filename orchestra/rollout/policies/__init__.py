"""Policies: the interface, and one file for each way to generate."""
