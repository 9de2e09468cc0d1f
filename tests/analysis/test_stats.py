"""Spearman, its influence function against the exact bootstrap and jackknife, expected best against brute force."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from math import comb

import numpy as np
import pytest
from scipy.stats import spearmanr
from scipy.stats import t as student

from analysis.statistics.correlation import (
    expected_best,
    expected_best_error,
    expected_best_interval,
    expected_gain,
    spearman_influence,
)
from analysis.statistics.duels import Duel, expected_duel, holm
from analysis.statistics.paired_gain import bootstrap_difference
from trainables.evaluation.metrics import spearman


@pytest.fixture
def scored(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two models and tied gold scores of 400 pairs."""
    gold = np.round(rng.uniform(0, 5, 400) * 2) / 2
    shared = rng.normal(size=400)
    first, second = (gold + shared + 0.5 * rng.normal(size=400) for _ in range(2))
    return first, second, gold


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def test_spearman_equals_scipy_with_ties(scored: tuple[np.ndarray, ...]) -> None:
    first, _, gold = scored
    assert spearman(first, gold) == pytest.approx(spearmanr(first, gold).statistic, abs=1e-12)
    assert spearman_influence(np.round(first), gold)[0] == pytest.approx(spearmanr(np.round(first), gold).statistic)


def test_influence_is_the_derivative_with_respect_to_a_pair_s_weight() -> None:
    # Doubling every pair of a sample leaves rho as it is, so one extra copy of pair i is a weight of 1 + 1/2000 on it.
    rng = np.random.default_rng(0)
    x = np.round(rng.normal(size=25), 1)
    y = np.round(x + rng.normal(size=25), 1)
    rho, psi = spearman_influence(x, y)
    copies = 2000
    for i in range(0, 25, 6):
        more = spearman(np.append(np.tile(x, copies), x[i]), np.append(np.tile(y, copies), y[i]))
        assert (more - rho) * (25 * copies + 1) == pytest.approx(psi[i], abs=2e-3)
    assert psi.mean() == pytest.approx(0, abs=1e-12)


def test_influence_variance_is_the_paired_bootstrap_s(scored: tuple[np.ndarray, ...], rng: np.random.Generator) -> None:
    first, second, gold = scored
    differences = bootstrap_difference([first], [second], gold, rng, draws=1500)
    psi = spearman_influence(first, gold)[1] - spearman_influence(second, gold)[1]
    # The sd of 1,500 draws is known to 1.8 %; 10 % leaves room for the bootstrap's own second order.
    assert np.sqrt(np.var(psi) / len(psi)) == pytest.approx(differences.std(), rel=0.10)
    unpaired = np.sqrt(sum(np.var(spearman_influence(m, gold)[1]) for m in (first, second)) / len(gold))
    assert differences.std() < 0.8 * unpaired


@pytest.mark.parametrize(("x", "y"), [([1, 1, 1], [1, 2, 3]), ([1, 2], [1, 2, 3])])
def test_influence_rejects_constant_and_unequal(x: list[float], y: list[float]) -> None:
    with pytest.raises(ValueError, match=r"expected two vectors|two values"):
        spearman_influence(x, y)


def test_expected_best_is_the_mean_over_all_subsets(rng: np.random.Generator) -> None:
    values = rng.normal(size=8)
    brute = [np.mean([max(subset) for subset in combinations(values, n)]) for n in range(1, 9)]
    np.testing.assert_allclose(expected_best(values, range(1, 9)), brute, rtol=1e-10)
    with pytest.raises(ValueError, match=r"expected 1\.\.8 trials, got 1\.\.9"):
        expected_best(values, [1, 9])


def test_expected_best_of_many_neither_overflows_nor_falls(rng: np.random.Generator) -> None:
    curve = expected_best(rng.normal(size=5000), [1, 10, 100, 1000, 5000])
    assert np.all(np.diff(curve) > 0)
    assert np.isfinite(curve).all()


def test_expected_best_interval_covers(rng: np.random.Generator) -> None:
    truth = 1.5388  # expected maximum of 10 standard normal values
    hits = 0
    for _ in range(60):
        low, high = expected_best_interval(rng.normal(size=80), [10])
        hits += low[0] <= truth <= high[0]
    assert hits >= 50  # 95 % nominal: fewer than 50 of 60 has odds below 1 in 10,000


def test_expected_best_error_by_hand() -> None:
    # Of 0..9 the best five stand 3 above the next. The best of all ten is the largest: every spacing counts in full;
    # of a single one the j largest hold it with chance j / 10, which makes sqrt(10) / 10.
    values = np.arange(10.0)
    error, df = expected_best_error(values, [10, 1])
    assert error == pytest.approx([3 * np.sqrt(sum(1 / j**2 for j in range(1, 11))), 3 / np.sqrt(10)])
    assert df == 2.5
    low, high = expected_best_interval(values, [10])
    assert high[0] - 9 == pytest.approx(9 - low[0]) == pytest.approx(student.isf(0.025, 2.5) * error[0])
    assert expected_best_error(np.arange(100.0), [5])[1] == 10.0  # a fifth of 100, halved
    assert expected_best_error(np.array([1.0, 2.0, 4.0]), [3])[0][0] == pytest.approx(2.0 * np.sqrt(1 + 1 / 4 + 1 / 9))
    with pytest.raises(ValueError, match="expected 3 values at least, got 2"):
        expected_best_error([1.0, 2.0], [1])


def test_what_more_trials_buy_by_hand() -> None:
    # All ten of 0..9 find 9, five of them less; the error is by the difference of the chances.
    values = np.arange(10.0)
    gain, low, high = expected_gain(values, 5, 10)
    assert gain == pytest.approx(9 - expected_best(values, [5])[0])
    among = np.cumsum([comb(9 - j, 4) / comb(10, 5) for j in range(10)])  # the j-th largest is the best of five
    error = 3 * np.sqrt(sum(((1 - w) / j) ** 2 for j, w in enumerate(among, 1)))
    assert high == pytest.approx(gain + student.isf(0.025, 2.5) * error)
    assert low == 0.0  # more trials never find less
    assert expected_gain(values, 5, 5) == (0.0, 0.0, 0.0)


def test_a_method_seldom_beats_itself_with_fewer_trials() -> None:
    """At 100 against 10 trials with an exponential upper tail, the hardest that the error allows for."""
    draws = np.random.default_rng(5)
    found = [
        expected_duel("a", draws.exponential(size=100), "b", draws.exponential(size=10), 10).p_value for _ in range(600)
    ]
    assert np.mean(np.array(found) < 0.05) <= 0.05 + 0.018  # two standard errors


def test_holm_by_hand() -> None:
    """0.01 of four times four, 0.02 times three, 0.04 times two, and never below the one before, nor above 1."""
    duels = [Duel("a", "b", "", 0.0, 0.0, 0.0, p) for p in (0.9, 0.01, 0.04, 0.02)]
    adjusted = holm(duels)
    assert [d.p_value for d in adjusted] == pytest.approx([0.9, 0.04, 0.08, 0.06])
    assert [d.significant for d in adjusted] == [False, True, False, False]
    assert [d.p_value for d in holm([replace(d, p_value=0.6) for d in duels])] == [1.0] * 4
