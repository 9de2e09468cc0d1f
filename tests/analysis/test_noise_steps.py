"""Single steps of the noise by seeds and by dev pairs, and of what it does to a picked point, worked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_seed_noise import values

from analysis.statistics.evaluated import Evaluated, SeedValues
from analysis.statistics.pair_noise import pair_noise
from analysis.statistics.picked import Picked
from analysis.statistics.seed_noise import Prior, SeedNoise, learned, seed_noise, upper_spread
from analysis.statistics.selection import Error, bound_of_largest
from analysis.statistics.verdict import judged
from analysis.tables.metric import Metric
from search.schema import SEED_SD

# Two retrieval sets. Less their means, the seeds of `a` are -2 -1 0 3 and -1 -2 1 2 on x, -1 1 and 1 -1 on y; `b` is
# -4 -4 4 4 and -1 1.
QUERIES = {
    "a0": {"x_ndcg10_queries": [1, 2, 3, 6], "y_ndcg10_queries": [0, 2]},
    "a1": {"x_ndcg10_queries": [3, 2, 5, 6], "y_ndcg10_queries": [2, 0]},
    "b0": {"x_ndcg10_queries": [0, 0, 8, 8], "y_ndcg10_queries": [0, 2]},
}
GOLD = np.array([0.0, 1.0, 2.0, 3.0])
COSINES = {"s_dev": np.array([0.1, 0.3, 0.2, 0.4]), "s_gold": GOLD}


def stored(**changed: Any) -> Any:
    runs = {name: {key: np.array(v, np.float32) for key, v in arrays.items()} for name, arrays in QUERIES.items()}
    return (runs | changed).get


def test_variances_over_queries_by_hand() -> None:
    """On x the mean of `a` has variance 2.75, a - b 6.75; a seed's own part is .5 with one degree of freedom."""
    x = pair_noise(["a0", "a1"], ["b0"], ["x_ndcg10_dev"], stored())
    assert x is not None
    assert (x.own, x.between, x.pairs) == pytest.approx((2.75 / 4, (6.75 - 0.5 * (1 / 2 + 1)) / 4, 4))
    # On y `a` has none left, a - b 1, of which the seeds explain 2 * 1.5: no variance is below 0.
    both = pair_noise(["a0", "a1"], ["b0"], ["x_ndcg10_dev", "y_ndcg10_dev"], stored())
    assert both is not None
    assert (both.own, both.between, both.pairs) == pytest.approx((x.own / 4, x.between / 4, 6))
    assert both.what == "queries"


def test_without_a_second_seed_nothing_is_taken_out() -> None:
    found = pair_noise(["a0"], ["b0"], ["x_ndcg10_dev"], stored())
    assert found is not None
    assert found.between == pytest.approx((4 + 9 + 16 + 1) / 4 / 4)  # 2 3 -4 -1


@pytest.mark.parametrize(
    "changed",
    [
        {"a0": {"x_ndcg10_queries": np.ones(4)}},  # of one seed alone
        {"a0": {"x_ndcg10_queries": np.ones(3), "y_ndcg10_queries": np.ones(2)}},  # seeds of other lengths
        {"b0": {"x_ndcg10_queries": np.arange(3.0), "y_ndcg10_queries": np.arange(2.0)}},  # points of other lengths
        {"b0": {}},
        {"b0": None},
    ],
)
def test_sets_that_do_not_fit_give_no_variance(changed: Any) -> None:
    assert pair_noise(["a0", "a1"], ["b0"], ["x_ndcg10_dev", "y_ndcg10_dev"], stored(**changed)) is None


@pytest.mark.parametrize(
    "other",
    [
        {"s_dev": GOLD},
        {"s_gold": GOLD},
        {"s_dev": np.ones(4), "s_gold": GOLD},  # a collapsed model
        {"s_dev": GOLD[:3], "s_gold": GOLD[:3]},
    ],
)
def test_cosines_that_cannot_be_compared_give_no_variance(other: dict[str, Any]) -> None:
    whole = pair_noise(["c"], ["d", "e"], ["s_dev"], stored(c=COSINES, d=COSINES, e=COSINES))
    assert whole is not None
    assert (whole.between, whole.pairs, whole.what) == (0.0, 4, "dev pairs")
    assert pair_noise(["c"], ["d", "e"], ["s_dev"], stored(c=COSINES, d=COSINES, e=other)) is None
    assert pair_noise(["d", "e"], ["c"], ["s_dev"], stored(c=COSINES, d=COSINES, e=other)) is None


