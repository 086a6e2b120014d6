"""Implementations that a catalogue entry can name; a file here adds one."""
