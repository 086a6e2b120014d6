"""Groups that try every choice once: where a choice stands, what the episodes begin with, what a choice earned."""
