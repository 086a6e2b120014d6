"""Commands that make, import and check what the pipeline reads: examples, domains, tools and indexes."""
