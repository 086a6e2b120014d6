"""The code interpreter: a pool of isolated processes without network."""
