"""Tools: one interface, one catalogue, dated prices."""
