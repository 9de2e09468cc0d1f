"""Empirical Bayes over points and seeds: pure functions of arrays, which the search's confirmation plans use, too.

Points: observed means are true values plus noise of known sd. The prior of the true values is the nonparametric maximum
likelihood estimate over a grid (Kiefer and Wolfowitz 1956), by expectation maximisation (Laird 1978). Posterior means
under it need no further correction for selection (Efron 2011). A normal prior fails here: the bad points of a search
spread so far that it would not shrink the winner. Pruned points are censored (Turnbull 1976): trained to the end they
would lie below the median of those that were.

Seeds: variances are pulled towards a common one, which counts PRIOR_DF degrees of freedom (Smyth 2004).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

PRIOR_DF = 3.0  # degrees of freedom of a prior of the seeds' variance
FLOOR = 1e-5  # least standard deviation over seeds: equal values to the last digit are a frozen seed
GRID = 80
ITERATIONS = 100
BINS_PER_SD = 5
ABOVE = 2.0  # sds by which a true value may exceed the best observed
TINY = 1e-300  # keeps a quotient of two underflowing likelihoods finite
REACH = 10.0  # sds below the best value: lower values are moved up to here, the top does not depend on them


def about_means(groups: Iterable[Sequence[float]]) -> tuple[float, int]:
    """Sum of squares about the groups' means, and its degrees of freedom: the error of a one-way layout."""
    found = [np.asarray(values, dtype=float) for values in groups if len(values) > 1]
    return float(sum(((v - v.mean()) ** 2).sum() for v in found)), sum(len(v) - 1 for v in found)


def moderate(values: Sequence[float], variance: float, least: float = FLOOR**2) -> tuple[float, float]:
    """The variance of n >= 1 values, pulled towards `variance` and at least `least`, and its degrees of freedom:
    (PRIOR_DF * variance + sum of squares) / (PRIOR_DF + n - 1)."""
    found = np.asarray(values, dtype=float)
    df = PRIOR_DF + len(found) - 1
    squares = float(((found - found.mean()) ** 2).sum())
    return max((PRIOR_DF * variance + squares) / df, least), df


@dataclass(frozen=True)
class Posterior:
    """grid: (m,) possible true values, larger is better; weights: (n, m) posterior of each point, rows sum to 1."""

    grid: Floats
    weights: Floats

    @property
    def mean(self) -> Floats:
        """(n,) posterior means."""
        return np.asarray(self.weights @ self.grid)

    def improvement(self, leader: int) -> Floats:
        """(n,) expected improvement over the leader, E max(0, a - b); 0 for the leader itself."""
        over = np.maximum(self.grid[:, None] - self.grid, 0.0) @ self.weights[leader]
        found: Floats = self.weights @ over
        found[leader] = 0.0
        return found

    def probability_best(self, among: Flags) -> Floats:
        """(n,) probability that each point has the largest true value of those in `among`, 0 elsewhere; ties share
        it."""
        weights = self.weights[among]
        below = np.cumsum(weights, axis=1) - weights / 2
        logs = np.log(np.maximum(below, TINY))
        others = np.exp(logs.sum(axis=0) - logs)
        probability = np.zeros(len(self.weights))
        share = (weights * others).sum(axis=1)
        probability[among] = share / share.sum()
        return probability


def posterior_of_means(means: Floats, sds: Floats, iterations: int = 60) -> Posterior:
    """Posterior of points that are all treated alike, none pruned.

    Args: means, sds: (n,), n >= 1; sds > 0, within a factor of 100 of each other.
    """
    grid = _grid(means, sds)
    likelihood = _likelihood(np.maximum(means, grid[0]), sds, grid)
    return _normalised(grid, likelihood * _fit(likelihood, np.ones(len(means)), iterations))


@dataclass(frozen=True)
class Chosen:
    """The picked point: unlike other points with prior probability `unlike`, else too high by `bias` (selection
    bias), with a spread of `sd` > 0 about that."""

    point: int
    unlike: float
    bias: float
    sd: float


