"""A study as tables."""
