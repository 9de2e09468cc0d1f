"""What a point is worth once one knows it was picked for looking good: empirical Bayes with a free prior.

Observed means y_i = theta_i + noise of known sd s_i. The prior of theta is not assumed: it is the nonparametric maximum
likelihood estimate over a grid (Kiefer and Wolfowitz 1956), by expectation maximisation (Laird 1978). Posterior means
under it need no further correction for selection (Dawid 1994; Efron 2011, "Tweedie's formula and selection bias"). A
normal prior (James and Stein 1961) would not do: searches end on a plateau of equally good points with a long tail of
bad ones, whose spread would switch the shrinkage off exactly where the winner's curse is worst.

Pruned points enter as censored (Turnbull 1976): had they been trained to the end, they would have come out below the
median of those that were. Left out, or taken for what they had reached, they would leave a search of lucky points only,
and the best of those would seem worth what it showed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

GRID = 80
ITERATIONS = 100
BINS_PER_SD = 5  # values are counted in bins of a fifth of the smallest sd: cost does not grow with their number
ABOVE = 2.0  # sds by which a true value may exceed the best observed
TINY = 1e-300  # keeps a quotient of two underflowing likelihoods finite
REACH = 10.0  # sds below the best value: what lies deeper says nothing about the top and is moved up to here


@dataclass(frozen=True)
class Posterior:
    """grid: (m,) possible values; weights: (n, m) posterior of each point, rows sum to 1."""

    grid: Floats
    weights: Floats

    @property
    def mean(self) -> Floats:
        return np.asarray(self.weights @ self.grid)

    def probability_best(self, among: NDArray[np.bool_]) -> Floats:
        """(n,) probability that each point has the largest true value of those in `among`, 0 elsewhere; sums to 1.

        Exact on the grid for independent posteriors; points tied on a grid value share it.
        """
        weights = self.weights[among]
        below = np.cumsum(weights, axis=1) - weights / 2
        logs = np.log(np.maximum(below, TINY))
        others = np.exp(logs.sum(axis=0) - logs)
        probability = np.zeros(len(self.weights))
        share = (weights * others).sum(axis=1)
        probability[among] = share / share.sum()
        return probability


@dataclass(frozen=True)
class Chosen:
    """The point that was picked. unlike: prior probability that it is unlike the others; if it is like them, its value
    is too high by `luck` on average, and spreads about that by `sd` > 0."""

    point: int
    unlike: float
    luck: float
    sd: float


def posterior(values: Floats, sds: Floats, pruned: Flags, chosen: Chosen) -> Posterior:
    """Posterior of every point's true value, for what the chosen one is worth; larger is better.

    The free prior follows the data, so that some of a chosen point's luck would survive in it: the prior of that one is
    learned from the other points alone, with the share `unlike` spread evenly over all values, for a point unlike them.

    Args: values, sds, pruned: (n,), n >= 1, sds > 0; not all pruned, and the values of pruned points do not count.
    """
    bins = _Bins.of(values, sds)
    values = np.maximum(values, bins.grid[0])
    counts = bins.count(np.stack([values, values]), bins.groups(sds)[None], np.stack([pruned, pruned]))
    at = [chosen.point]
    own = bins.count(values[None, at], bins.groups(sds)[None, at], pruned[None, at])[0]
    counts[1] -= own
    everyone, others = bins.fit(counts)
    likelihood = _likelihoods(values, sds, pruned, bins.grid)
    weights = likelihood * everyone
    # Both densities up to one constant: the narrower one is the higher.
    like = _likelihood(values[at] - chosen.luck, np.array([chosen.sd]), bins.grid)[0] * sds[chosen.point] / chosen.sd
    even = chosen.unlike / len(others)
    weights[chosen.point] = (1 - chosen.unlike) * others * like + even * likelihood[chosen.point]
    return _normalised(bins.grid, weights)


def alike(values: Floats, sds: Floats, pruned: Flags) -> Posterior:
    """Posterior of every point's true value with all treated alike, for which of them is the best: one prior learned
    from all, in which one point in n is better than the rest by any amount.

    Args: as of `posterior`.
    """
    bins = _Bins.of(values, sds)
    values = np.maximum(values, bins.grid[0])
    everyone = bins.fit(bins.count(values[None], bins.groups(sds)[None], pruned[None]))[0]
    better = (bins.grid >= everyone @ bins.grid).astype(np.float64)
    prior = everyone + (better / better.sum() - everyone) / len(values)
    return _normalised(bins.grid, _likelihoods(values, sds, pruned, bins.grid) * prior)


def _normalised(grid: Floats, weights: Floats) -> Posterior:
    weights = np.maximum(weights, TINY)
    return Posterior(grid, weights / weights.sum(axis=1, keepdims=True))


@dataclass(frozen=True)
class _Bins:
    """Counts per (precision class, bin) in place of single values."""

    grid: Floats  # (m,)
    low: float
    width: float
    bins: int
    classes: Floats  # the different sds, ascending
    likelihood: Floats  # (2 * classes * bins, m): of a value in the bin; then of one somewhere below the bin

    @staticmethod
    def of(values: Floats, sds: Floats) -> _Bins:
        classes = np.unique(sds)
        top = float(values.max())
        bottom = max(float(values.min()), top - REACH * float(classes[-1]))
        low, high = bottom - float(classes[-1]), top + float(classes[-1])
        width = float(classes[0]) / BINS_PER_SD
        bins = int(np.ceil((high - low) / width))
        grid = np.linspace(bottom, top + ABOVE * float(classes[-1]), GRID)
        centres = np.asarray(low + width * np.arange(bins), dtype=np.float64)
        tables = [_likelihood(centres, np.full(bins, sd), grid) for sd in classes]
        tables += [_below(centres, np.full(bins, sd), grid) for sd in classes]
        return _Bins(grid, low, width, bins, classes, np.concatenate(tables))

    def groups(self, sds: Floats) -> NDArray[np.intp]:
        """Precision class of each sd, which must be one of `classes`."""
        return np.searchsorted(self.classes, sds)

    def count(self, values: Floats, groups: NDArray[np.intp], pruned: Flags) -> Floats:
        """(studies, n) values to (studies, 2 * classes * bins) counts."""
        seen = np.where(pruned, _limit(values, pruned), values)
        place = np.rint((seen - self.low) / self.width).astype(int)
        place = place + (groups + len(self.classes) * pruned) * self.bins
        size = len(self.likelihood)
        flat = place + size * np.arange(len(values))[:, None]
        return np.bincount(flat.ravel(), minlength=size * len(values)).reshape(len(values), size).astype(float)

    def fit(self, counts: Floats) -> Floats:
        """(studies, bins) counts to (studies, m) prior weights: EM from a flat start."""
        used = counts.any(axis=0)
        counts, likelihood = counts[:, used], self.likelihood[used]
        total = np.maximum(counts.sum(axis=1, keepdims=True), 1.0)
        prior = np.ones((len(counts), len(self.grid)))  # its scale is gone after a step
        for _ in range(ITERATIONS):
            prior = prior * ((counts / np.maximum(prior @ likelihood.T, TINY)) @ likelihood) / total
        return prior


def _limit(values: Floats, pruned: Flags) -> Floats:
    """(..., 1) median of the points that were not pruned, along the last axis."""
    return np.asarray(np.nanmedian(np.where(pruned, np.nan, values), axis=-1, keepdims=True))


def _below(limit: Floats, sds: Floats, grid: Floats) -> Floats:
    """(n, m) probability of a value below the limit."""
    return np.asarray(ndtr((np.broadcast_to(limit, sds.shape)[:, None] - grid) / sds[:, None]))


def _likelihoods(values: Floats, sds: Floats, pruned: Flags, grid: Floats) -> Floats:
    """(n, m) of every point: of its value, or of having been stopped."""
    below = _below(_limit(values, pruned), sds, grid)
    return np.where(pruned[:, None], below, _likelihood(values, sds, grid))


def _likelihood(values: Floats, sds: Floats, grid: Floats) -> Floats:
    """(n, m) normal densities up to a constant per row."""
    return np.asarray(np.exp(-0.5 * ((values[:, None] - grid) / sds[:, None]) ** 2))
