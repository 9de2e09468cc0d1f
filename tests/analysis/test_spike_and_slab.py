"""The plateau and what lies off it: against plain loops over every explanation, and what it shrinks and leaves."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import erf, exp, sqrt

import numpy as np
import pytest

from analysis.statistics import spike_and_slab as module
from analysis.statistics.spike_and_slab import Posterior, posterior


def post(
    values: np.ndarray, sd: float = 1.0, pruned: np.ndarray | None = None, seeds: np.ndarray | None = None
) -> Posterior:
    """One seed each, of known noise."""
    n = len(values)
    stopped = np.zeros(n, dtype=bool) if pruned is None else pruned
    return posterior(values, np.ones(n) if seeds is None else seeds, stopped, np.array([sd]), 0.0)


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A prior small enough for loops, and nothing left out."""
    small = {"GRID": 6, "SCALES": (1.0, 2.0), "BAD": (0.25, 0.5), "BETTER": (0.1, 0.3), "RARE": 0.0, "FAR": 1e9}
    for name, value in small.items():
        monkeypatch.setattr(module, name, value)
    module._prior.cache_clear()
    yield
    module._prior.cache_clear()


@pytest.mark.usefixtures("coarse")
def test_every_explanation_by_plain_loops() -> None:
    values, seeds, pruned = [0.4, -0.3, -2.0, 9.0], [4.0, 1.0, 1.0, 1.0], [False, False, False, True]
    sds, pairs = [0.5, 0.8], 0.09
    unit = sqrt(0.65**2 + 0.09)  # of a mean over the fewest seeds, at the middle sd
    bottom, top = -2.0 - 2 * unit, 0.4 + 2 * unit
    grid = [bottom + (top - bottom) * i / 5 for i in range(6)]

    def likelihood(i: int, theta: float, sd: float) -> float:
        error = sqrt(sd**2 / seeds[i] + pairs)
        if pruned[i]:  # below the median of the three others
            return (1 + erf((-0.3 - theta) / error / sqrt(2))) / 2
        return exp(-(((values[i] - theta) / error) ** 2) / 2) / error

    def slab(level: int, sign: int, scale: float) -> list[float]:
        raw = [
            exp(-abs(g - grid[level]) / (scale * unit)) if sign * (k - level) > 0 else 0.0 for k, g in enumerate(grid)
        ]
        return [r / sum(raw) for r in raw] if sum(raw) else [float(k == level) for k in range(6)]

    lowest = next(k for k, g in enumerate(grid) if g >= 0.4 - 2 * unit)
    assert lowest == 3
    levels, at = np.zeros(6), np.zeros((6, 4, 6))
    for level, sd, w, q, b, a in product(range(lowest, 6), sds, (0.1, 0.3), (0.25, 0.5), (1.0, 2.0), (1.0, 2.0)):
        below, above = slab(level, -1, b), slab(level, 1, a)
        prior = [(1 - w) * ((1 - q) * (k == level) + q * below[k]) + w * above[k] for k in range(6)]
        joint = [[prior[k] * likelihood(i, grid[k], sd) for k in range(6)] for i in range(4)]
        whole = np.prod([sum(row) for row in joint])
        levels[level] += whole
        at[level] += [[whole * x / sum(row) for x in row] for row in joint]
    levels, at = levels[lowest:], at[lowest:]
    shares = levels / levels.sum()
    found = posterior(np.array(values), np.array(seeds), np.array(pruned), np.array(sds), pairs)
    assert found.grid == pytest.approx(grid)
    assert found.levels == pytest.approx(shares)
    assert found.weights[:, found.row] == pytest.approx(at / levels[:, None, None])
    assert found.mean == pytest.approx((at.sum(axis=0) / levels.sum()) @ grid)

    best = np.zeros(4)
    for level, places in product(range(3), product(range(6), repeat=3)):
        chance = shares[level] * np.prod([at[level, i, k] / levels[level] for i, k in enumerate(places)])
        winners = [i for i, k in enumerate(places) if k == max(places)]
        best[winners] += chance / len(winners)
    among = np.array([True, True, True, False])
    assert found.probability_best(among) == pytest.approx(best)


def test_the_prior_holds_every_combination_once() -> None:
    shares = module._prior()
    assert shares.shape == (4 * 4 * 3 * 3, 7)
    assert shares.sum(axis=1) == pytest.approx(1)
    assert shares[:, 0].min() == pytest.approx(0.97 * 0.25)
    assert shares[:, 4:].max() == 0.03


def test_equal_points_shrink_to_their_mean() -> None:
    values = np.random.default_rng(0).normal(0, 1, 60)
    found = post(values)
    assert found.mean[values.argmax()] - values.mean() < 0.25 * (values.max() - values.mean())
    assert found.probability_best(np.ones(60, dtype=bool)).max() < 0.1


