"""Importance on functions whose answer is known, and what it asks of Optuna's evaluators."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from memory_study import memory_study

from analysis.errors import AnalysisError
from analysis.statistics import importance as module
from analysis.statistics.importance import (
    Importance,
    ParamImportance,
    Share,
    _active,
    _interval,
    _measure,
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


def test_the_parameter_that_alone_decides_has_all_importance() -> None:
    points = sampled(60)
    found = measured(memory_study(points, [p["a"] for p in points], TWO))
    assert [p.name for p in found.params] == ["a", "b"]
    assert by_name(found)["a"] > 0.9
    assert by_name(found)["b"] < 0.05
    ped = {p.name: p.ped_anova for p in found.params}
    assert ped["a"] is not None
    assert ped["a"].value > 0.8
    assert found.seed is None
    for p in found.params:
        assert p.fanova.low <= p.fanova.value <= p.fanova.high


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
    assert found["on"].points == found["a"].points == 60
    assert found["on"].fanova.value < 0.5


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
def test_study_without_importance_raises(points: Any, values: Any, space: Any, message: str) -> None:
    with pytest.raises(AnalysisError, match=message):
        measured(memory_study(points, values, space))


def rows(n: int, stop: str = "completed") -> pd.DataFrame:
    rng = np.random.default_rng(n)
    return pd.DataFrame({
        "params.x": rng.random(n), "params.y": 2 + 2 * rng.random(n), "all_value": np.linspace(0.5, 0.6, n),
        "value": np.linspace(0.9, 0.8, n), "stop": stop,
    })  # fmt: skip


class Asked:
    """Stands in for Optuna's evaluators: keeps what it was asked, answers with the number of the question."""

    def __init__(self, kind: str) -> None:
        self.kind, self.settings = kind, list[dict[str, Any]]()
        self.values: list[list[float]] = []

    def __call__(self, **settings: Any) -> Asked:
        self.settings.append(settings)
        return self

    def evaluate(self, study: Any, params: list[str]) -> dict[str, float]:
        self.values.append([trial.value for trial in study.trials])
        return {name: len(self.values) * (0.01 if i else 0.03) for i, name in enumerate(params)}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> tuple[Asked, Asked]:
    fanova, ped = Asked("fanova"), Asked("ped")
    monkeypatch.setattr(module, "FanovaImportanceEvaluator", fanova)
    monkeypatch.setattr(module, "PedAnovaImportanceEvaluator", ped)
    return fanova, ped


def test_what_is_asked_of_forests(asked: tuple[Asked, Asked]) -> None:
    fanova, ped = asked
    found = _measure(rows(40), rows(10, "pruned"), [X, Y], 1.0, np.random.default_rng(0), 6)
    # shuffled, as often as the 5 % that are spoken of need; as it is; resampled
    assert [s["n_trees"] for s in fanova.settings] == [16] * module.DRAWS + [64] + [16] * 6
    assert {s["seed"] for s in fanova.settings} == {0}
    assert [s["target_quantile"] for s in ped.settings] == [0.25] * 7
    n = module.DRAWS
    assert all(sorted(values) == sorted(rows(40)["all_value"]) for values in fanova.values[:n])
    assert all(values != list(rows(40)["all_value"]) for values in fanova.values[:n])
    assert fanova.values[n] == list(rows(40)["all_value"])
    null = float(np.quantile(0.03 * np.arange(1, n + 1), 0.95))
    assert [p.null for p in found] == pytest.approx([null, null])
    whole = 0.03 * (n + 1)
    low, high = np.quantile(0.03 * np.arange(n + 2, n + 8), [0.05, 0.95])
    x, y = found
    assert x.fanova == Share(pytest.approx(whole), pytest.approx(whole), pytest.approx(high))
    assert low > whole, "an interval holds its value"
    assert y.ped_anova == Share(pytest.approx(0.25), pytest.approx(0.25), pytest.approx(0.25))
    assert (x.points, x.conditional, x.name, y.name) == (40, False, "x", "y")


@pytest.mark.parametrize(("points", "top"), [(8, 5 / 8), (10, 0.5), (20, 0.25), (40, 0.25)])
def test_the_best_are_a_quarter_and_five_at_least(points: int, top: float, asked: tuple[Asked, Asked]) -> None:
    _measure(rows(points), rows(0), [X, Y], 1.0, np.random.default_rng(0), 1)
    assert asked[1].settings[0]["target_quantile"] == pytest.approx(top)


def test_pruned_points_rank_below_all_others(asked: tuple[Asked, Asked]) -> None:
    """Their own order stays; a pruned value that is low already is left where it is."""
    _measure(rows(10), rows(4, "pruned"), [X, Y], 1.0, np.random.default_rng(0), 1)
    given = asked[1].values[0]
    assert given[:10] == list(rows(10)["all_value"])
    assert max(given[10:]) == pytest.approx(0.5 - 1e-6)
    assert np.diff(given[10:]) == pytest.approx(np.diff(np.linspace(0.9, 0.8, 4)))
    low = rows(4, "pruned").assign(value=[0.1, 0.2, 0.3, 0.4])
    _measure(rows(10), low, [X, Y], 1.0, np.random.default_rng(0), 1)
    assert asked[1].values[2][10:] == [0.1, 0.2, 0.3, 0.4]
    _measure(rows(10), rows(0), [X, Y], -1.0, np.random.default_rng(0), 1)  # a loss
    assert asked[1].values[4] == [-v for v in rows(10)["all_value"]]


def test_an_interval_by_hand() -> None:
    assert _interval(0.4, []) == Share(0.4, 0.4, 0.4)
    many = [i / 20 for i in range(21)]
    assert _interval(0.5, many) == Share(0.5, pytest.approx(0.05), pytest.approx(0.95))
    assert _interval(0.01, many).low == 0.01
    assert _interval(0.99, many).high == 0.99


def test_points_outside_the_space_count_at_its_edge() -> None:
    table = pd.DataFrame({"params.y": [1.0, 3.0, 9.0], "params.c": ["blue", "red", "green"]})
    trials = rebuilt(table, np.array([0.1, 0.2, 0.3]), [Y, COLOUR]).trials
    assert [t.params for t in trials] == [{"y": 2.0, "c": "blue"}, {"y": 3.0, "c": "red"}, {"y": 4.0, "c": "green"}]
    assert [t.value for t in trials] == [0.1, 0.2, 0.3]


def test_rows_in_which_every_axis_has_a_value() -> None:
    table = pd.DataFrame({"params.y": [1.0, None, 3.0], "params.c": ["blue", "red", None]})
    assert len(_active(table, [Y])) == 2
    assert len(_active(table, [Y, COLOUR])) == 1
    assert len(_active(table, [Y, X])) == 0, "a column that is not there has no value"


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


def test_the_note_says_what_was_counted() -> None:
    share = Share(0.5, 0.4, 0.6)
    param = ParamImportance("x", share, None, 20, False, 0.5)
    assert not param.important, "no more than chance"
    found = Importance((param,), None, 20, 3)
    assert found.note == (
        "20 completed points (mean over seeds); 3 pruned ones count in PED-ANOVA only, as worse than all completed. "
        "Intervals: 90 % bootstrap over points. No parameter has more than what shuffled values give in 5 % of cases."
    )
    some = replace(found, params=(replace(param, null=0.49),), completed=19).note
    assert "More than what shuffled values give in 5 % of cases: x." in some
    assert some.endswith("Caution: 19 points are few; the order of the parameters may be chance.")
