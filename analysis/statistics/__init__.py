"""What the tables let one say, and how surely."""
