"""How far the best of several lies above its true value by chance: tails and bounds, without simulation.

Two ways of having been picked. A value that was picked for being the largest of N is the largest of N errors. A value
measured afresh on new seeds was picked among K confirmed ones only, but what the search saw in the dev pairs stays with
the point: of that part it is still the largest of N.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtr, ndtri, stdtr, stdtrit

Floats = NDArray[np.float64]
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(32)
NODES, WEIGHTS = (_NODES + 1) / 2, _WEIGHTS / 2  # of an integral over (0, 1)
LEVEL = 0.95  # of the intervals of the expected value and of the gain
TAIL = (1 - LEVEL) / 2
ENDLESS = 1e6  # degrees of freedom at which Student's t is normal


@cache
def largest(total: int) -> Floats:
    """(32,) values at which to integrate over the largest of `total` standard normals, with WEIGHTS."""
    return np.asarray(ndtri(NODES ** (1 / total)))


@dataclass(frozen=True)
class Error:
    """The error of an estimate, in units of the metric.

    variance, df: of the seeds' part, as estimated. known: variance of the dev pairs' part. kept: standard deviation of
    the share of the dev pairs' luck by which the search has picked, `tried` points; candidates: estimates of this kind
    of which the best was picked.
    """

    variance: float
    df: float
    known: float = 0.0
    kept: float = 0.0
    tried: int = 1
    candidates: int = 1

    @property
    def sd(self) -> float:
        return float(np.sqrt(self.variance + self.known))

    @property
    def freedom(self) -> float:
        """Degrees of freedom of variance + known (Satterthwaite 1946): the known part has infinitely many."""
        if not self.variance:
            return ENDLESS
        return min(self.df * ((self.variance + self.known) / self.variance) ** 2, ENDLESS)

    def tail(self, error: float) -> float:
        """Upper bound of the chance that the picked estimate lies at least this far above its true value.

        The bound is Bonferroni's over the candidates, Student's t for each, averaged over the largest of `tried`
        normals for what the search had picked.
        """
        z = largest(self.tried) if self.kept else np.zeros(1)
        w = WEIGHTS if self.kept else np.ones(1)
        if not self.sd:
            return float(self.kept * z.max() >= error)
        single = float(w @ stdtr(self.freedom, (self.kept * z - error) / self.sd))
        return min(1.0, self.candidates * single)

    def bound(self, level: float) -> float:
        """The error whose tail is `level`."""
        if not self.kept:
            return -float(stdtrit(self.freedom, level / self.candidates)) * self.sd
        return self.kept * _solve(lambda luck: self.tail(luck * self.kept), level)


def spent(looks: int) -> float:
    """One-sided level of look j: TAIL / (j (j + 1)), which sums to TAIL over j = 1, 2, ..."""
    return TAIL / (looks * (looks + 1))


def split(part: float, seeds: float) -> tuple[float, float]:
    """What a search picked of the dev pairs' luck with a point, as a standard deviation, and the rest's variance.

    A search mean varies by `part` through the pairs and by `seeds` through the seeds; the regression of the pairs' luck
    on it is what the search has picked by.
    """
    if not part:
        return 0.0, 0.0
    share = part / (part + seeds)
    return float(np.sqrt(share * part)), part * (1 - share)


def tail_of_largest(error: float, sd: float, df: float, total: int) -> float:
    """Chance that the largest of `total` errors, of one standard deviation estimated as `sd` with df, is `error` > 0
    or more: with z the largest of as many standard normals, that df sd^2 z^2 / error^2 exceeds a chi-square value."""
    z = np.maximum(largest(total), 0.0)
    return float(WEIGHTS @ chdtr(df, df * (sd * z / error) ** 2))


def bound_of_largest(level: float, sd: float, df: float, total: int) -> float:
    """The error > 0 that the largest of `total` exceeds with chance `level` < 1/2."""
    log = _solve(lambda log: tail_of_largest(float(np.exp(log)), 1.0, df, total), level)
    return sd * float(np.exp(log))


def _solve(tail: Callable[[float], float], level: float) -> float:
    """Where a falling tail crosses `level`: bracketed by doubling from -1 and 1, then halved until no number lies
    between. (scipy's root finders take as long to be imported as a whole verdict.)"""
    low, high = -1.0, 1.0
    while tail(low) < level:
        low *= 2
    while tail(high) > level:
        high *= 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if tail(middle) > level else (low, middle)
    return high
