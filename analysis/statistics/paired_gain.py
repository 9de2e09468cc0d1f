"""Best against baseline on test sets: paired over sentence pairs, and over seeds where both have them.

Both are scored on the same pairs, so what makes a set hard or easy cancels. Two answers, on different assumptions: a
bootstrap over pairs (Efron and Tibshirani 1993, ch. 6), which also gives the interval of the mean over sets, and
Williams' test of two dependent correlations (Williams 1959; Steiger 1980, Eq. 7), per set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from analysis.statistics.correlation import NORMAL, Floats
from trainables.evaluation.metrics import spearman

DRAWS = 1000
LEVEL = 0.95


@dataclass(frozen=True)
class PairedGain:
    """First minus second configuration on one set, or on the mean of several; correlations in [-1, 1].

    first, second: means over their seeds. low, high: LEVEL interval over pairs, and over seeds where `seeds` > 1.
    pairs_low, pairs_high: over pairs alone. seeds: common seeds that it is paired over, 0 = none in common.
    williams: two-sided p of Williams' test of a typical seed's correlations; None for a mean of sets.
    """

    name: str
    first: float
    second: float
    gain: float
    low: float
    high: float
    pairs_low: float
    pairs_high: float
    seeds: int
    williams: float | None


def paired_gains(
    first: Mapping[int, Mapping[str, NDArray[np.floating]]],
    second: Mapping[int, Mapping[str, NDArray[np.floating]]],
    gold: Mapping[str, NDArray[np.floating]],
    rng: np.random.Generator,
    draws: int = DRAWS,
) -> list[PairedGain]:
    """The gain per set of `gold`, and on their mean if there are several.

    Args: first, second: seed -> set -> cosines (n,); gold: set -> gold scores (n,) of the same pairs.
    Raises: ValueError if a set's arrays differ in length or one is constant.
    """
    common = sorted(first.keys() & second.keys())
    mine, theirs = (common, common) if common else (sorted(first), sorted(second))
    per_set = [
        _Compared.of(name, [first[s][name] for s in mine], [second[s][name] for s in theirs], scores, rng, draws)
        for name, scores in gold.items()
    ]
    found = [one.gain(len(common)) for one in per_set]
    if len(per_set) > 1:
        mean = _Compared(
            "mean",
            np.mean([one.first for one in per_set], axis=0),
            np.mean([one.second for one in per_set], axis=0),
            np.mean([one.draws for one in per_set], axis=0),
            None,
        )
        found.append(mean.gain(len(common)))
    return found


@dataclass(frozen=True)
class _Compared:
    """first, second: (m,) correlations per seed. draws: (draws,) differences of the means over resampled pairs."""

    name: str
    first: Floats
    second: Floats
    draws: Floats
    williams: float | None

    @staticmethod
    def of(
        name: str,
        first: Sequence[NDArray[np.floating]],
        second: Sequence[NDArray[np.floating]],
        gold: NDArray[np.floating],
        rng: np.random.Generator,
        draws: int,
    ) -> _Compared:
        if {len(x) for x in (*first, *second)} != {len(gold)}:
            raise ValueError(f"{name}: expected {len(gold)} cosines of every trial")
        a, b = (np.array([spearman(x, gold) for x in side]) for side in (first, second))
        between = float(np.mean([spearman(x, y) for x, y in zip(first, second, strict=False)]))
        if not np.isfinite([*a, *b, between]).all():
            raise ValueError(f"{name}: all cosines of a trial are equal")
        p = williams(float(a.mean()), float(b.mean()), between, len(gold))
        return _Compared(name, a, b, bootstrap_difference(first, second, gold, rng, draws), p)

    def gain(self, common: int) -> PairedGain:
        """With `common` seeds the differences are taken seed by seed; without, the two sides' variances add."""
        gain = float(self.first.mean() - self.second.mean())
        tail = (1 - LEVEL) / 2
        low, high = (float(q) for q in np.quantile(self.draws, [tail, 1 - tail]))
        pairs = float(np.var(self.draws))
        parts = [self.first - self.second] if common else [self.first, self.second]
        total_low, total_high = low, high
        if all(len(x) > 1 for x in parts):
            seeds = [float(x.var(ddof=1)) / len(x) for x in parts]
            variance = pairs + sum(seeds)
            # Satterthwaite 1946; the variance over pairs counts as known.
            squares = sum(v**2 / (len(x) - 1) for v, x in zip(seeds, parts, strict=True))
            reach = float(stdtrit(variance**2 / squares, 1 - tail)) if squares > 0 else NORMAL
            half = reach * float(np.sqrt(variance))
            total_low, total_high = min(low, gain - half), max(high, gain + half)
        return PairedGain(
            self.name, float(self.first.mean()), float(self.second.mean()), gain, total_low, total_high, low, high,
            common, self.williams,
        )  # fmt: skip


def williams(first: float, second: float, between: float, n: int) -> float:
    """Two-sided p that two correlations with one variable are equal, the two correlating by `between`; n pairs.

    t = (r12 - r13) sqrt((n - 1)(1 + r23) / (2 |R| (n - 1) / (n - 3) + (1 - r23)^3 (r12 + r13)^2 / 4)), df n - 3.

    Raises: ValueError for fewer than four pairs.
    """
    if n < 4:
        raise ValueError(f"expected at least 4 pairs, got {n}")
    determinant = 1 - first**2 - second**2 - between**2 + 2 * first * second * between
    below = 2 * max(determinant, 0.0) * (n - 1) / (n - 3) + (1 - between) ** 3 * (first + second) ** 2 / 4
    if below <= 0:
        return 1.0 if first == second else 0.0
    t = (first - second) * float(np.sqrt((n - 1) * (1 + between) / below))
    return 2 * float(stdtr(n - 3, -abs(t)))


def bootstrap_difference(
    first: Sequence[NDArray[np.floating]],
    second: Sequence[NDArray[np.floating]],
    gold: NDArray[np.floating],
    rng: np.random.Generator,
    draws: int = DRAWS,
) -> Floats:
    """(draws,) mean Spearman of `first` less that of `second`, over resampled pairs, the same for all vectors (n,)."""
    n = len(gold)
    levels = [np.unique(np.asarray(x), return_inverse=True)[1] for x in (gold, *first, *second)]
    found = np.empty(draws)
    for i in range(draws):
        weight = np.bincount(rng.integers(0, n, n), minlength=n).astype(float)
        target, *ranks = (_midranks(level, weight) for level in levels)
        rho = [_weighted_correlation(x, target, weight) for x in ranks]
        found[i] = np.mean(rho[: len(first)]) - np.mean(rho[len(first) :])
    return found


def _midranks(level: NDArray[np.intp], weight: Floats) -> Floats:
    """Midranks of resampled values, from their order before resampling: no sorting per draw."""
    mass = np.bincount(level, weights=weight)
    return np.asarray((np.cumsum(mass) - mass / 2)[level])


def _weighted_correlation(x: Floats, y: Floats, weight: Floats) -> float:
    total = weight.sum()
    x, y = x - weight @ x / total, y - weight @ y / total
    scale = np.sqrt((weight @ (x * x)) * (weight @ (y * y)))
    return float(weight @ (x * y) / scale) if scale > 0 else 0.0
