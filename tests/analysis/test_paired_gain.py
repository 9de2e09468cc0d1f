"""Best against baseline on test sets, against independent formulas."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from analysis.statistics.paired_gain import (
    _Compared,
    _weighted_correlation,
    bootstrap_difference,
    paired_gains,
    williams,
)

pytestmark = pytest.mark.costly


def test_williams_is_steiger_s_formula_on_the_correlation_matrix() -> None:
    for r12, r13, r23, n in ((0.7, 0.6, 0.8, 100), (-0.2, 0.1, 0.3, 20), (0.81, 0.8, 0.99, 1379)):
        matrix = np.array([[1, r12, r13], [r12, 1, r23], [r13, r23, 1]])
        mean = (r12 + r13) / 2
        below = 2 * (n - 1) / (n - 3) * np.linalg.det(matrix) + mean**2 * (1 - r23) ** 3
        t = (r12 - r13) * np.sqrt((n - 1) * (1 + r23) / below)
        assert williams(r12, r13, r23, n) == pytest.approx(2 * stats.t.sf(abs(t), n - 3))
    assert williams(0.5, 0.5, 1.0, 50) == 1.0  # the same vector twice
    with pytest.raises(ValueError, match="at least 4"):
        williams(0.1, 0.2, 0.3, 3)


def test_williams_holds_its_level_where_two_models_are_equally_good() -> None:
    """2,000 null samples: the share below .05 has a standard error of .005."""
    rng = np.random.default_rng(0)
    root = np.linalg.cholesky([[1, 0.6, 0.6], [0.6, 1, 0.8], [0.6, 0.8, 1]])
    found = []
    for _ in range(2000):
        r = np.corrcoef(root @ rng.normal(size=(3, 60)))
        found.append(williams(r[0, 1], r[0, 2], r[1, 2], 60))
    assert np.mean(np.array(found) < 0.05) == pytest.approx(0.05, abs=0.02)


def test_the_bootstrap_is_that_of_resampled_pairs_ties_and_all() -> None:
    rng = np.random.default_rng(1)
    gold = rng.integers(0, 6, 80).astype(float)
    first = [gold + rng.normal(0, 1, 80) for _ in range(2)]
    second = [np.round(gold + rng.normal(0, 2, 80)) for _ in range(3)]
    quick = bootstrap_difference(first, second, gold, np.random.default_rng(7), draws=20)
    again = np.random.default_rng(7)
    for value in quick:
        pick = again.integers(0, 80, 80)
        rho = [[stats.spearmanr(x[pick], gold[pick]).statistic for x in side] for side in (first, second)]
        assert value == pytest.approx(np.mean(rho[0]) - np.mean(rho[1]), abs=1e-12)


def test_over_seeds_it_is_the_paired_t_where_pairs_say_nothing() -> None:
    first, second = np.array([0.70, 0.74, 0.71, 0.76]), np.array([0.69, 0.70, 0.70, 0.71])
    gain = first - second
    found = _Compared("x", first, second, np.full(10, gain.mean()), None).gain(common=4)
    low, high = stats.t.interval(0.95, 3, gain.mean(), gain.std(ddof=1) / 2)
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    assert found.pairs_low == pytest.approx(found.pairs_high)
    apart = _Compared("x", first, second, np.full(10, gain.mean()), None).gain(common=0)
    welch = stats.ttest_ind(first, second, equal_var=False).confidence_interval()
    assert (apart.low, apart.high) == (pytest.approx(welch.low), pytest.approx(welch.high))


def test_a_gain_is_paired_over_common_seeds_and_averaged_over_sets() -> None:
    rng = np.random.default_rng(2)
    gold = {"a": rng.normal(size=200), "b": rng.normal(size=100)}

    def models(noise: float, seeds: list[int]) -> dict[int, dict[str, np.ndarray]]:
        return {s: {name: g + rng.normal(0, noise, len(g)) for name, g in gold.items()} for s in seeds}

    first, second = models(0.5, [1, 2, 3, 9]), models(1.0, [1, 2, 3])
    a, b, mean = paired_gains(first, second, gold, np.random.default_rng(0), draws=200)
    by_hand = [
        stats.spearmanr(first[s]["a"], gold["a"]).statistic - stats.spearmanr(second[s]["a"], gold["a"]).statistic
        for s in (1, 2, 3)  # seed 9 has no partner
    ]
    assert a.gain == pytest.approx(np.mean(by_hand))
    assert (a.seeds, mean.name, mean.williams) == (3, "mean", None)
    assert mean.gain == pytest.approx((a.gain + b.gain) / 2)
    assert mean.pairs_high - mean.pairs_low < max(x.pairs_high - x.pairs_low for x in (a, b))
    assert a.low <= a.pairs_low < a.gain < a.pairs_high <= a.high
    assert a.williams is not None
    assert a.williams < 0.01
    same = paired_gains({1: first[1]}, {2: first[1]}, {"a": gold["a"]}, np.random.default_rng(0), draws=50)
    assert (same[0].gain, same[0].low, same[0].high, same[0].williams, same[0].seeds) == (0, 0, 0, 1, 0)
    with pytest.raises(ValueError, match="expected 200 cosines"):
        paired_gains({1: {"a": np.zeros(3)}}, {1: first[1]}, {"a": gold["a"]}, np.random.default_rng(0))
    with pytest.raises(ValueError, match="all cosines of a trial are equal"):
        paired_gains({1: {"a": np.zeros(200)}}, {1: first[1]}, {"a": gold["a"]}, np.random.default_rng(0))


def test_the_interval_over_pairs_covers() -> None:
    """300 worlds with a known gain of 0: the 95 % interval misses in at most 9 % (five standard errors above 5)."""
    rng = np.random.default_rng(3)
    missed = 0
    for _ in range(300):
        gold = rng.normal(size=150)
        first, second = gold + rng.normal(size=150), gold + rng.normal(size=150)
        (one,) = paired_gains({0: {"a": first}}, {0: {"a": second}}, {"a": gold}, rng, draws=200)
        missed += not one.low <= 0 <= one.high
    assert missed / 300 <= 0.09


def test_williams_with_four_pairs_has_one_degree_of_freedom() -> None:
    r12, r13, r23 = 0.7, 0.2, 0.3
    determinant = np.linalg.det(np.array([[1, r12, r13], [r12, 1, r23], [r13, r23, 1]]))
    below = 2 * 3 * determinant + 0.45**2 * 0.7**3
    assert williams(r12, r13, r23, 4) == pytest.approx(2 * stats.t.sf(0.5 * np.sqrt(3 * 1.3 / below), 1))


def test_without_error_over_seeds_the_interval_is_the_normal_one_of_the_pairs() -> None:
    """Two seeds that say the same: only the dev pairs are left, known, so that Student's t is normal."""
    draws = np.random.default_rng(0).normal(0.02, 0.01, 4000)
    found = _Compared("x", np.array([0.7, 0.7]), np.array([0.68, 0.68]), draws, None).gain(common=2)
    half = stats.norm.ppf(0.975) * draws.std()
    assert (found.low, found.high) == pytest.approx(
        (min(0.02 - half, found.pairs_low), max(0.02 + half, found.pairs_high))
    )
    assert found.pairs_low == pytest.approx(np.quantile(draws, 0.025))


def test_so_many_draws_are_the_default() -> None:
    rng = np.random.default_rng(4)
    gold = rng.normal(size=12)
    models = [gold + np.arange(12) % 3, gold - np.arange(12) % 5]
    assert len(bootstrap_difference(models[:1], models[1:], gold, rng)) == 1000
    (found,) = paired_gains({0: {"a": models[0]}}, {0: {"a": models[1]}}, {"a": gold}, np.random.default_rng(5))
    draws = bootstrap_difference(models[:1], models[1:], gold, np.random.default_rng(5), 1000)
    assert (found.pairs_low, found.pairs_high) == pytest.approx(tuple(np.quantile(draws, [0.025, 0.975])))


def test_a_resample_without_spread_correlates_with_nothing() -> None:
    weight, rising = np.ones(4), np.arange(4.0)
    assert _weighted_correlation(np.zeros(4), rising, weight) == 0.0
    assert _weighted_correlation(rising, -rising, weight) == pytest.approx(-1.0)
    assert _weighted_correlation(rising * 1e-3, rising * 1e-3, weight) == pytest.approx(1.0), "little is not none"
