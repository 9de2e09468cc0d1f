"""Learning-rate shapes as pure functions of the step."""

from __future__ import annotations

import math


def decay(shape: str, step: int, steps: int, warmup: int = 0) -> float:
    """Factor on the peak learning rate at `step` (0-based) of `steps`: linear warm-up, then the shape down to 0.

    Args:
        shape: "linear", "cosine" or "constant" after warm-up.
        step: 0 <= step; beyond `steps` the last value holds.
        warmup: steps of linear rise from 0; the first step of a warm-up has factor 0, as in transformers.
    """
    if step < warmup:
        return step / warmup
    if shape == "constant":
        return 1.0
    progress = min(1.0, (step - warmup) / max(1, steps - warmup))
    return 1.0 - progress if shape == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
