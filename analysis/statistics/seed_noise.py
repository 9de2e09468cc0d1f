"""How much a score moves by the seed alone. Without that number no difference between two trials means anything.

A scaled inverse chi-square prior of few degrees of freedom and whatever repeats a study has, pooled: with no repeat the
prior speaks, widely; with ten it hardly matters (Gelman et al. 2013, sec. 2.6). The variance of one configuration is
then moderated by that of the study in the same way (Smyth 2004, Eq. 1).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.special import chdtri, ndtri

from analysis.statistics.empirical_bayes import FLOOR, PRIOR_DF
from analysis.statistics.evaluated import Floats, SeedValues
from search.schema import SEED_SD

LEARNED_DF = 4  # degrees of freedom of repeats in other studies before the prior is learned from them
PLAUSIBLE = 0.95  # one-sided; `SeedNoise.most`
MIN_POINTS = 16  # points below which the spread of all says nothing
SPREAD_ERROR = 2.7  # 1.65 standard errors of the spread, which is known to 1.65 / sqrt(n) of itself
ENOUGH = 8  # values whose median deviation says how far they spread


@dataclass(frozen=True)
class Prior:
    """What is believed of the standard deviation before a study's own repeats, with PRIOR_DF degrees of freedom.

    studies, df: how many studies of the store it was learned from and the degrees of freedom of their repeats; 0 for
    the published figure. points: where nothing is known of the metric, how many points' spread it is, which holds the
    noise: the first repeat is worth more than that; else 0.
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


@dataclass(frozen=True)
class SeedNoise:
    """Standard deviation of one trial's value over seeds, in the metric's own unit.

    df: degrees of freedom, those of the prior included. repeats: those of the study's own repeats alone. most: an upper
    bound, exceeded with 1 - PLAUSIBLE.
    """

    sd: float
    df: float
    repeats: int
    most: float
    prior: Prior


def seed_noise(trials: SeedValues, pruned: int = 0, prior: Prior | None = None) -> SeedNoise:
    """The prior and the repeats, pooled.

    Selecting points by their means does not bias the repeats, since mean and variance of normal values are independent.
    Where there is no repeat, the noise is no larger than the spread of the upper part of all values, which holds it.

    Args: pruned: points that were stopped.
    """
    prior = prior or Prior()
    squares, repeats = trials.within()
    df = prior.weight(repeats) + repeats
    sd = float(np.sqrt((prior.weight(repeats) * prior.sd**2 + squares) / df))
    most = sd * float(np.sqrt(df / chdtri(df, PLAUSIBLE)))
    if not repeats:
        values = trials.firsts()
        spread = upper_spread(values, pruned) * (1 + SPREAD_ERROR / np.sqrt(len(values)))
        sd, most = min(sd, spread), min(most, spread)
    return SeedNoise(max(sd, FLOOR), df, repeats, max(most, FLOOR), prior)


def learned(studies: Iterable[SeedValues], believed: Prior | None = None) -> Prior:
    """The prior that other studies' repeats give, pooled with what was believed before, by default the published one;
    that alone if they are few."""
    believed = believed or Prior()
    found = [(squares, df) for squares, df in (study.within() for study in studies) if df]
    df = sum(df for _, df in found)
    if df < LEARNED_DF:
        return believed
    squares, weight = sum(squares for squares, _ in found), believed.weight(df)
    return Prior(float(np.sqrt((weight * believed.sd**2 + squares) / (weight + df))), len(found), df)


def unknown_metric(values: Floats) -> Prior:
    """What is believed of a metric of which nothing is known, by the (n,) points' first values: no more than they
    spread: of ENOUGH their median deviation, so that collapsed ones do not count. One value says nothing but its size.
    """
    middle = float(np.median(values)) if len(values) else 0.0
    spread = abs(middle) if len(values) < 2 else float(np.std(values, ddof=1))
    if len(values) >= ENOUGH:
        spread = 1.4826 * float(np.median(np.abs(values - middle))) or spread
    return Prior(max(spread, FLOOR), points=max(len(values), 1))


def upper_spread(values: Floats, pruned: int) -> float:
    """A bound on the noise from the upper part of all values, which holds it along with what the points differ by.

    Its quantiles are scaled as for a normal distribution; infinite where there are too few points to tell. Pruned
    points count as lower than all others. The pruner saw noisier values than those at the end, so that near the lowest
    completed ones there are some missing: the lower quantile keeps away from there.
    """
    if len(values) < MIN_POINTS // (2 if pruned else 1):
        return float("inf")
    stopped = pruned / (pruned + len(values))
    low = max(0.6, 1 - 0.7 * (1 - stopped))
    high = 1 - (1 - low) / 4
    middle, upper = np.quantile(values, [max(0.0, 1 - (1 - q) / (1 - stopped)) for q in (low, high)])
    return max(float(upper - middle) / float(ndtri(high) - ndtri(low)), FLOOR)
