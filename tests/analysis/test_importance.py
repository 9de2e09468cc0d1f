"""Importance on functions whose answer is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from memory_study import memory_study

from analysis.errors import AnalysisError
from analysis.statistics.importance import Importance, importance, seed_share
from analysis.tables.study import Study

pytestmark = pytest.mark.costly

TWO: dict[str, Any] = {"a": {"float": [0.0, 1.0]}, "b": {"choice": ["x", "y", "z"]}}


def sampled(n: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [{"a": float(rng.random()), "b": str(rng.choice(["x", "y", "z"]))} for _ in range(n)]


def measured(study: Study, draws: int = 3) -> Importance:
    return importance(study, np.random.default_rng(0), draws)


def by_name(found: Importance) -> dict[str, float]:
    return {p.name: p.fanova.value for p in found.params}


def test_the_parameter_that_alone_decides_has_all_importance() -> None:
    points = sampled(60)
    found = measured(memory_study(points, [p["a"] for p in points], TWO))
    assert [p.name for p in found.params] == ["a", "b"]
    assert by_name(found)["a"] > 0.9
    assert by_name(found)["b"] < 0.05
    ped = {p.name: p.ped_anova for p in found.params}
    assert ped["a"] is not None
    assert ped["a"].value > 0.8
    assert found.interactions[0].share.value < 0.05
    assert found.seed is None
    for p in found.params:
        assert p.fanova.low <= p.fanova.value <= p.fanova.high


def test_an_interaction_is_no_effect_of_either_parameter() -> None:
    """y = +1 if exactly one of the two is large: each alone says nothing, both together say everything."""
    rng = np.random.default_rng(1)
    points = [{"a": float(rng.random()), "c": float(rng.random())} for _ in range(200)]
    values = [float((p["a"] > 0.5) != (p["c"] > 0.5)) for p in points]
    found = measured(memory_study(points, values, {"a": {"float": [0, 1]}, "c": {"float": [0, 1]}}))
    assert found.interactions[0].share.value > 0.75
    assert max(by_name(found).values()) < 0.25


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
    assert found["on"].points == 60


def test_share_of_the_seed() -> None:
    """Points with standard deviation 1, seeds with 0.5: the seed makes 0.25 / 1.25 of the variance."""
    rng = np.random.default_rng(4)
    points, values, seeds = [], [], []
    for i in range(300):
        level = rng.normal()
        for seed in range(2):
            points.append({"a": i / 300})
            values.append(level + 0.5 * rng.normal())
            seeds.append(seed)
    study = memory_study(points, values, {"a": {"float": [0, 1]}}, seeds=seeds)
    found = seed_share(study, np.random.default_rng(0), draws=20)
    assert found is not None
    assert found.value == pytest.approx(0.2, abs=0.05)  # its standard error is about 0.02
    assert found.low < found.value < found.high
    few = memory_study(points[:40], values[:40], {"a": {"float": [0, 1]}}, seeds=seeds[:40])
    whole, alone = measured(few).seed, seed_share(few, np.random.default_rng(0), draws=3)
    assert whole is not None
    assert alone is not None
    assert whole.value == alone.value


def test_the_same_seed_gives_the_same_figures() -> None:
    points = sampled(20)
    study = memory_study(points, [p["a"] for p in points], TWO)
    assert measured(study) == measured(study)


@pytest.mark.parametrize(
    ("points", "values", "space", "message"),
    [
        (sampled(5), [0.1, 0.2, 0.3, 0.4, 0.5], TWO, "at least 8 completed points, got 5"),
        (sampled(9), [0.5] * 9, TWO, "same value"),
        (sampled(9), list(range(9)), {"a": 1}, "nothing was searched"),
    ],
)
def test_what_cannot_be_measured_is_said(points: Any, values: Any, space: Any, message: str) -> None:
    with pytest.raises(AnalysisError, match=message):
        measured(memory_study(points, values, space))
