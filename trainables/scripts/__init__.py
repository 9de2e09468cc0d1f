"""Trials that a script of the user's trains."""