def test_a_plateau_shrinks_although_the_rest_is_far_below() -> None:
    rng = np.random.default_rng(1)
    worth, showed = [], []
    for _ in range(10):
        values = np.append(rng.normal(0, 1, 20), rng.normal(-30, 10, 40))
        worth.append(post(values).mean.max())
        showed.append(values.max())
        # James and Stein's common shrinkage would leave it: the spread of all points is far above the noise.
        assert 1 / values.var() < 0.01
    assert np.mean(worth) < 0.5 * np.mean(showed)


def test_a_crowd_of_failures_is_no_plateau() -> None:
    """Twice as many points failed alike, far below; those that trained are equal all the same."""
    rng = np.random.default_rng(5)
    for depth in (-5.0, -8.0, -1000.0):
        values = np.append(rng.normal(0, 1, 20), rng.normal(depth, 1, 40))
        found = post(values)
        assert found.mean.max() < 0.5 * values.max()
        assert found.probability_best(np.ones(60, dtype=bool)).max() < 0.2


def test_an_outlier_stays() -> None:
    values = np.random.default_rng(2).normal(0, 0.5, 30)
    values[7] = 4.0
    assert post(values, 0.5).mean[7] == pytest.approx(4.0, abs=0.3)
    assert post(values, 0.5).probability_best(np.ones(30, dtype=bool))[7] > 0.99


def test_more_seeds_shrink_less() -> None:
    values, seeds = np.random.default_rng(3).normal(0, 0.5, 30), np.ones(30)
    values[7] = 1.5
    once = post(values, 0.5).mean[7]
    seeds[7] = 6.0
    assert once + 0.3 < post(values, 0.5, seeds=seeds).mean[7] < 1.6


def test_one_point_is_worth_what_it_shows() -> None:
    found = post(np.array([0.7]), 0.1)
    assert found.mean == pytest.approx([0.7], abs=0.03)
    assert found.probability_best(np.array([True])) == pytest.approx([1.0])


def test_the_lucky_that_were_not_pruned_are_not_taken_for_good() -> None:
    """Of equal points the pruner leaves the lucky ones; what the others had reached, far below, must not matter."""
    rng = np.random.default_rng(3)
    pruned = np.arange(60) < 36
    whole, censored, reached = [], [], []
    for _ in range(10):
        values = np.sort(rng.normal(0, 1, 60))
        whole.append(post(values).mean[-1])
        censored.append(post(np.where(pruned, values - 5, values), pruned=pruned).mean[-1])
        reached.append(post(np.where(pruned, values - 5, values)).mean[-1])
    assert np.mean(censored) == pytest.approx(np.mean(whole), abs=0.25)
    assert np.mean(reached) > np.mean(whole) + 0.3  # taken at what they had reached
    deeper = post(np.where(pruned, values - 100, values), pruned=pruned).mean[-1]
    assert deeper == pytest.approx(censored[-1], abs=1e-9)


def test_ties_are_shared() -> None:
    weights = np.array([[[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]]])
    found = Posterior(np.array([0.0, 1.0]), np.array([1.0]), weights, np.arange(3))
    # The first is at 1 with 0.5, the second at 0: it wins outright with 0.5, a tie is shared.
    assert found.probability_best(np.array([True, True, False])) == pytest.approx([0.75, 0.25, 0.0])
    for many in (2, 9, 30):
        alike = Posterior(np.array([0.0, 1.0]), np.array([1.0]), weights[:, :2], np.append(np.ones(many, dtype=int), 0))
        # All at 0 but the last, which is above them with 0.5, else one of many + 1.
        expected = np.append(np.full(many, 0.5 / (many + 1)), 0.5 + 0.5 / (many + 1))
        assert alike.probability_best(np.ones(many + 1, dtype=bool)) == pytest.approx(expected, rel=1e-3)


def test_levels_are_averaged() -> None:
    weights = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]])
    found = Posterior(np.array([0.0, 1.0]), np.array([0.3, 0.7]), weights, np.arange(2))
    assert found.mean == pytest.approx([0.7, 0.3])
    assert found.probability_best(np.array([True, True])) == pytest.approx([0.7, 0.3])


def test_ten_thousand_points_are_a_few_hundred_rows() -> None:
    values = np.random.default_rng(4).normal(0, 1, 10_000)
    found = post(values)
    assert found.weights.shape[1] < 300
    assert found.mean[values.argmax()] < 0.5
    far = np.append(values, np.full(100, -1e6))  # a divergence
    assert post(far).weights.shape[1] < 400
