"""What acts in an episode: the interface, and one file for each way to generate."""
