"""Metrics against scipy and against plain loops of their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from trainables.contract.trial import metric_parts, normal_metric
from trainables.evaluation.metrics import (
    aggregate,
    alignment,
    cosines,
    pearson,
    percent,
    ranks,
    selecting_value,
    spearman,
    sts_average,
    uniformity,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 2)), min_size=2, max_size=40))
def test_correlations_equal_scipy_with_many_ties(rows):
    x, y = (np.array(side, dtype=np.float64) for side in zip(*rows, strict=True))
    assert ranks(x).tolist() == scipy.stats.rankdata(x).tolist()
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        assert math.isnan(spearman(x, y))
        assert math.isnan(pearson(x, y))
    else:
        assert spearman(x, y) == pytest.approx(scipy.stats.spearmanr(x, y).statistic, abs=1e-12)
        assert pearson(x, y) == pytest.approx(scipy.stats.pearsonr(x, y).statistic, abs=1e-12)


def test_correlation_input_faults():
    assert math.isnan(spearman(np.array([1.0, math.nan, 2.0]), np.arange(3.0)))
    with pytest.raises(ValueError, match="one length >= 2"):
        pearson(np.arange(3.0), np.arange(4.0))


def test_cosine_with_a_zero_vector_counts_as_zero():
    a = np.array([[3.0, 4.0], [0.0, 0.0], [1.0, 0.0]])
    b = np.array([[6.0, 8.0], [1.0, 1.0], [-2.0, 0.0]])
    assert cosines(a, b) == pytest.approx([1, 0, -1])


def test_all_setting_differs_from_the_means_of_the_parts():
    similarity = np.array([0.1, 0.2, 0.3, 0.9, 0.8, 0.7, 0.6, 0.5])
    gold = np.array([1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    scores = aggregate(similarity, gold, ["x"] * 3 + ["y"] * 5)
    assert scores["mean"] == pytest.approx(0)
    assert scores["wmean"] == pytest.approx((3 - 5) / 8)
    assert scores["all"] == pytest.approx(scipy.stats.spearmanr(similarity, gold).statistic)
    assert set(aggregate(similarity, gold)) == {"all"}


def test_average_is_the_rounded_mean_of_rounded_scores():
    assert percent(0.464392) == 46.44
    assert sts_average([0.12344, 0.12344]) == 12.34
    assert sts_average([0.123449, 0.123551]) == 12.35  # 12.34 and 12.36


def test_alignment_and_uniformity_by_their_definitions():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 7, 4))
    unit = [[v / math.sqrt(sum(c * c for c in v)) for v in side] for side in (x, y)]
    assert alignment(x, y) == pytest.approx(np.mean([sum((a - b) ** 2) for a, b in zip(*unit, strict=True)]))
    kernels = [math.exp(-2 * sum((unit[0][i] - unit[0][j]) ** 2)) for i in range(7) for j in range(i)]
    assert uniformity(x) == pytest.approx(math.log(np.mean(kernels)))


def test_uniformity_of_a_sample_is_near_and_repeatable():
    # 1024 of 3000 vectors: the standard error of the mean kernel is below 1 % of it, five of them are allowed
    vectors = np.random.default_rng(1).normal(size=(3000, 16)) + 0.5
    sampled = uniformity(vectors)
    assert sampled == uniformity(vectors)
    assert sampled == pytest.approx(uniformity(vectors, limit=3000), abs=0.05)
    assert uniformity(np.ones((5, 3))) == pytest.approx(0)


@pytest.mark.parametrize(
    ("metric", "parts"),
    [("stsb_dev", ["stsb_dev"]), ("mean(a_dev,b-2_dev)", ["a_dev", "b-2_dev"]), (" mean( a , b c ) ", ["a", "b c"])],
)
def test_metric_expressions(metric, parts):
    assert metric_parts(metric) == parts
    assert metric_parts(normal_metric(metric)) == parts


@pytest.mark.parametrize("metric", ["", " ", "mean()", "mean(a", "max(a,b)", "a,b", "mean(a,)", "mean(mean(a))"])
def test_malformed_metric_expressions(metric):
    with pytest.raises(ValueError, match="expected a name such as stsb_dev"):
        metric_parts(metric)


def test_selecting_value():
    metrics = {"a_dev": 0.25, "b_dev": 0.75}
    assert selecting_value("a_dev", metrics) == 0.25
    assert selecting_value("mean(a_dev, b_dev)", metrics) == 0.5
    with pytest.raises(ValueError, match="'c_dev' was not measured; measured: a_dev, b_dev"):
        selecting_value("c_dev", metrics)
