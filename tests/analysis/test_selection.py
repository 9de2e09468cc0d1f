"""How far a picked value is off by chance: closed forms, the redrawn selection, and what the best was picked from."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from scipy.stats import t as student
from simulate import METRIC
from small_tables import table

from analysis.statistics.pairs import PairNoise
from analysis.statistics.picked import EvaluatedPoints, SelectedPoint
from analysis.statistics.seed_noise import Prior, SeedNoise, SeedValues
from analysis.statistics.selection import (
    WEIGHTS,
    EstimateError,
    Power,
    bound_of_largest,
    largest,
    planned,
    spent,
    split,
    tail_of_largest,
)
from analysis.statistics.verdict import judged
from analysis.tables.metric import Metric
from analysis.tables.trials import points_table


def test_nodes_integrate_the_largest_of_normals() -> None:
    assert WEIGHTS.sum() == pytest.approx(1)
    assert WEIGHTS @ largest(1) == pytest.approx(0, abs=1e-9)
    assert WEIGHTS @ largest(1) ** 2 == pytest.approx(1, abs=0.01)
    assert WEIGHTS @ largest(10) == pytest.approx(1.53875, abs=2e-3)  # expected maximum of 10 normals (Tippett 1925)
    assert WEIGHTS @ largest(100) == pytest.approx(2.50759, abs=2e-3)


def test_tail_of_one_candidate_is_student_s() -> None:
    error = EstimateError(0.04, 7.0)
    assert error.sd == pytest.approx(0.2)
    assert error.freedom == 7.0
    assert error.tail(0.5) == pytest.approx(student.sf(2.5, 7))
    assert error.bound(0.025) == pytest.approx(0.2 * student.isf(0.025, 7))
    assert error.bound(0.01) == pytest.approx(0.2 * student.isf(0.01, 7))


def test_candidates_share_the_level() -> None:
    error = EstimateError(0.04, 7.0, candidates=4)
    assert error.tail(0.5) == pytest.approx(4 * student.sf(2.5, 7))
    assert error.bound(0.02) == pytest.approx(0.2 * student.isf(0.005, 7))
    assert EstimateError(0.04, 7.0, candidates=50).tail(0.0) == 1.0  # a probability all the same


def test_known_variance_adds_and_frees() -> None:
    error = EstimateError(0.09, 5.0, known=0.16)
    assert error.sd == pytest.approx(0.5)
    assert error.freedom == pytest.approx(5 * (0.25 / 0.09) ** 2)
    assert EstimateError(0.0, 5.0, known=0.16).bound(0.025) == pytest.approx(0.4 * 1.959964, rel=1e-4)
    assert EstimateError(1e-9, 5.0, known=1.0).freedom == 1e6


def test_picked_part_is_the_largest_of_all_tried() -> None:
    rng = np.random.default_rng(0)
    z = rng.standard_normal((200_000, 20)).max(axis=1)
    error = EstimateError(0.04, 1e6, known=0.05, kept=0.3, tried=20)
    draws = 0.3 * z + 0.3 * rng.standard_normal(len(z))
    for level in (0.2, 0.025, 0.005):
        assert error.bound(level) == pytest.approx(np.quantile(draws, 1 - level), abs=0.012)
        assert error.tail(error.bound(level)) == pytest.approx(level, rel=1e-4)
    assert EstimateError(0.0, 4.0, kept=0.3, tried=20).tail(10.0) == 0.0
    assert EstimateError(0.0, 4.0, kept=0.3, tried=20).tail(-10.0) == 1.0


def test_what_the_search_picked_by() -> None:
    # Pairs' part 3, seeds 1: the regression of the part on the sum explains 3/4 of its variance.
    kept, rest = split(3.0, 1.0)
    assert kept == pytest.approx(np.sqrt(0.75 * 3))
    assert rest == pytest.approx(0.75)
    assert split(0.0, 1.0) == (0.0, 0.0)
    rng = np.random.default_rng(1)
    part = np.sqrt(3) * rng.standard_normal((100_000, 8))
    picked = (part + rng.standard_normal(part.shape)).argmax(axis=1)
    bias = part[np.arange(len(part)), picked]
    assert bias.mean() == pytest.approx(kept * 1.42360, abs=0.02)  # expected maximum of 8 normals
    assert bias.var() == pytest.approx(rest + kept**2 * 0.3729, abs=0.03)  # and its variance


def test_the_largest_of_several_with_an_estimated_sd() -> None:
    assert tail_of_largest(2.0, 1.0, 1e6, 1) == pytest.approx(norm.sf(2), abs=2e-3)
    rng = np.random.default_rng(2)
    scale = 0.5 * np.sqrt(6 / rng.chisquare(6, 200_000))  # the posterior sd, after an estimate of 0.5 with 6 df
    draws = scale * rng.standard_normal((200_000, 15)).max(axis=1)
    for level in (0.1, 0.025):
        bound = bound_of_largest(level, 0.5, 6.0, 15)
        assert bound == pytest.approx(np.quantile(draws, 1 - level), rel=0.02)
        assert tail_of_largest(bound, 0.5, 6.0, 15) == pytest.approx(level, rel=1e-4)


def test_an_error_that_cannot_vary_is_reached_for_certain() -> None:
    assert EstimateError(0.0, 4.0).tail(0.0) == 1.0
    assert EstimateError(0.0, 4.0).tail(1e-9) == 0.0
    assert EstimateError(1.0, 1e6, kept=0.5).tail(0.0) == pytest.approx(0.5)  # one tried: nothing was picked


def test_the_level_is_spent_once_over_all_interim_analyses() -> None:
    assert [spent(number) for number in (1, 2, 3)] == pytest.approx([0.02, 0.004, 0.0008])
    assert sum(spent(number) for number in range(1, 100)) == pytest.approx(0.025)


def test_visible_gain_is_the_worked_example() -> None:
    error = EstimateError(0.04, 7.0, candidates=3)
    assert error.visible(0.0125) == pytest.approx(0.2 * (student.isf(0.0125 / 3, 7) + 0.8416212))
    found = Power.of(error, 4, 0.0125)
    assert (found.seeds, found.more) == (4, 8)
    assert found.visible == error.visible(0.0125)
    assert found.visible_more == pytest.approx(np.sqrt(0.02) * (student.isf(0.0125 / 3, 11) + 0.8416212))
    assert found.floor == 0.0
    assert found.seeds_help


def test_seeds_do_not_help_beyond_the_dev_set() -> None:
    found = Power.of(EstimateError(0.001, 7.0, known=1.0), 5, 0.0125)
    assert found.floor == pytest.approx(norm.isf(0.0125) + 0.8416212, rel=1e-3)
    assert not found.seeds_help
    assert not Power(5, 1.1, 10, 1.0, 1.0).seeds_help
    assert Power(5, 1.11, 10, 1.0, 1.0).seeds_help


@pytest.mark.parametrize(("in_search", "seeds_part"), [(1, 0.25), (2, 0.125)])
def test_error_of_a_planned_confirmation(in_search: int, seeds_part: float) -> None:
    found = planned(sd=0.5, between=0.2, tried=30, in_search=in_search, rivals=3, seeds=5)
    kept, rest = split(0.1, seeds_part)
    assert found == EstimateError(2 * 0.25 / 5, 7.0, rest + 0.1, kept, 30, 3)
    more = planned(sd=0.5, between=0.2, tried=30, in_search=in_search, rivals=3, seeds=9)
    assert more.visible(0.0125) < found.visible(0.0125)


# ------------------------------------------------------------ what the best was picked from
NOISE = SeedNoise(sd=0.5, df=20.0, repeats=17, most=0.7, prior=Prior())


def test_correction_makes_no_other_point_the_best() -> None:
    """The quick start's values on its small dev set: two points below the best have a chance, the baseline none."""
    seeds = [[26.29], [46.89], [44.99], [41.93], [39.89], [39.68], [38.93], [36.52], [32.98], [50.63]]
    values = {f"p{i}": [v / 100 for v in vs] for i, vs in enumerate(seeds)}
    trials = table(values, {"p0": [0.261, 0.263, 0.266, 0.263], "p9": [0.484, 0.494, 0.503, 0.493]})
    pool, by_seed = EvaluatedPoints.of(points_table(trials), 1.0), SeedValues.of(trials, 1.0)
    found = judged(pool, by_seed, METRIC, lambda *_: PairNoise(own=0.00117, between=0.00091, pairs=500))
    assert found.best == "p9"
    assert found.expected < 0.48  # the selection bias of the dev pairs is taken off
    assert found.p_best > 0.9  # 46.89 was not shown to be as good
    best = pool.best(pool.nameable())
    picked = SelectedPoint.of(pool, pool.nameable(), best, found.noise, found.pairs)
    below, above = picked.arms([0.484, 0.494, 0.503, 0.493])
    assert found.above - above == pytest.approx(found.value - found.expected)  # both about what it is worth
    assert found.below == pytest.approx(max(below - (found.value - found.expected), 0.0))
    assert pool.runner_up(np.ones(len(pool.value), dtype=bool), best) == list(pool.point).index("p1")
    assert pool.runner_up(np.arange(len(pool.value)) == best, best) == best


