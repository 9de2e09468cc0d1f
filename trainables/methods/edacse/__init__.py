"""EdaCSE."""
