"""Analyses of the method: what is attempted for them, and where their tables and plots go."""
