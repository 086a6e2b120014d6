"""What the method claims, measured over several training seeds."""
