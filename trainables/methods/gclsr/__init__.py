"""GCLSR."""
