"""The data gate: rows that overlap a benchmark, and rows whose licence is not on the list."""
