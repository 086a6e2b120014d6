"""Money and time: what was spent, what may be spent, what will be."""
