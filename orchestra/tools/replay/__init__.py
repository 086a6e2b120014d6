"""Recorded replies: the cassette, and a tool that answers from it."""
