"""What a search was worth: the best that n of its trials would have found, and what the second half bought."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.statistics.correlation import (
    Floats,
    expected_best,
    expected_best_interval,
    expected_gain,
)
from analysis.tables.metric import Metric
from analysis.tables.study import Study

CURVE_POINTS = 100
LEAST = 8


@dataclass(frozen=True)
class Worth:
    """Expected best of so many trials of the search, in random order, as measured; units of the metric.

    counts: (k,) trials, 1 to all of them; best, low, high: (k,), with the 95 % interval over other searches. half: the
    gain of all trials over a half of them, larger is better, gain_low, gain_high its interval. seconds: median training
    time of a trial. A trial that was pruned counts with what it had reached.
    """

    counts: Floats
    best: Floats
    low: Floats
    high: Floats
    half: float
    gain_low: float
    gain_high: float
    seconds: float


def worth(study: Study) -> Worth | None:
    """None with fewer than LEAST trials that have a value: an interval of so few says nothing."""
    table = study.trials[(study.trials["stage"] == "search") & study.trials["value"].notna()]
    values = study.metric.sign * table["value"].to_numpy(dtype=float)
    total = len(values)
    if total < LEAST:
        return None
    counts = np.unique(np.linspace(1, total, min(total, CURVE_POINTS)).astype(int))
    low, high = expected_best_interval(values, counts)
    sign = study.metric.sign
    ends = (low, high) if sign > 0 else (-high, -low)
    half, gain_low, gain_high = expected_gain(values, total // 2, total)
    seconds = float(table["seconds"].median())
    return Worth(counts.astype(float), sign * expected_best(values, counts), *ends, half, gain_low, gain_high, seconds)


def worth_line(found: Worth, metric: Metric) -> str:
    """The sentence."""
    scale = metric.scale
    return (
        f"The second half of the trials bought {scale * found.half:+.2f} (95 % interval {scale * found.gain_low:+.2f} "
        f"to {scale * found.gain_high:+.2f} over other searches), as measured: the luck of the best is in it."
    )
