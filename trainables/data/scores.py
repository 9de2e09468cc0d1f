"""The scale that a file's scores are on. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainables.contract.errors import DataError

Scale = tuple[float, float]  # the lowest and the highest score
COSINE: Scale = (-1.0, 1.0)
SCALES: tuple[Scale, ...] = ((0.0, 1.0), COSINE, (1.0, 5.0), (0.0, 5.0), (0.0, 10.0), (0.0, 100.0))  # likeliest first


def score_scale(scores: Sequence[float | str]) -> Scale:
    """The first of `SCALES` that holds all scores, else their own range.

    >>> score_scale([0.2, 5]), score_scale(["-3", "7"])
    ((0.0, 5.0), (-3.0, 7.0))
    """
    low, high = min(map(float, scores)), max(map(float, scores))
    return next((scale for scale in SCALES if scale[0] <= low and high <= scale[1]), (low, high))


def scale_note(path: Path, scores: Sequence[float]) -> str:
    """What `search check` prints of a file's scores, "" of none."""
    if not scores:
        return ""
    low, high = score_scale(scores)
    return f"{path}: scores from {min(scores):g} to {max(scores):g}, read on a scale of {low:g} to {high:g}"


def check_same_scale(first: str, name: str, scales: Sequence[Sequence[str]]) -> None:
    """That the scores of two sets that are joined, their names given, mean the same. Raises: DataError."""
    (low, high), (other_low, other_high) = map(score_scale, scales)
    if (low, high) != (other_low, other_high):
        expected = f"scores on the scale of {first}, {low:g} to {high:g}"
        raise DataError(f"{name}: expected {expected}, got {other_low:g} to {other_high:g}")
