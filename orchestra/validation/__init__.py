"""What data must hold: flat rows, surveys, frames, plots and the page."""
