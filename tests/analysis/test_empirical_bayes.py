"""Priors learned from points and seeds: what they shrink, what they leave, and who is probably the best."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from analysis.statistics.empirical_bayes import (
    FLOOR,
    Chosen,
    Posterior,
    _normalised,
    about_means,
    alike,
    moderate,
    posterior,
    posterior_of_means,
)

NONE = np.zeros(60, dtype=bool)  # pruned


def post(values: np.ndarray, sds: np.ndarray, pruned: np.ndarray) -> Posterior:
    """With the best as the picked one, and one in n unlike the rest."""
    picked = int(np.where(pruned, -np.inf, values).argmax())
    return posterior(values, sds, pruned, Chosen(picked, 1 / len(values), 0.0, float(sds[picked])))


def test_a_plateau_shrinks_although_the_rest_is_far_below() -> None:
    rng = np.random.default_rng(1)
    values = np.append(rng.normal(0, 1, 20), rng.normal(-30, 10, 40))
    best = post(values, np.ones(60), NONE).mean[values[:20].argmax()]
    assert best < 0.6 * values.max()
    # James and Stein's common shrinkage would leave it where it is: the spread of all points is far above the noise.
    assert 1 / values.var() < 0.01


def test_an_outlier_measured_well_stays() -> None:
    rng = np.random.default_rng(2)
    values, sds = rng.normal(0, 0.5, 30), np.full(30, 0.5)
    values[7], sds[7] = 3.0, 0.2
    assert post(values, sds, NONE[:30]).mean[7] == pytest.approx(3.0, abs=0.1)


def test_one_point_is_its_own_prior() -> None:
    # All prior is even, from the value itself to two sds above: (phi(0) - phi(2)) / (Phi(2) - 1/2) sds above it.
    assert post(np.array([0.7]), np.array([0.1]), NONE[:1]).mean == pytest.approx([0.77228], abs=1e-3)


def test_censoring_removes_the_survivors_bias() -> None:
    """Of equal points the pruner leaves those with the best seeds; how far below the rest ended must not matter."""
    rng = np.random.default_rng(3)
    pruned = np.arange(60) < 36
    whole, censored, reached = [], [], []
    for _ in range(30):
        values = np.sort(rng.normal(0, 1, 60))
        stopped = np.where(pruned, values - 5, values)
        whole.append(post(values, np.ones(60), NONE).mean[-1])
        censored.append(post(stopped, np.ones(60), pruned).mean[-1])
        reached.append(post(stopped, np.ones(60), NONE).mean[-1])
    assert np.mean(censored) == pytest.approx(np.mean(whole), abs=0.2)
    assert np.mean(reached) > np.mean(whole) + 0.4  # taken at what they had reached
    deeper = post(np.where(pruned, values - 100, values), np.ones(60), pruned).mean[-1]
    assert deeper == pytest.approx(censored[-1], abs=0.1)


def test_probability_best_is_the_worked_example() -> None:
    # Two points on {0, 1}: P(first = 1) = 0.5, second always 0. First wins outright with 0.5, a tie is shared.
    found = Posterior(np.array([0.0, 1.0]), np.array([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]]))
    among = np.array([True, True, False])
    assert found.probability_best(among) == pytest.approx([0.75, 0.25, 0.0])


def reference(values: np.ndarray, sds: np.ndarray, pruned: np.ndarray) -> tuple[np.ndarray, np.ndarray, Any]:
    """(grid, (n, 80) likelihoods, fit of a prior to some rows): the same estimate without bins or classes."""
    top, widest = values.max(), sds.max()
    grid = np.linspace(max(values.min(), top - 10 * widest), top + 2 * widest, 80)
    seen = np.maximum(values, grid[0])
    likelihood = np.exp(-(((seen[:, None] - grid) / sds[:, None]) ** 2) / 2)
    likelihood[pruned] = norm.cdf((np.median(seen[~pruned]) - grid) / sds[pruned, None])

    def fit(rows: list[int], iterations: int = 100) -> np.ndarray:
        prior = np.full(80, 1 / 80)
        for _ in range(iterations):
            prior = prior * (likelihood[rows] / (likelihood[rows] @ prior)[:, None]).mean(0)
        return prior

    return grid, likelihood, fit


# At the middles of bins, a fifth of .01 wide; two precisions, three pruned points, one far below the rest.
VALUES = 0.7 + 0.002 * np.array([0, 3, 4, 4, 7, 9, 10, 13, -120, 2, 1, 5])
SDS = np.where(np.arange(12) < 5, 0.01, 0.02)
PRUNED = np.arange(12) >= 9


def test_the_prior_that_all_share_by_an_independent_fit() -> None:
    grid, likelihood, fit = reference(VALUES, SDS, PRUNED)
    prior = fit(list(range(12)))
    better = (grid >= prior @ grid) / (grid >= prior @ grid).sum()
    weights = likelihood * (11 / 12 * prior + better / 12)
    found = alike(VALUES, SDS, PRUNED)
    np.testing.assert_allclose(found.grid, grid)
    np.testing.assert_allclose(found.weights, weights / weights.sum(1, keepdims=True), rtol=1e-6, atol=1e-12)


def test_the_chosen_point_by_an_independent_fit() -> None:
    grid, likelihood, fit = reference(VALUES, SDS, PRUNED)
    weights = likelihood * fit(list(range(12)))
    others = fit([i for i in range(12) if i != 7])
    like = np.exp(-(((VALUES[7] - 0.006 - grid) / 0.015) ** 2) / 2) * 0.02 / 0.015
    weights[7] = 0.8 * others * like + 0.2 / 80 * likelihood[7]
    found = posterior(VALUES, SDS, PRUNED, Chosen(7, 0.2, 0.006, 0.015))
    np.testing.assert_allclose(found.weights, weights / weights.sum(1, keepdims=True), rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(found.mean, found.weights @ grid)


def test_a_point_that_nothing_explains_could_be_anything() -> None:
    weights = _normalised(np.array([0.0, 1.0]), np.array([[0.0, 0.0], [1.0, 3.0]])).weights
    np.testing.assert_allclose(weights, [[0.5, 0.5], [0.25, 0.75]])


def test_equal_points_predict_no_improvement() -> None:
    equal = np.random.default_rng(0).normal(0, 0.01, 40)
    assert posterior_of_means(equal, np.full(40, 0.01)).mean.max() < 0.4 * equal.max()
    apart = posterior_of_means(np.array([0.0, 0.3, 0.31]), np.full(3, 0.01))
    improvement = apart.improvement(2)
    assert improvement[0] == pytest.approx(0, abs=1e-6)
    assert improvement[1] > 1e-4
    assert improvement[2] == 0.0


def test_posterior_of_means_is_lairds_iteration() -> None:
    """By the independent fit; a mean ten standard errors below the best counts as lying there."""
    means, sds = np.array([0.70, 0.69, 0.66, 0.10]), np.array([0.01, 0.005, 0.01, 0.008])
    grid, likelihood, fit = reference(means, sds, np.zeros(4, dtype=bool))
    weights = likelihood * fit([0, 1, 2, 3], iterations=60)
    weights /= weights.sum(1, keepdims=True)
    found = posterior_of_means(means, sds)
    assert found.grid == pytest.approx(grid, rel=1e-12)
    assert found.weights == pytest.approx(weights, abs=1e-9)
    gains = [sum(weights[p, i] * weights[0, j] * (grid[i] - grid[j]) for i in range(80) for j in range(i))
             for p in range(4)]  # fmt: skip
    assert found.improvement(0) == pytest.approx([0.0, *gains[1:]], abs=1e-12)


def test_squares_about_the_means_of_groups() -> None:
    assert about_means([[0.1, 0.3], [0.7, 0.7, 1.0], [0.5], []]) == (pytest.approx(0.08), 3)
    assert about_means([]) == (0.0, 0)


def test_moderated_variance() -> None:
    assert moderate([1.0, 3.0], 4.0) == pytest.approx(((3 * 4 + 2) / 4, 4.0))
    assert moderate([7.0], 4.0) == pytest.approx((4.0, 3.0))
    assert moderate([7.0, 7.0], 0.0) == pytest.approx((FLOOR**2, 4.0))
