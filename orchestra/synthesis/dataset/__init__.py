"""A whole data set: shards, worker processes, extra files, versions."""
