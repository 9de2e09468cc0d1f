"""What a point is worth once one knows that it was picked for looking good: a plateau, and what lies off it.

The mean of a point over all its seeds, those of the search included, is its true value + N(0, s^2 / n + t^2). As the
likelihood holds every value by which points were picked, having picked changes nothing in it (Dawid 1994), and
posterior means need no correction for selection; those given fresh seeds alone would, for the luck with the dev pairs
stays with a point. The prior is a spike and two slabs (Mitchell and Beauchamp 1988), since searches end on a plateau of
equally good points, with a tail of bad ones and perhaps a few that are better:

    theta = mu                   with probability (1 - w) (1 - q)
            mu - Exponential(b)                   (1 - w) q
            mu + Exponential(a)                   w

mu, w, q, a, b and s are not estimated but integrated over, on a grid: an estimate of them follows the luckiest point,
and its value would keep some of its luck. Points on the plateau are equal, so that they share being the best.

Pruned points are censored (Turnbull 1976): had they been trained to the end, they would have come out below the median
of those that were. Left out, or taken for what they had reached, they would leave a search of lucky points only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

GRID = 160
ABOVE = 2.0  # sds by which true values may lie outside the observed ones
REACH = 10.0  # sds below the best value: what lies deeper says nothing about the top and is moved up to here
ROUND = 20  # values are told apart to this part of the smallest sd, so that cost does not grow with their number
BETTER = (0.001, 0.003, 0.01, 0.03)  # w, even
FEW = 0.1  # at most this share of points, and one, lies above the plateau by more than ABOVE sds
BAD = (0.0, 0.25, 0.5, 0.75)  # q, even
SCALES = (1.0, 3.0, 9.0)  # a and b, in sds of a mean over the fewest seeds, even
FAR = 12.0  # levels of the plateau whose log likelihood is lower by this are left out
RARE = 1e-3  # and those that are less probable
TINY = 1e-300  # keeps logarithms and quotients finite
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)
TIES = 1 - ((_NODES + 1) / 2) ** 3  # nodes of an integral over (0, 1), close to each other near 1
TIE_WEIGHTS = 1.5 * _WEIGHTS * ((_NODES + 1) / 2) ** 2


@dataclass(frozen=True)
class Posterior:
    """Posterior of (n,) points. Points that cannot be told apart share one of r rows.

    grid: (m,) possible values. levels: (k,) probabilities of the plateau's level. weights: (k, r, m) posterior of a row
    given the level, summing to 1 over m. row: (n,) of each point.
    """

    grid: Floats
    levels: Floats
    weights: Floats
    row: NDArray[np.intp]

    @property
    def mean(self) -> Floats:
        return np.asarray((self.levels @ (self.weights @ self.grid))[self.row])

    def probability_best(self, among: Flags) -> Floats:
        """(n,) probability that each point has the largest true value of those in `among`, 0 elsewhere; sums to 1.

        Points are independent given the level. Ties are shared: each tied point draws u in (0, 1), the largest wins.
        """
        count = np.bincount(self.row[among], minlength=self.weights.shape[1]).astype(float)
        used = count > 0
        share = np.zeros(len(count))
        for level, weights in zip(self.levels, self.weights[:, used], strict=True):
            below = np.cumsum(weights, axis=1) - weights
            logs = np.log(np.maximum(below + TIES[:, None, None] * weights, TINY))
            others = np.exp((count[used] @ logs)[:, None] - logs)
            best = np.einsum("t,rm,trm->r", TIE_WEIGHTS, weights, others)
            share[used] += level * best / (best @ count[used])
        return np.where(among, share[self.row], 0.0)


def posterior(values: Floats, seeds: Floats, pruned: Flags, sds: Floats, pairs: float) -> Posterior:
    """Posterior of every point's true value; larger is better.

    Args:
        values, seeds, pruned: (n,), n >= 1; means over so many seeds. Not all pruned, whose values do not count.
        sds: standard deviations over seeds that are equally probable beforehand, > 0 (`SeedNoise.plausible`).
        pairs: variance by the choice of dev pairs that is a point's own.
    """
    unit = float(np.sqrt(np.median(sds) ** 2 / seeds.min() + pairs))
    finest = float(np.sqrt(sds.min() ** 2 / seeds.max() + pairs))
    limit = float(np.median(values[~pruned]))
    top = float(values[~pruned].max())
    bottom = max(float(values[~pruned].min()), top - REACH * unit)
    grid = np.linspace(bottom - ABOVE * unit, top + ABOVE * unit, GRID)
    seen = np.where(pruned, limit, np.maximum(values, bottom))
    keys = np.stack([np.rint((seen - bottom) / finest * ROUND), seeds, pruned], axis=1)
    _, first, row, counts = np.unique(keys, axis=0, return_index=True, return_inverse=True, return_counts=True)
    shares = _prior()
    slabs = _slabs(grid, unit)
    # Few are better, or it is no plateau: not a crowd of failures far below, off which all that trained well would lie.
    fewest = np.sort(seen)[-1 - int(len(values) * FEW)]
    lowest = int(np.searchsorted(grid, fewest - ABOVE * unit))

    found = []  # log probability, level, (r, 1 + slabs) weights of the components, likelihood
    for sd in sds:
        error = np.sqrt(sd**2 / seeds[first] + pairs)[:, None]
        distance = (seen[first][:, None] - grid) / error
        likelihood = np.where(pruned[first][:, None], ndtr(distance), np.exp(-0.5 * distance**2) / error) + TINY
        parts = np.stack([likelihood, *(likelihood @ slab.T for slab in slabs)], axis=2)  # (r, levels, components)
        rough = counts @ np.log(parts.mean(axis=2))
        for level in lowest + np.flatnonzero(rough[lowest:] > rough[lowest:].max() - FAR):
            marginal = parts[:, level] @ shares.T + TINY  # (r, combinations)
            evidence = counts @ np.log(marginal)
            total = float(np.logaddexp.reduce(evidence))
            found.append((total, level, (np.exp(evidence - total) / marginal) @ shares, likelihood))
    most = max(total for total, *_ in found)
    at: dict[int, Floats] = {}
    for total, level, weight, likelihood in found:
        mixed = np.eye(GRID)[level] * weight[:, :1] + weight[:, 1:] @ np.stack([slab[level] for slab in slabs])
        at[int(level)] = at.get(int(level), 0.0) + np.exp(total - most) * mixed * likelihood
    probability = {level: float(weights[0].sum()) for level, weights in at.items()}
    kept = sorted(level for level, p in probability.items() if p > RARE * sum(probability.values()))
    levels = np.array([probability[level] for level in kept])
    weights = np.stack([at[level] / at[level].sum(axis=1, keepdims=True) for level in kept])
    return Posterior(grid, levels / levels.sum(), weights, row.ravel())


@cache
def _prior() -> Floats:
    """(c, 1 + 2 scales) shares of the spike, the slabs below, and those above, of all combinations of w, q, b and a."""
    rows = []
    for w, q, below, above in product(BETTER, BAD, range(len(SCALES)), range(len(SCALES))):
        shares = np.zeros(1 + 2 * len(SCALES))
        shares[0], shares[1 + below], shares[1 + len(SCALES) + above] = (1 - w) * (1 - q), (1 - w) * q, w
        rows.append(shares)
    return np.stack(rows)


def _slabs(grid: Floats, unit: float) -> list[Floats]:
    """(levels, m) each: exponential densities below, then above, every level; the spike where the grid has no room."""
    away = np.abs(np.subtract.outer(grid, grid))
    found = []
    for keep in (np.tri(GRID, k=-1), np.tri(GRID, k=-1).T):
        for scale in SCALES:
            slab = np.where(keep > 0, np.exp(-away / (scale * unit)), 0.0)
            total = slab.sum(axis=1, keepdims=True)
            found.append(np.where(total > 0, slab / np.maximum(total, TINY), np.eye(GRID)))
    return found
