"""Tasks in a domain, made by rule, made harder, and mutated to test the verdict."""
