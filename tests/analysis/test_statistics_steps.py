"""Single steps of the statistics, worked by hand: signs, levels, limits and what happens exactly at them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from scipy.stats import t as student

from analysis.statistics.empirical_bayes import Chosen, Posterior, _normalised, alike, posterior
from analysis.statistics.evaluated import Evaluated, SeedValues
from analysis.statistics.power import Power
from analysis.statistics.selection import LEVEL, TAIL, Error, bound_of_largest, split, tail_of_largest
from analysis.statistics.verdict import Gain, _gain, _looks

LEVEL_OF_LOOK = 0.0125


def gain(
    difference: float, taken: float, *, repeats: int = 3, n: int = 3, theirs: int = 3, below: float = 0.07
) -> tuple[Gain, Power | None]:
    """Of a difference whose error has variance 4e-4, 6 degrees of freedom, and 1e-5 through the dev pairs."""
    error = Error(4e-4, 6.0, 1e-5)
    picked: Any = SimpleNamespace(
        confirmed=True, n=n, between=1e-4, noise=SimpleNamespace(repeats=repeats),
        against=lambda *_: (difference, error, 0), below=lambda reach: below + 0 * reach,
    )  # fmt: skip
    pool: Any = SimpleNamespace(confirmed=[True], point=["p"], value=[0.5], n=[theirs], trial=["t9"])
    seeds: Any = SimpleNamespace(of_point=lambda *_: {})
    return _gain(pool, 0, picked, seeds, {}, taken, LEVEL_OF_LOOK, -1.0)


def bound(level: float, known: float = 1e-5) -> float:
    """Student's, with Satterthwaite's degrees of freedom."""
    variance = 4e-4 + known
    return float(student.ppf(1 - level, 6 * (variance / 4e-4) ** 2) * np.sqrt(variance))


def test_a_gain_s_bounds_by_hand() -> None:
    found, power = gain(0.05, 0.01)
    assert found.value == pytest.approx(0.04)
    assert found.observed == 0.05
    assert found.low == pytest.approx(0.05 - bound(LEVEL_OF_LOOK))
    assert found.high == pytest.approx(0.05 + bound(TAIL, 1e-4))
    freedom = 6 * (4.1e-4 / 4e-4) ** 2
    chance = float(student.sf(0.05 / np.sqrt(4.1e-4), freedom))
    assert found.p_value == pytest.approx(chance * (1 - LEVEL) / LEVEL_OF_LOOK)
    assert not found.significant
    assert (found.baseline, found.baseline_value, found.baseline_n) == ("t9", -0.5, 3)
    assert power is not None
    assert power.visible == pytest.approx(bound(LEVEL_OF_LOOK) + norm.ppf(0.8) * np.sqrt(4.1e-4))


def test_a_gain_s_lower_bound_is_never_above_what_the_correction_leaves() -> None:
    found, _ = gain(0.30, 0.29)
    assert found.low == pytest.approx(0.01)
    assert found.significant
    found, _ = gain(0.30, 0.30)
    assert found.low == 0.0
    assert not found.significant, "nothing is left: no gain"
    found, _ = gain(0.30, 0.31)
    assert not found.significant


def test_a_p_value_is_at_most_one() -> None:
    assert gain(-0.5, 0.0)[0].p_value == 1.0


@pytest.mark.parametrize(("repeats", "n", "theirs", "claims"), [(0, 3, 3, False), (1, 2, 2, True), (3, 3, 1, False)])
def test_a_claim_wants_repeats_and_two_seeds_of_both(repeats: int, n: int, theirs: int, claims: bool) -> None:
    found, power = gain(0.5, 0.0, repeats=repeats, n=n, theirs=theirs)
    assert (found.significant, found.p_value is not None, power is not None) == (claims, claims, claims)
    assert found.low == pytest.approx(0.5 - (bound(LEVEL_OF_LOOK) if claims else 0.07))


@pytest.mark.parametrize(
    ("confirmed", "n", "counted", "repeated", "looks"),
    [(False, 5, 4, True, 1), (True, 3, None, False, 2), (True, 1, None, False, 1), (True, 5, 1, True, 2)],
)
def test_looks_by_hand(confirmed: bool, n: int, counted: int | None, repeated: bool, looks: int) -> None:
    picked: Any = SimpleNamespace(confirmed=confirmed, n=n)
    seeds: Any = SimpleNamespace(search_repeats=lambda: repeated)
    assert _looks(counted, picked, seeds) == looks


def evaluated(**given: Any) -> Evaluated:
    arrays = {
        "point": ["a", "b"], "trial": ["t0", "t1"], "run_ids": [["r0"], ["r1"]], "value": [0.5, 0.6], "n": [1.0, 1.0],
        "confirmed": [False, True], "completed": [True, True], "baseline": [True, False], "search_value": [0.5, np.nan],
        "search_n": [1.0, 0.0],
    } | given  # fmt: skip
    return Evaluated(**cast(Any, {name: np.array(value) for name, value in arrays.items()}))


def test_a_point_without_a_value_of_the_search_is_not_the_best_of_it() -> None:
    assert evaluated().best_of_search() == 0.5
    assert np.isnan(evaluated(search_n=[0.0, 0.0]).best_of_search())


def test_no_repeat_no_degrees_of_freedom() -> None:
    def seeds(*points: str) -> SeedValues:
        values = np.arange(len(points), dtype=float)
        return SeedValues(np.array(points, dtype=object), np.zeros(len(points), bool), np.arange(len(points)), values)

    assert seeds("a", "b", "c").within() == (0.0, 0)
    assert seeds().within() == (0.0, 0)
    assert seeds("a", "b", "a").within() == (2.0, 1)  # 0 and 2 about 1


@pytest.mark.parametrize("error", [0.1, 0.3, 0.9, 2.5])
@pytest.mark.parametrize("df", [3, 40])
def test_the_largest_of_one_is_student_s_t(error: float, df: int) -> None:
    assert tail_of_largest(error, 1.0, df, 1) == pytest.approx(student.sf(error, df), abs=0.01)
    assert tail_of_largest(3 * error, 3.0, df, 1) == pytest.approx(tail_of_largest(error, 1.0, df, 1))


@pytest.mark.parametrize("sd", [1e-4, 1.0, 30.0])
def test_the_bound_is_where_the_tail_is_at_the_level(sd: float) -> None:
    bound = bound_of_largest(0.025, sd, 5.0, 20)
    assert tail_of_largest(bound, sd, 5.0, 20) == pytest.approx(0.025, rel=1e-6)
    kept = Error(sd**2, 5.0, 0.0, 0.5 * sd, 20, 3)
    assert kept.tail(kept.bound(0.025)) == pytest.approx(0.025, rel=1e-6)
    assert kept.tail(kept.bound(0.9)) == pytest.approx(0.9, rel=1e-6), "on the other side, too"


def test_nothing_of_the_pairs_luck_nothing_to_split() -> None:
    assert split(0.0, 0.0) == split(0.0, 2.0) == (0.0, 0.0)
    assert split(3.0, 1.0) == pytest.approx((1.5, 0.75))  # three quarters of it: sqrt(9 / 4), 3 / 4


def reference(values: np.ndarray, sds: np.ndarray, pruned: np.ndarray) -> tuple[np.ndarray, np.ndarray, Any]:
    """(grid, (n, 80) likelihoods, fit of a prior to some rows): the same estimate without bins or classes."""
    top, widest = values.max(), sds.max()
    grid = np.linspace(max(values.min(), top - 10 * widest), top + 2 * widest, 80)
    seen = np.maximum(values, grid[0])
    likelihood = np.exp(-(((seen[:, None] - grid) / sds[:, None]) ** 2) / 2)
    likelihood[pruned] = norm.cdf((np.median(seen[~pruned]) - grid) / sds[pruned, None])

    def fit(rows: list[int]) -> np.ndarray:
        prior = np.full(80, 1 / 80)
        for _ in range(100):
            prior = prior * (likelihood[rows] / (likelihood[rows] @ prior)[:, None]).mean(0)
        return prior

    return grid, likelihood, fit


# At the middles of bins, a fifth of .01 wide; two precisions, three pruned points, one far below the others.
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


def test_two_points_alone() -> None:
    """The prior of the chosen one is learned from a single value."""
    values, sds, pruned = np.array([0.5, 0.52]), np.array([0.01, 0.01]), np.zeros(2, bool)
    _, likelihood, fit = reference(values, sds, pruned)
    own = 0.5 * fit([0]) * likelihood[1] + 0.5 / 80 * likelihood[1]
    found = posterior(values, sds, pruned, Chosen(1, 0.5, 0.0, 0.01))
    np.testing.assert_allclose(found.weights[1], own / own.sum(), rtol=1e-6, atol=1e-12)


def test_a_point_that_nothing_explains_could_be_anything() -> None:
    weights = _normalised(np.array([0.0, 1.0]), np.array([[0.0, 0.0], [1.0, 3.0]])).weights
    np.testing.assert_allclose(weights, [[0.5, 0.5], [0.25, 0.75]])


def test_who_is_best_by_enumeration() -> None:
    """Of three points on a grid of two, ties shared; the one that is left out has no chance."""
    found = Posterior(np.array([0.0, 1.0]), np.array([[0.2, 0.8], [0.5, 0.5], [0.9, 0.1]]))
    among = np.array([True, False, True])
    # both below: .2 * .9, both above: .8 * .1: shared; first above alone: .8 * .9; third alone: .2 * .1
    first, third = 0.72 + (0.18 + 0.08) / 2, 0.02 + (0.18 + 0.08) / 2
    np.testing.assert_allclose(found.probability_best(among), [first, 0, third])


def test_the_baseline_is_the_first_that_was_completed() -> None:
    assert evaluated(baseline=[True, True]).reference() == 0
    assert evaluated(baseline=[True, True], completed=[False, True]).reference() == 1


def test_half_the_seeds_of_the_best_covered_are_enough_to_be_named() -> None:
    assert evaluated(confirmed=[False, False], n=[3.0, 6.0]).nameable().tolist() == [True, True]
    assert evaluated(confirmed=[False, False], n=[2.9, 6.0]).nameable().tolist() == [False, True]


def test_what_was_stopped_or_has_no_value_does_not_count() -> None:
    trials = pd.DataFrame(
        {
            "point": ["a", "a", "b", "b"], "stage": ["search", "confirm", "search", "confirm"], "seed": [0, 1, 0, 2],
            "value": [0.5, 0.6, 0.7, np.nan], "stop": ["completed", "completed", "pruned", "completed"],
        }
    )  # fmt: skip
    found = SeedValues.of(trials, -1.0)
    assert (found.point.tolist(), found.confirm.tolist(), found.value.tolist()) == (
        ["a"] * 2,
        [False, True],
        [-0.5, -0.6],
    )
    assert found.of_point("a", confirm=True) == {1: -0.6}
    assert not found.search_repeats()
    table = pd.DataFrame(
        {
            "point": list("abcd"), "trial": list("wxyz"), "run_ids": [["r"]] * 4, "value": [0.5, np.nan, 0.7, 0.8],
            "n": [2, 1, 1, 1], "search_value": [0.4, 0.5, 0.6, 0.7], "search_n": [1, 1, 1, 1],
            "stop": ["completed", "completed", "pruned", "failed:oom"], "confirmed": [True, True, False, False],
            "baseline": [False] * 4,
        }
    )  # fmt: skip
    points = Evaluated.of(table, -1.0)
    assert points.point.tolist() == ["a", "c"]
    assert (points.value.tolist(), points.search_value.tolist()) == ([-0.5, -0.7], [-0.4, -0.6])
    assert points.completed.tolist() == [True, False]


def test_values_of_other_lengths_are_refused() -> None:
    points, values = np.array(["a", "b"], dtype=object), np.zeros(2)
    with pytest.raises(ValueError, match="zip"):
        SeedValues(points, np.zeros(3, bool), np.arange(2), values).within()
    with pytest.raises(ValueError, match="zip"):
        SeedValues(points, np.zeros(2, bool), np.arange(2), np.zeros(3)).firsts()