def test_without_repeats_the_spread_and_its_error_by_hand() -> None:
    """Quantiles .6 and .9 of 0 to 15 are 9 and 13.5, of a normal .253347 and 1.281552; 1 + 2.7 / sqrt(16)."""
    spread = 4.5e-4 / (1.281552 - 0.253347) * (1 + 2.7 / 4)
    found = seed_noise(values(**{f"p{i}": [0.7 + 1e-4 * i] for i in range(16)}))
    assert (found.sd, found.most) == pytest.approx((spread, spread), rel=1e-5)
    few = seed_noise(values(**{f"p{i}": [0.7 + 1e-4 * i] for i in range(15)}))
    assert few.sd == SEED_SD


def test_how_many_points_tell_the_spread() -> None:
    assert upper_spread(np.arange(15.0), 0) == upper_spread(np.arange(7.0), 1) == float("inf")
    assert upper_spread(np.arange(8.0), 1) < float("inf")


def test_three_degrees_of_freedom_are_too_few_to_learn_from() -> None:
    three, one = values(a=[0.1, 0.3], b=[0.1, 0.3], c=[0.1, 0.3]), values(a=[0.1, 0.3])
    assert learned([three]) == Prior()
    assert learned([three, one]).df == 4


def picked(**changed: Any) -> Picked:
    """Variance of a seed .25 with 20 degrees of freedom; of the pairs, 1 alone and .4 between two."""
    noise = SeedNoise(sd=0.5, df=20.0, repeats=17, most=0.7, prior=Prior())
    given = {"n": 2, "confirmed": True, "tried": 30, "candidates": 3, "rivals": 2, "in_search": 1.0, "own": 1.0}
    return Picked(**({"noise": noise, "between": 0.4} | given | changed))


def test_arms_by_hand() -> None:
    """Of 1 and 3: (3 * .25 + 2) / 4 for a seed, half of that for their mean; .2 / .45 of the pairs' .2 are kept."""
    part, seeds = 0.2, (3 * 0.25 + 2) / 4 / 2
    kept, rest = np.sqrt(part * part / 0.45), part * 0.25 / 0.45
    below, above = picked().arms([1.0, 3.0])
    assert above == pytest.approx(Error(seeds, 4.0, part).bound(0.025))
    assert below == pytest.approx(Error(seeds, 4.0, rest, kept, 30).bound(0.025))
    # Over other pairs all points move alike by own - between / 2 besides, if that is not below 0.
    assert picked().interval([1.0, 3.0])[1] == pytest.approx(Error(seeds, 4.0, part + 0.8).bound(0.025))
    assert picked(own=0.1).interval([1.0, 3.0])[1] == pytest.approx(above)


def test_what_caution_is_for() -> None:
    assert Picked.cautious(np.array([2.0, 2.0]), np.array([False, True])).tolist() == [2.6, 2.0]


def test_a_point_unlike_the_others_is_one_of_the_candidates() -> None:
    assert (picked(tried=12).unlike, picked(tried=13).unlike) == (0.25, 3 / 13)
    assert picked(confirmed=False).unlike == 1 / 30


def test_more_rivals_than_points_are_as_many() -> None:
    assert picked(rivals=40, tried=3).luck(1.0) == picked(rivals=3, tried=3).luck(1.0)
    assert picked(rivals=3, tried=3).luck(1.0)[0] == pytest.approx(0.0)  # all of them: no choice


def test_one_repeat_tells_the_pairs_share_from_the_seeds() -> None:
    one = SeedNoise(sd=0.5, df=4.0, repeats=1, most=0.7, prior=Prior())
    assert picked(noise=one).sds(np.array([2.0])) == pytest.approx([np.sqrt(0.25 / 2 + 0.2)])


def test_a_search_mean_of_two_seeds_has_half_their_variance() -> None:
    found = picked(confirmed=False, n=2)
    error = Error(0.25 / 2, 20.0, 0.2)
    assert found.below(0.0) == pytest.approx(bound_of_largest(0.025, error.sd, error.freedom, 30))


def test_the_pairs_luck_is_learned_from_a_search_mean_over_its_seeds() -> None:
    """A mean over two seeds varies by .125 through them: .2 / .325 of the pairs' .2 are kept."""
    _, error, _ = picked(in_search=2.0).against({1: 1.0}, {}, 0.5, 2)
    assert (error.kept, error.known) == pytest.approx((np.sqrt(0.2 * 0.2 / 0.325), 0.2 * 0.125 / 0.325 + 0.2))


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
