"""Function-calling worlds as data: SQLite schema, entries, tools as SQL."""
