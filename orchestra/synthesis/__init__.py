"""Examples made, and kept only when solvable and checkable."""