def posterior(values: Floats, sds: Floats, pruned: Flags, chosen: Chosen) -> Posterior:
    """Posterior of every point's true value, for the expected value of the chosen one; larger is better.

    The prior of that one is learned from the other points alone, since its own selection bias would survive in it.

    Args: values, sds, pruned: (n,), n >= 1, sds > 0; not all pruned, and the values of pruned points do not count.
    """
    grid, at = _grid(values, sds), chosen.point
    likelihood, everyone, others = _priors(values, sds, pruned, grid, at)
    weights = likelihood * everyone
    # Both densities up to one constant: the narrower one is the higher.
    like = _likelihood(np.maximum(values[[at]], grid[0]) - chosen.bias, np.array([chosen.sd]), grid)[0]
    weights[at] = (1 - chosen.unlike) * others * like * sds[at] / chosen.sd + chosen.unlike / GRID * likelihood[at]
    return _normalised(grid, weights)


def alike(values: Floats, sds: Floats, pruned: Flags) -> Posterior:
    """The same with all points treated alike, for which of them is the best: one in n is better by any amount."""
    grid = _grid(values, sds)
    likelihood, everyone, _ = _priors(values, sds, pruned, grid, 0)
    better = (grid >= everyone @ grid).astype(np.float64)
    return _normalised(grid, likelihood * (everyone + (better / better.sum() - everyone) / len(values)))


def _grid(values: Floats, sds: Floats) -> Floats:
    top, widest = float(values.max()), float(sds.max())
    return np.linspace(max(float(values.min()), top - REACH * widest), top + ABOVE * widest, GRID)


def _priors(values: Floats, sds: Floats, pruned: Flags, grid: Floats, left_out: int) -> tuple[Floats, Floats, Floats]:
    """(n, m) likelihoods of every point: of its value, or of having been stopped below the median of all others; and
    the (m,) prior that all points give, and all but `left_out`.

    Points are counted in bins of a fifth of the smallest sd: the cost of a fit does not grow with their number.
    """
    seen = np.maximum(np.where(pruned, np.median(values[~pruned]), values), grid[0])
    low, width = grid[0] - sds.max(), sds.min() / BINS_PER_SD
    binned = np.stack([np.rint((seen - low) / width), sds, pruned], axis=1)
    kinds, kind, counts = np.unique(binned, axis=0, return_inverse=True, return_counts=True)
    of_kinds = _likelihoods(low + width * kinds[:, 0], kinds[:, 1], kinds[:, 2] > 0, grid)
    fewer = counts - (np.arange(len(kinds)) == kind.ravel()[left_out])
    return _likelihoods(seen, sds, pruned, grid), _fit(of_kinds, counts), _fit(of_kinds, fewer)


def _fit(likelihood: Floats, counts: NDArray[Any], iterations: int = ITERATIONS) -> Floats:
    """(k, m) likelihoods of k kinds of values and their counts to (m,) weights: EM, evenly spread for no values."""
    prior = np.full(likelihood.shape[1], 1 / likelihood.shape[1])
    for _ in range(iterations if counts.any() else 0):
        prior = prior * ((counts / np.maximum(likelihood @ prior, TINY)) @ likelihood) / counts.sum()
    return prior


def _normalised(grid: Floats, weights: Floats) -> Posterior:
    weights = np.maximum(weights, TINY)
    return Posterior(grid, weights / weights.sum(axis=1, keepdims=True))


def _likelihoods(values: Floats, sds: Floats, pruned: Flags, grid: Floats) -> Floats:
    """(n, m) of the values or, where pruned, of one below."""
    from scipy.special import ndtr  # not at the top: importing it would double the time this module takes

    below = ndtr((values[:, None] - grid) / sds[:, None])
    return np.where(pruned[:, None], below, _likelihood(values, sds, grid))


def _likelihood(values: Floats, sds: Floats, grid: Floats) -> Floats:
    """(n, m) normal densities up to a constant per row."""
    return np.asarray(np.exp(-0.5 * ((values[:, None] - grid) / sds[:, None]) ** 2))
