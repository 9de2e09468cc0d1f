"""How much a score moves by the seed alone: a study's own repeats, pooled with a prior (Gelman et al. 2013, sec. 2.6).

Without a repeat the prior decides, widely; with ten it hardly matters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import chdtri, ndtri

from analysis.statistics.empirical_bayes import FLOOR, PRIOR_DF, Flags, Floats, about_means
from search.schema import SEED_SD

LEARNED_DF = 4  # degrees of freedom of repeats in other studies before the prior is learned from them
PLAUSIBLE = 0.95  # one-sided; `SeedNoise.most`
MIN_POINTS = 16  # points below which the spread of all is no bound
SPREAD_ERROR = 2.7  # 1.65 standard errors of the spread, which is known to 1.65 / sqrt(n) of itself
ENOUGH = 8  # values from which on their spread is measured by the median deviation


@dataclass(frozen=True)
class SeedValues:
    """(trials,) values of completed trials, larger is better, with point, stage and seed."""

    point: NDArray[np.object_]
    confirm: Flags
    seed: NDArray[np.object_]
    value: Floats

    @staticmethod
    def of(trials: pd.DataFrame, sign: float) -> SeedValues:
        value = sign * trials["value"].to_numpy(dtype=float)
        keep = (trials["stop"].to_numpy(dtype=object) == "completed") & ~np.isnan(value)
        point, stage, seed = (trials[name].to_numpy(dtype=object)[keep] for name in ("point", "stage", "seed"))
        return SeedValues(point, stage == "confirm", seed, value[keep])

    def of_point(self, point: str, confirm: bool) -> dict[Any, float]:
        """seed -> value of a point's trials of one stage."""
        rows = np.flatnonzero((self.point == point) & (self.confirm == confirm))
        return {self.seed[row]: float(self.value[row]) for row in rows}

    def within(self) -> tuple[float, int]:
        """Sum of squares and degrees of freedom within (point, stage)."""
        groups: dict[tuple[Any, Any], list[float]] = {}
        for point, confirm, value in zip(self.point, self.confirm, self.value, strict=True):
            groups.setdefault((point, bool(confirm)), []).append(value)
        return about_means(groups.values())

    def firsts(self) -> Floats:
        """The first value of each point."""
        return self.value[np.sort(np.unique(self.point.astype(str), return_index=True)[1])]


@dataclass(frozen=True)
class Prior:
    """Standard deviation over seeds as assumed before a study's own repeats, with PRIOR_DF degrees of freedom.

    studies, df: of the store that it was learned from, and of their repeats; 0 for the published figure. points: of an
    unknown metric, how many points' spread it is, which any repeat replaces; else 0.
    """

    sd: float = SEED_SD
    studies: int = 0
    df: int = 0
    points: int = 0

    def weight(self, repeats: int) -> float:
        """Degrees of freedom that it counts for beside so many of repeats."""
        if not self.points:
            return PRIOR_DF
        return 0.0 if repeats else min(PRIOR_DF, max(self.points - 1.0, 1.0))

    def pooled(self, squares: float, repeats: int) -> float:
        """Standard deviation of prior and repeats together, by the repeats' sum of squares and degrees of freedom."""
        weight = self.weight(repeats)
        return float(np.sqrt((weight * self.sd**2 + squares) / (weight + repeats)))


@dataclass(frozen=True)
class SeedNoise:
    """Standard deviation of one trial's value over seeds. df: degrees of freedom, the prior's included; repeats: those
    of the study's own repeats. most: an upper bound of `sd`, exceeded with chance 1 - PLAUSIBLE."""

    sd: float
    df: float
    repeats: int
    most: float
    prior: Prior


def seed_noise(trials: SeedValues, pruned: int = 0, prior: Prior | None = None) -> SeedNoise:
    """The prior and the repeats, pooled; without repeats at most the spread of the upper values. pruned: how many
    points were. Selecting points by their means does not bias repeats: mean and variance of normal values are
    independent."""
    prior = prior or Prior()
    squares, repeats = trials.within()
    df, sd = prior.weight(repeats) + repeats, prior.pooled(squares, repeats)
    most = sd * float(np.sqrt(df / chdtri(df, PLAUSIBLE)))
    if not repeats:
        values = trials.firsts()
        spread = upper_spread(values, pruned) * (1 + SPREAD_ERROR / np.sqrt(len(values)))
        sd, most = min(sd, spread), min(most, spread)
    return SeedNoise(max(sd, FLOOR), df, repeats, max(most, FLOOR), prior)


def learned(studies: Iterable[SeedValues], before: Prior | None = None) -> Prior:
    """Other studies' repeats pooled with the prior before, by default the published one; that alone if they are few."""
    before = before or Prior()
    found = [(squares, df) for squares, df in (study.within() for study in studies) if df]
    df = sum(df for _, df in found)
    if df < LEARNED_DF:
        return before
    return Prior(before.pooled(sum(squares for squares, _ in found), df), len(found), df)


def unknown_metric(values: Floats) -> Prior:
    """Prior of a metric of which nothing was published: the spread of the (n,) points' first values; of ENOUGH their
    median deviation, so that collapsed ones do not count; of a single value its size."""
    middle = float(np.median(values)) if len(values) else 0.0
    spread = abs(middle) if len(values) < 2 else float(np.std(values, ddof=1))
    if len(values) >= ENOUGH:
        spread = 1.4826 * float(np.median(np.abs(values - middle))) or spread
    return Prior(max(spread, FLOOR), points=max(len(values), 1))


def upper_spread(values: Floats, pruned: int) -> float:
    """A bound on the noise: two quantiles of the upper part of all values, scaled as for a normal distribution;
    infinite where there are too few points. Pruned points count as lower than all others. The pruner saw noisier values
    than those at the end, so near the lowest completed ones some are missing: the lower quantile keeps away from
    there."""
    if len(values) < MIN_POINTS // (2 if pruned else 1):
        return float("inf")
    stopped = pruned / (pruned + len(values))
    low = max(0.6, 1 - 0.7 * (1 - stopped))
    high = 1 - (1 - low) / 4
    middle, upper = np.quantile(values, [max(0.0, 1 - (1 - q) / (1 - stopped)) for q in (low, high)])
    return max(float(upper - middle) / float(ndtri(high) - ndtri(low)), FLOOR)
