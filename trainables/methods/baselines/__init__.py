"""Baselines of the papers' main tables, a module each; `config` is what spaces see of them."""
