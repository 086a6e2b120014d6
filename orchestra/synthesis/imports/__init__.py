"""Data that comes from outside as examples, and examples that go out in a published schema."""
