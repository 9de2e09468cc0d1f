"""Measurements behind docs/performance.md and docs/development: `python -m benchmarks --help`."""
