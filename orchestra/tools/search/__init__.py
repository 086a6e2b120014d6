"""Search: the pipeline's own corpus, and the web."""
