"""Indexes in folders: built once from files of passages, opened in place, searched by words and by meaning."""
