"""Pairs of sentences with a score: the space sees `config`, trials run `method`."""
