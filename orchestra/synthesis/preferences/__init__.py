"""Ways to state a preference, and the weights that belong to each."""
