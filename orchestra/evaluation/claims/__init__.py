"""The claims of the method, measured over several training seeds."""
