"""A retrieval metric's uncertainty is over its queries, and what its values are is said."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from analysis.statistics.pair_noise import pair_noise
from analysis.tables.metric import parse_metric
from analysis.tables.study import Study
from analysis.writing.state_text import value_unit

PART = "nfcorpus_ndcg10_dev"


def test_the_variance_over_queries_is_that_of_a_mean() -> None:
    rng = np.random.default_rng(0)
    first = rng.uniform(size=400)
    second = np.clip(first + rng.normal(0, 0.1, 400), 0, 1)
    stored: dict[str, Any] = {
        "a": {"nfcorpus_ndcg10_queries": first.astype(np.float32)},
        "b": {"nfcorpus_ndcg10_queries": second.astype(np.float32)},
    }
    found = pair_noise(["a"], ["b"], [PART], stored.get)
    assert found is not None
    assert found.own == pytest.approx(first.var() / 400, rel=1e-5)
    assert found.between == pytest.approx((first - second).var() / 400, rel=1e-5)
    assert (found.pairs, found.what) == (400, "queries")
    draws = [(first - second)[rng.integers(0, 400, 400)].mean() for _ in range(4000)]
    assert found.between == pytest.approx(np.var(draws), rel=0.1)  # 4.5 standard errors of a variance of 4000 draws
    stored["b"]["nfcorpus_ndcg10_queries"] = first[:10]
    assert pair_noise(["a"], ["b"], [PART], stored.get) is None


def test_measures_of_one_set_are_of_the_same_queries() -> None:
    """The mean of two measures that are equal query by query is as uncertain as one of them, and of as many queries."""
    rng = np.random.default_rng(0)
    stored: dict[str, Any] = {}
    for run in ("a", "b"):
        values = rng.uniform(size=50).astype(np.float32)
        stored[run] = {f"nfcorpus_{measure}_queries": values for measure in ("ndcg10", "mrr10")}
        stored[run]["scifact_ndcg10_queries"] = rng.uniform(size=30).astype(np.float32)
    one = pair_noise(["a"], ["b"], [PART], stored.get)
    assert pair_noise(["a"], ["b"], [PART, "nfcorpus_mrr10_dev"], stored.get) == one
    other = pair_noise(["a"], ["b"], ["scifact_ndcg10_dev"], stored.get)
    both = pair_noise(["a"], ["b"], [PART, "scifact_ndcg10_dev"], stored.get)
    assert one is not None
    assert other is not None
    assert both is not None
    assert both.own == pytest.approx((one.own + other.own) / 4)  # sets are independent
    assert (one.pairs, both.pairs) == (50, 80)
    stored["b"]["nfcorpus_mrr10_queries"] = stored["b"]["nfcorpus_mrr10_queries"][:40]
    assert pair_noise(["a"], ["b"], [PART, "nfcorpus_mrr10_dev"], stored.get) is None


@pytest.mark.parametrize(
    ("metric", "unit"),
    [
        (PART, "Values are nDCG@10 x 100."),
        (f"mean(stsb_dev,{PART})", "Values are means of Spearman correlations and nDCG@10 x 100."),
        ("topics_dev", "Values are topics_dev x 100."),
        ("stsb_dev", "Values are Spearman correlations x 100."),
    ],
)
def test_values_are_called_what_they_are(metric: str, unit: str) -> None:
    study = SimpleNamespace(metric=parse_metric(metric), space={"data": {"dev": ["stsb", "data/nfcorpus"]}})
    assert value_unit(cast(Study, study)) == unit
