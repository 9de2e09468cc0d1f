"""How far the best of several lies above its true value by chance, and which gain can be detected: pure functions.

A value picked for being the largest of N has the largest of N errors. One measured on fresh seeds was picked among K
confirmed ones only, but of what the search saw in the dev pairs it is still the largest of N.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from scipy.special import chdtr, ndtri, stdtr, stdtrit

from analysis.statistics.empirical_bayes import PRIOR_DF, Floats

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(32)
NODES, WEIGHTS = (_NODES + 1) / 2, _WEIGHTS / 2  # of an integral over (0, 1)
CONFIDENCE = 0.95  # of the intervals of the expected value and of the gain
TAIL = (1 - CONFIDENCE) / 2
FIRST = 0.8  # share of the level that is left which an interim analysis spends
NORMAL = 1.959964  # of a two-sided 95 % interval of a normal value
ENDLESS = 1e6  # degrees of freedom at which Student's t is normal
POWER = 0.8  # chance of a claim at which a gain counts as detectable
NEARLY = 1.1  # a floor within this factor of what is detectable now: more seeds will not help


def spent(number: int) -> float:
    """One-sided level of an interim analysis; those of 1, 2, ... sum to TAIL. Most studies are confirmed once."""
    return TAIL * FIRST * (1 - FIRST) ** (number - 1)


@cache
def largest(total: int) -> Floats:
    """(32,) values at which to integrate over the largest of `total` standard normals, with WEIGHTS."""
    return np.asarray(ndtri(NODES ** (1 / total)))


@dataclass(frozen=True)
class EstimateError:
    """The error of an estimate, in units of the metric.

    variance, df: of the seeds' part, as estimated. known: variance of the dev pairs' part. kept: standard deviation of
    that share of it by which the search has picked among `tried`. candidates: estimates of which the best was picked.
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
        ratio = (self.variance + self.known) / self.variance if self.variance else ENDLESS
        return min(self.df * ratio**2, ENDLESS)

    def tail(self, error: float) -> float:
        """Upper bound (Bonferroni's) of the chance that the picked estimate lies so far above its true value: Student's
        t, averaged over the largest of `tried` normals for what was picked."""
        z, w = (largest(self.tried), WEIGHTS) if self.kept else (np.zeros(1), np.ones(1))
        if not self.sd:
            return float(self.kept * z.max() >= error)
        single = float(w @ stdtr(self.freedom, (self.kept * z - error) / self.sd))
        return min(1.0, self.candidates * single)

    def bound(self, level: float) -> float:
        """The error whose tail is `level`."""
        if not self.kept:
            return -float(stdtrit(self.freedom, level / self.candidates)) * self.sd
        return self.kept * _solve(lambda bias: self.tail(bias * self.kept), level)

    def visible(self, level: float) -> float:
        """The true gain that is claimed with chance POWER."""
        return self.bound(level) + float(ndtri(POWER)) * self.sd


def split(part: float, seeds: float) -> tuple[float, float]:
    """What a search picked of the dev pairs' effect on a point, as a standard deviation, and the rest's variance.

    A search mean varies by `part` through the pairs and by `seeds` through the seeds; the regression of the pairs'
    effect on it is what the search has picked by.
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
    """Where a falling tail crosses `level`. (Importing scipy's root finders takes as long as a whole verdict.)"""
    low, high = -1.0, 1.0
    while tail(low) < level:
        low *= 2
    while tail(high) > level:
        high *= 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if tail(middle) > level else (low, middle)
    return high


@dataclass(frozen=True)
class Power:
    """True gains over the baseline that would be claimed with chance POWER, in units of the metric: `visible` with
    `seeds` seeds, `visible_more` with `more`, twice as many, and `floor` with ever more."""

    seeds: int
    visible: float
    more: int
    visible_more: float
    floor: float

    @staticmethod
    def of(error: EstimateError, seeds: int, level: float) -> Power:
        """Args: error: of the difference to the baseline over `seeds` seeds; level: one-sided, of the claim."""
        doubled = replace(error, variance=error.variance / 2, df=error.df + seeds)
        floor = replace(error, variance=0.0).visible(level)
        return Power(seeds, error.visible(level), 2 * seeds, doubled.visible(level), floor)

    @property
    def seeds_help(self) -> bool:
        """Whether more seeds would make clearly smaller gains detectable."""
        return self.visible > NEARLY * self.floor


def planned(*, sd: float, between: float, tried: int, in_search: float, rivals: int, seeds: int) -> EstimateError:
    """Error of the difference to the baseline in a confirmation that is yet to be run.

    Args: sd: of a trial over seeds; between: as in `PairNoise`; tried, in_search: points of the search and seeds behind
        each of its means; rivals, seeds: to be confirmed, besides the baseline.
    """
    kept, rest = split(between / 2, sd**2 / in_search)
    return EstimateError(2 * sd**2 / seeds, PRIOR_DF + seeds - 1, rest + between / 2, kept, tried, rivals)
