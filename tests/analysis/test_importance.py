"""Importance on functions whose answer is known, and its calls of Optuna's evaluators."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from memory_study import memory_study

from analysis.errors import AnalysisError
from analysis.statistics import importance as measures
from analysis.statistics.importance import (
    Importance,
    importance,
    rebuilt,
    seed_share,
)
from analysis.tables.axes import Axis
from analysis.tables.study import Study

pytestmark = pytest.mark.costly

TWO: dict[str, Any] = {"a": {"float": [0.0, 1.0]}, "b": {"choice": ["x", "y", "z"]}}
X, Y = Axis("x"), Axis("y", low=2.0, high=4.0)
COLOUR = Axis("c", values=("red", "green", "blue"))


def sampled(n: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [{"a": float(rng.random()), "b": str(rng.choice(["x", "y", "z"]))} for _ in range(n)]


def measured(study: Study, draws: int = 3) -> Importance:
    return importance(study, np.random.default_rng(0), draws)


def by_name(found: Importance) -> dict[str, float]:
    return {p.name: p.fanova.value for p in found.params}


@pytest.mark.usefixtures("few_shuffles")
def test_the_parameter_that_alone_decides_has_all_importance() -> None:
    points = sampled(60)
    study = memory_study(points, [p["a"] for p in points], TWO)
    found = measured(study)
    assert [p.name for p in found.params] == ["a", "b"]
    assert [p.important for p in found.params] == [True, False]
    assert "5 %): a." in found.note
    assert by_name(found)["a"] > 0.9
    assert by_name(found)["b"] < 0.05
    ped = {p.name: p.ped_anova for p in found.params}
    assert ped["a"] is not None
    assert ped["a"].value > 0.8
    assert found.seed is None
    loss = replace(study, metric=replace(study.metric, mode="min"))  # the other end is the best
    assert {p.name: p.ped_anova for p in measured(loss).params}["a"] != ped["a"]
    for p in found.params:
        assert p.fanova.low <= p.fanova.value <= p.fanova.high


@pytest.mark.usefixtures("few_shuffles")
def test_log_parameters_are_measured_on_the_logarithm() -> None:
    """A step at 1e-4 halves a log range of 1e-6..1e-2, but only 1 % of the raw one: its variance must not vanish."""
    rng = np.random.default_rng(2)
    points = [{"lr": float(10 ** rng.uniform(-6, -2)), "b": str(rng.choice(["x", "y"]))} for _ in range(80)]
    values = [float(p["lr"] > 1e-4) + 0.5 * (p["b"] == "x") for p in points]
    space = {"lr": {"float": [1e-6, 1e-2], "log": True}, "b": {"choice": ["x", "y"]}}
    found = by_name(measured(memory_study(points, values, space)))
    # Variances of the two steps: 1/4 and 1/16 of the total 5/16.
    assert found["lr"] == pytest.approx(0.8, abs=0.08)
    assert found["b"] == pytest.approx(0.2, abs=0.08)


@pytest.mark.usefixtures("few_shuffles")
def test_pruned_points_count_by_rank_only() -> None:
    points = sampled(40)
    values = [p["a"] for p in points]
    stops = ["pruned" if p["b"] == "z" else "completed" for p in points]
    pretend = [100.0 if stop == "pruned" else v for v, stop in zip(values, stops, strict=True)]
    study = memory_study(points, pretend, TWO, stops)
    found = measured(study)
    assert (found.completed, found.pruned) == (stops.count("completed"), stops.count("pruned"))
    assert by_name(found)["a"] > 0.9  # the value 100 never reaches fANOVA
    ped = {p.name: p.ped_anova for p in found.params}
    assert ped["b"] is not None
    assert ped["b"].value > 0.05  # that no z is among the best does count


@pytest.mark.usefixtures("few_shuffles")
def test_a_conditional_parameter_is_measured_where_it_exists() -> None:
    rng = np.random.default_rng(3)
    points: list[dict[str, Any]] = []
    values = []
    for _ in range(60):
        on = bool(rng.random() < 0.5)
        delta = float(rng.random()) if on else None
        points.append({"on": on, "delta": delta, "a": float(rng.random())})
        values.append(delta if delta is not None else 0.5)
    space = {
        "a": {"float": [0, 1]},
        "on": {"choice": [True, False]},
        "delta": {"float": [0.0, 1.0], "when": {"on": [True]}},
    }
    found = {p.name: p for p in measured(memory_study(points, values, space)).params}
    assert found["delta"].conditional
    assert found["delta"].points == sum(p["on"] for p in points)
    assert found["delta"].fanova.value > 0.9
    assert found["on"].points == found["a"].points == 60
    assert found["on"].fanova.value < 0.5


@pytest.mark.parametrize(
    ("points", "values", "space", "message"),
    [
        (sampled(5), [0.1, 0.2, 0.3, 0.4, 0.5], TWO, "at least 8 completed points, got 5"),
        (sampled(9), [0.5] * 9, TWO, "same value"),
        (sampled(9), list(range(9)), {"a": 1}, "nothing was searched"),
    ],
)
def test_study_without_importance_raises(points: Any, values: Any, space: Any, message: str) -> None:
    with pytest.raises(AnalysisError, match=message):
        measured(memory_study(points, values, space))


def test_points_outside_the_space_count_at_its_edge() -> None:
    table = pd.DataFrame({"params.y": [1.0, 3.0, 9.0], "params.c": ["blue", "red", "green"]})
    trials = rebuilt(table, np.array([0.1, 0.2, 0.3]), [Y, COLOUR]).trials
    assert [t.params for t in trials] == [{"y": 2.0, "c": "blue"}, {"y": 3.0, "c": "red"}, {"y": 4.0, "c": "green"}]
    assert [t.value for t in trials] == [0.1, 0.2, 0.3]


def test_share_of_the_seed_needs_three_degrees_of_freedom() -> None:
    def study(repeated: int) -> Any:
        numbers = [*range(6), *range(repeated)]
        values = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, *(0.1 * i + 0.14 for i in range(repeated))]
        seeds = [0] * 6 + [1] * repeated
        return memory_study([{"x": i / 6} for i in numbers], values, {"x": {"float": [0, 1]}}, seeds=seeds)

    assert seed_share(study(2), np.random.default_rng(0), 5) is None
    found = seed_share(study(3), np.random.default_rng(0), 5)
    assert found is not None
    within = 3 * (0.04**2 / 2) / 3  # pairs that differ by .04
    assert found.value == pytest.approx(within / np.var([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], ddof=1))


def test_noise_is_seldom_called_important(monkeypatch: pytest.MonkeyPatch) -> None:
    """Observed and shuffled shares are of forests of one size, so on noise they are exchangeable: 200 of 4,000 such
    draws are called at 5 %, more than 243 (3 standard errors) 1 time in 700. The .95 quantile of 20 called 370."""
    trees: list[int] = []
    evaluator = measures.FanovaImportanceEvaluator
    monkeypatch.setattr(
        measures,
        "FanovaImportanceEvaluator",
        lambda n_trees, seed: trees.append(n_trees) or evaluator(n_trees=n_trees, seed=seed),
    )
    points = sampled(9)
    measured(memory_study(points, list(np.random.default_rng(0).normal(size=9)), TWO), draws=2)
    assert trees.count(measures.BOOTSTRAP_TREES) == 1 + measures.SHUFFLES + 2
    draws = np.random.default_rng(8).exponential(size=(4000, 1 + measures.SHUFFLES))
    assert sum(measures.p_value(float(row[0]), row[1:]) <= measures.LEVEL for row in draws) <= 243
    assert measures.p_value(0.5, np.array([0.1, 0.5, 0.7])) == 3 / 4


@pytest.mark.slow  # the ordinary suite has the test above
def test_chance_of_calling_noise_important_is_the_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 studies of noise, forests of one tree: some parameter is called important in 5 %. None, or more than 12, has
    a chance of 1 in 130. An observed forest of 64 trees against shuffled ones of one tree: none."""
    for name, value in {"TREES": 1, "BOOTSTRAP_TREES": 1, "SHUFFLES": 19}.items():
        monkeypatch.setattr(measures, name, value)
    rng, called = np.random.default_rng(0), 0
    for _ in range(100):
        table = {f"params.{name}": rng.random(10) for name in "ab"} | {"all_value": rng.normal(size=10)}
        done = pd.DataFrame(table | {"value": np.nan})
        found = measures._measure(done, done[:0], [Axis("a"), Axis("b")], 1.0, rng, draws=0)
        called += any(param.important for param in found)
    assert 1 <= called <= 12
