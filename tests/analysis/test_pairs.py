"""Pairs and queries: influence functions, their noise, and best against baseline on test sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from analysis.statistics.pairs import _gain, pair_noise, paired_gains, spearman_influence
from trainables.evaluation.metrics import spearman

pytestmark = pytest.mark.costly


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
    assert spearman(first, gold) == pytest.approx(stats.spearmanr(first, gold).statistic, abs=1e-12)
    assert spearman_influence(np.round(first), gold)[0] == pytest.approx(
        stats.spearmanr(np.round(first), gold).statistic
    )


def test_influence_is_the_derivative_by_the_weight() -> None:
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
    picks = rng.integers(0, len(gold), (1500, len(gold)))
    differences = np.array([spearman(first[i], gold[i]) - spearman(second[i], gold[i]) for i in picks])
    psi = spearman_influence(first, gold)[1] - spearman_influence(second, gold)[1]
    # The sd of 1,500 draws is known to 1.8 %; 10 % leaves room for the bootstrap's own second order.
    assert np.sqrt(np.var(psi) / len(psi)) == pytest.approx(differences.std(), rel=0.10)
    unpaired = np.sqrt(sum(np.var(spearman_influence(m, gold)[1]) for m in (first, second)) / len(gold))
    assert differences.std() < 0.8 * unpaired


@pytest.mark.parametrize(("x", "y"), [([1, 1, 1], [1, 2, 3]), ([1, 2], [1, 2, 3])])
def test_influence_rejects_constant_and_unequal(x: list[float], y: list[float]) -> None:
    with pytest.raises(ValueError, match=r"expected two vectors|two values"):
        spearman_influence(x, y)


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


def test_variances_over_queries_are_the_worked_example() -> None:
    """On x the mean of `a` has variance 2.75, a - b 6.75; a seed's own part is .5 with one degree of freedom."""
    x = pair_noise(["a0", "a1"], ["b0"], ["x_ndcg10_dev"], stored())
    assert x is not None
    assert (x.own, x.between, x.pairs) == pytest.approx((2.75 / 4, (6.75 - 0.5 * (1 / 2 + 1)) / 4, 4))
    # On y `a` has none left, a - b 1, of which the seeds explain 2 * 1.5: no variance is below 0.
    both = pair_noise(["a0", "a1"], ["b0"], ["x_ndcg10_dev", "y_ndcg10_dev"], stored())
    assert both is not None
    assert (both.own, both.between, both.pairs) == pytest.approx((x.own / 4, x.between / 4, 6))
    assert both.what == "queries"


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


def test_measures_of_one_set_are_of_the_same_queries() -> None:
    """The mean of two measures that are equal query by query is as uncertain as one of them, and of as many queries."""
    rng = np.random.default_rng(0)
    stored: dict[str, Any] = {}
    for run in ("a", "b"):
        values = rng.uniform(size=50).astype(np.float32)
        stored[run] = {f"nfcorpus_{measure}_queries": values for measure in ("ndcg10", "mrr10")}
        stored[run]["scifact_ndcg10_queries"] = rng.uniform(size=30).astype(np.float32)
    one = pair_noise(["a"], ["b"], ["nfcorpus_ndcg10_dev"], stored.get)
    assert pair_noise(["a"], ["b"], ["nfcorpus_ndcg10_dev", "nfcorpus_mrr10_dev"], stored.get) == one
    other = pair_noise(["a"], ["b"], ["scifact_ndcg10_dev"], stored.get)
    both = pair_noise(["a"], ["b"], ["nfcorpus_ndcg10_dev", "scifact_ndcg10_dev"], stored.get)
    assert one is not None
    assert other is not None
    assert both is not None
    assert both.own == pytest.approx((one.own + other.own) / 4)  # sets are independent
    assert (one.pairs, both.pairs) == (50, 80)
    stored["b"]["nfcorpus_mrr10_queries"] = stored["b"]["nfcorpus_mrr10_queries"][:40]
    assert pair_noise(["a"], ["b"], ["nfcorpus_ndcg10_dev", "nfcorpus_mrr10_dev"], stored.get) is None


def test_interval_over_seeds_is_the_paired_t() -> None:
    first, second = np.array([0.70, 0.74, 0.71, 0.76]), np.array([0.69, 0.70, 0.70, 0.71])
    gain = first - second
    found = _gain("x", first, second, 0.0, 4)
    low, high = stats.t.interval(0.95, 3, gain.mean(), gain.std(ddof=1) / 2)
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    assert found.pairs_low == pytest.approx(found.pairs_high)
    apart = _gain("x", first, second, 0.0, 0)
    welch = stats.ttest_ind(first, second, equal_var=False).confidence_interval()
    assert (apart.low, apart.high) == (pytest.approx(welch.low), pytest.approx(welch.high))


def test_gain_is_paired_over_common_seeds() -> None:
    rng = np.random.default_rng(2)
    gold = {"a": rng.normal(size=200), "b": rng.normal(size=100)}

    def models(noise: float, seeds: list[int]) -> dict[int, dict[str, np.ndarray]]:
        return {s: {name: g + rng.normal(0, noise, len(g)) for name, g in gold.items()} for s in seeds}

    first, second = models(0.5, [1, 2, 3, 9]), models(1.0, [1, 2, 3])
    a, b, mean = paired_gains(first, second, gold)
    by_hand = [
        stats.spearmanr(first[s]["a"], gold["a"]).statistic - stats.spearmanr(second[s]["a"], gold["a"]).statistic
        for s in (1, 2, 3)  # seed 9 has no partner
    ]
    assert a.gain == pytest.approx(np.mean(by_hand))
    assert (a.seeds, mean.name) == (3, "mean")
    assert mean.gain == pytest.approx((a.gain + b.gain) / 2)
    assert mean.pairs_high - mean.pairs_low < max(x.pairs_high - x.pairs_low for x in (a, b))
    assert a.low <= a.pairs_low < a.gain < a.pairs_high <= a.high
    same = paired_gains({1: first[1]}, {2: first[1]}, {"a": gold["a"]})
    assert (same[0].gain, same[0].low, same[0].high, same[0].seeds) == (0, 0, 0, 0)
    with pytest.raises(ValueError, match="expected two vectors"):
        paired_gains({1: {"a": np.zeros(3)}}, {1: first[1]}, {"a": gold["a"]})
    with pytest.raises(ValueError, match="two values at least"):
        paired_gains({1: {"a": np.zeros(200)}}, {1: first[1]}, {"a": gold["a"]})


def test_the_interval_over_pairs_covers() -> None:
    """300 worlds with a known gain of 0: the 95 % interval misses in at most 9 % (five standard errors above 5)."""
    rng = np.random.default_rng(3)
    missed = 0
    for _ in range(300):
        gold = rng.normal(size=150)
        first, second = gold + rng.normal(size=150), gold + rng.normal(size=150)
        (one,) = paired_gains({0: {"a": first}}, {0: {"a": second}}, {"a": gold})
        missed += not one.low <= 0 <= one.high
    assert missed / 300 <= 0.09
