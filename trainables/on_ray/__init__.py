"""Trials as Ray Train jobs inside Ray Tune."""
