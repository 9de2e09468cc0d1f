"""What points are believed to be worth, given the seeds they have had.

The prior that the analysis' verdict fits, too: the nonparametric maximum likelihood estimate of the points' true values
over a grid (Kiefer and Wolfowitz 1956), by expectation maximisation (Laird 1978). A point that was picked for looking
good is worth its posterior mean (Efron 2011).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
GRID, ITERATIONS = 80, 60
ABOVE = 2.0  # sds by which a true value may exceed the best mean
REACH = 10.0  # sds below the best mean: what lies deeper says nothing of the top


@dataclass(frozen=True)
class Belief:
    """grid: (m,) possible true values, larger is better; weights: (n, m) posterior of each point, rows sum to 1."""

    grid: Floats
    weights: Floats

    @staticmethod
    def of(means: Floats, sds: Floats) -> Belief:
        """Args: means, sds: (n,), n >= 1; sds > 0, of the means over seeds, within a factor of 100 of each other."""
        top, widest = float(means.max()), float(sds.max())
        means = np.maximum(means, top - REACH * widest)
        grid = np.linspace(float(means.min()), top + ABOVE * widest, GRID)
        likelihood = np.exp(-0.5 * ((means[:, None] - grid) / sds[:, None]) ** 2)
        prior = np.ones(GRID)  # points expected at each value: what either is multiplied by changes no posterior
        for _ in range(ITERATIONS):
            prior = prior * (np.reciprocal(likelihood @ prior) @ likelihood)
        weights = likelihood * prior
        return Belief(grid, weights / weights.sum(axis=1, keepdims=True))

    @property
    def mean(self) -> Floats:
        """(n,) posterior means."""
        return np.asarray(self.weights @ self.grid)

    def improvement(self, leader: int) -> Floats:
        """(n,) by how much each point is expected to be better than the leader where it is: E max(0, a - b)."""
        over = np.maximum(self.grid[:, None] - self.grid, 0.0) @ self.weights[leader]
        found: Floats = self.weights @ over
        found[leader] = 0.0
        return found
