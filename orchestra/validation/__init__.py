"""Validation of data: flat rows, surveys, frames, plots and the page."""
