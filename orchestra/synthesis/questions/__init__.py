"""Questions made by rule: sums, facts, subjects."""
