"""Analyses of the method: one question each, with a table and a plot."""