def test_what_the_best_was_picked_from() -> None:
    trials = table({"p0": [0.1, 0.3, 0.2], "p1": [0.5, 0.6], "p2": [0.4]}, {"p0": [0.2], "p1": [0.7], "p2": [0.6]})
    points = EvaluatedPoints.of(points_table(trials), 1.0)
    fresh = SelectedPoint.of(points, points.nameable(), 1, NOISE, None)
    assert (fresh.n, fresh.confirmed, fresh.tried, fresh.candidates, fresh.rivals) == (1, True, 3, 3, 2)
    assert (fresh.in_search, fresh.own, fresh.between) == (2.0, 0.0, 0.0)
    search = trials[trials["stage"] == "search"]
    points = EvaluatedPoints.of(points_table(search), 1.0)
    plain = SelectedPoint.of(points, points.nameable(), 1, NOISE, None)
    assert (plain.confirmed, plain.candidates, plain.rivals) == (False, 3, 2)
    unsearched = pd.concat([trials, trials[trials["stage"] != "search"].assign(point=["p3", "p4", "p5"])])
    points = EvaluatedPoints.of(points_table(unsearched), 1.0)
    assert (
        SelectedPoint.of(points, points.nameable(), 1, NOISE, None).in_search == 2.0
    )  # of those that the search has tried
    assert points.best_of_search() == pytest.approx(0.55)
    named = EvaluatedPoints.of(points_table(trials[trials["stage"] == "confirm"]), 1.0)
    assert (
        SelectedPoint.of(named, named.nameable(), 1, NOISE, None).in_search == 1.0
    )  # of none: as if each had one seed
    alone = EvaluatedPoints.of(points_table(search[search["point"] == "p1"]), 1.0)
    assert SelectedPoint.of(alone, alone.nameable(), 0, NOISE, None).rivals == 1


@pytest.mark.parametrize(("baseline", "other"), [(0, "r0"), (1, "r2"), (None, "r2")])
def test_with_whom_the_best_is_compared(baseline: int | None, other: str) -> None:
    """With the baseline; if that is the best or there is none, with the runner-up."""
    worth, seen = np.array([0.5, 0.7, 0.6]), []
    names, flags = np.array(["a", "b", "c"], dtype=object), np.zeros(3, bool)
    runs = np.array(["r0", "r1", "r2"], dtype=object)
    pool = EvaluatedPoints(
        names, names, runs, worth, np.ones(3), worth, np.ones(3), ~flags, flags, np.arange(3) == baseline
    )
    seeds = SeedValues(names, flags, np.zeros(3, dtype=object), worth)
    judged(pool, seeds, Metric("s_dev", ("s_dev",)), lambda *points: seen.append(points))
    assert seen == [("r1", other)]
