"""Pairs of an anchor and its positive: the space sees `config`, trials run `method`."""
