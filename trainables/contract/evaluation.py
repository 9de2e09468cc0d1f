"""A dev evaluation that comes from outside: what it measures, and the function that does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

EmbedTexts = Callable[[Sequence[str]], NDArray[np.float32]]  # n texts -> (n, D) vectors as at test time, any norm


@dataclass(frozen=True, kw_only=True)
class DevEvaluation:
    """Measured at every evaluation of a trial, beside the dev sets; each of its metrics can select.

    Attributes:
        name: the word under `data.evaluations` of a space.
        metrics: names of the values, higher = better unless `metric.mode` says min; `topics` is tracked as `topics_dev`
            and printed x 100 like the built-in ones. Where it did not select, `analysis` wants `max(topics_dev)` or
            `min(topics_dev)`.
        evaluate: (embed, folder) -> a finite number for each of `metrics`. folder: what the space gives it (a folder or
            file of data), None without. Must not change with time or chance (the generators of `random`, numpy and
            torch stand afterwards where they stood), and never read test data.
    """

    name: str
    metrics: tuple[str, ...]
    evaluate: Callable[[EmbedTexts, Path | None], Mapping[str, float]]
