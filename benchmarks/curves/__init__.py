"""Recorded learning curves of real trials, and how they are recorded: what `python -m benchmarks quality` plays on."""
