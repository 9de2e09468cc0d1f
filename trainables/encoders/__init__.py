"""Sentence encoders: found, loaded, packed, pooled."""
