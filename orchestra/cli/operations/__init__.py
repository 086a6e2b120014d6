"""Commands of the engineer and of the person on call."""
