"""What a generated task must survive: execution, a solver, no action."""
