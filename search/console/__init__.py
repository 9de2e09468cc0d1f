"""What a user sees while a search runs."""
