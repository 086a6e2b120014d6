"""Arithmetic as people write it: signs, words and number words, read into an exact number."""
