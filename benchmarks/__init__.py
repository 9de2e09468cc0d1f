"""Measurements behind docs/performance.md: `python -m benchmarks --help`."""
