"""Decoding in process: batches, the cache of keys and values, prompts shared by a group."""
