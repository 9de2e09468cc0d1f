"""What the best was picked from, and what that takes off its value."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from simulate import METRIC
from small_tables import table

from analysis.statistics.empirical_bayes import moderate
from analysis.statistics.pairs import PairNoise
from analysis.statistics.picked import Evaluated, Picked
from analysis.statistics.seed_noise import Prior, SeedNoise, SeedValues
from analysis.statistics.selection import Error, split
from analysis.statistics.verdict import judged
from analysis.tables.metric import Metric
from analysis.tables.trials import points_table

NOISE = SeedNoise(sd=0.5, df=20.0, repeats=17, most=0.7, prior=Prior())


def test_picked_by_hand() -> None:
    fresh = Picked(NOISE, n=4, confirmed=True, tried=30, candidates=3, rivals=2, in_search=1.0, own=1.0, between=0.4)
    variance, df = moderate([1.0, 2.0, 2.0, 3.0], 0.25)
    kept, rest = split(0.2, 0.25)
    below, above = fresh.interval([1.0, 2.0, 2.0, 3.0])
    assert below == pytest.approx(Error(variance / 4, df, rest + 0.8, kept, 30, 3).bound(0.025))
    assert above == pytest.approx(Error(variance / 4, df, 0.2 + 0.8).bound(0.025))
    assert fresh.sds(np.array([1.0, 4.0])) == pytest.approx([np.sqrt(0.25 + 0.2), np.sqrt(0.25 / 4 + 0.2)])
    chosen = fresh.chosen(1, np.array([9.0, 0.6]))
    assert (chosen.point, chosen.unlike) == (1, pytest.approx(3 / 30))
    assert replace(fresh, tried=8).chosen(0, np.array([0.6])).unlike == 0.25
    z = norm.isf([0.625 / 30.25, 1.625 / 30.25])  # Blom's scores of the two largest of 30
    assert (chosen.luck, chosen.sd) == pytest.approx(
        (kept * z.mean(), np.sqrt(0.36 - 0.2 + rest + kept**2 * (z[0] - z[1]) ** 2 / 4))
    )
    difference, error, paired = fresh.against({1: 2.0, 2: 3.0, 3: 9.0}, {1: 1.0, 2: 1.5}, 99.0, 2)
    gaps, gaps_df = moderate([1.0, 1.5], 0.5)
    assert (difference, paired) == (1.25, 2)
    assert error == Error(gaps / 2, gaps_df, rest + 0.2, kept, 30, 2)
    difference, error, paired = fresh.against({1: 2.0, 2: 4.0}, {1: 1.0}, 0.5, 3)
    assert (difference, paired) == (2.5, 0)
    assert error == Error(0.25 * (1 / 4 + 1 / 3), 20.0, rest + 0.2, kept, 30, 2)


def test_correction_makes_no_other_point_the_best() -> None:
    """The quick start's values on its small dev set: two points below the best have a chance, the baseline none."""
    seeds = [[26.29], [46.89], [44.99], [41.93], [39.89], [39.68], [38.93], [36.52], [32.98], [50.63]]
    values = {f"p{i}": [v / 100 for v in vs] for i, vs in enumerate(seeds)}
    trials = table(values, {"p0": [0.261, 0.263, 0.266, 0.263], "p9": [0.484, 0.494, 0.503, 0.493]})
    pool, by_seed = Evaluated.of(points_table(trials), 1.0), SeedValues.of(trials, 1.0)
    found = judged(pool, by_seed, METRIC, lambda *_: PairNoise(own=0.00117, between=0.00091, pairs=500))
    assert found.best == "p9"
    assert found.expected < 0.48  # the selection bias of the dev pairs is taken off
    assert found.p_best > 0.9  # 46.89 was not shown to be as good
    best = pool.best(pool.nameable())
    picked = Picked.of(pool, pool.nameable(), best, found.noise, found.pairs)
    below, above = picked.arms([0.484, 0.494, 0.503, 0.493])
    assert found.above - above == pytest.approx(found.value - found.expected)  # both about what it is worth
    assert found.below == pytest.approx(max(below - (found.value - found.expected), 0.0))
    assert pool.runner_up(np.ones(len(pool.value), dtype=bool), best) == list(pool.point).index("p1")
    assert pool.runner_up(np.arange(len(pool.value)) == best, best) == best


def test_what_the_best_was_picked_from() -> None:
    trials = table({"p0": [0.1, 0.3, 0.2], "p1": [0.5, 0.6], "p2": [0.4]}, {"p0": [0.2], "p1": [0.7], "p2": [0.6]})
    points = Evaluated.of(points_table(trials), 1.0)
    fresh = Picked.of(points, points.nameable(), 1, NOISE, None)
    assert (fresh.n, fresh.confirmed, fresh.tried, fresh.candidates, fresh.rivals) == (1, True, 3, 3, 2)
    assert (fresh.in_search, fresh.own, fresh.between) == (2.0, 0.0, 0.0)
    search = trials[trials["stage"] == "search"]
    points = Evaluated.of(points_table(search), 1.0)
    plain = Picked.of(points, points.nameable(), 1, NOISE, None)
    assert (plain.confirmed, plain.candidates, plain.rivals) == (False, 3, 2)
    unsearched = pd.concat([trials, trials[trials["stage"] != "search"].assign(point=["p3", "p4", "p5"])])
    points = Evaluated.of(points_table(unsearched), 1.0)
    assert Picked.of(points, points.nameable(), 1, NOISE, None).in_search == 2.0  # of those that the search has tried
    assert points.best_of_search() == pytest.approx(0.55)
    named = Evaluated.of(points_table(trials[trials["stage"] == "confirm"]), 1.0)
    assert Picked.of(named, named.nameable(), 1, NOISE, None).in_search == 1.0  # of none: as if each had one seed
    alone = Evaluated.of(points_table(search[search["point"] == "p1"]), 1.0)
    assert Picked.of(alone, alone.nameable(), 0, NOISE, None).rivals == 1


@pytest.mark.parametrize(("baseline", "other"), [(0, "r0"), (1, "r2"), (None, "r2")])
def test_with_whom_the_best_is_compared(baseline: int | None, other: str) -> None:
    """With the baseline; if that is the best or there is none, with the runner-up."""
    worth, seen = np.array([0.5, 0.7, 0.6]), []
    names, flags = np.array(["a", "b", "c"], dtype=object), np.zeros(3, bool)
    runs = np.array(["r0", "r1", "r2"], dtype=object)
    pool = Evaluated(names, names, runs, worth, np.ones(3), worth, np.ones(3), ~flags, flags, np.arange(3) == baseline)
    seeds = SeedValues(names, flags, np.zeros(3, dtype=object), worth)
    judged(pool, seeds, Metric("s_dev", ("s_dev",)), lambda *points: seen.append(points))
    assert seen == [("r1", other)]
