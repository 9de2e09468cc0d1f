"""What importance asks of forests and estimators, and what it makes of their answers: without any forest."""

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
    _encoded,
    _interactions,
    _interval,
    _measure,
    _r2,
    _spread,
    importance,
    rebuilt,
    seed_share,
)
from analysis.tables.axes import Axis

X, Y = Axis("x"), Axis("y", low=2.0, high=4.0)
COLOUR = Axis("c", values=("red", "green", "blue"))


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
    assert [p.null for p in found.values()] == pytest.approx([null, null])
    whole = 0.03 * (n + 1)
    low, high = np.quantile(0.03 * np.arange(n + 2, n + 8), [0.05, 0.95])
    assert found["x"].fanova == Share(pytest.approx(whole), pytest.approx(whole), pytest.approx(high))
    assert low > whole, "an interval holds its value"
    assert found["y"].ped_anova == Share(pytest.approx(0.25), pytest.approx(0.25), pytest.approx(0.25))
    assert (found["x"].points, found["x"].conditional, list(found)) == (40, False, ["x", "y"])


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


class Product:
    """In a forest's place: x * y, known exactly."""

    trees: list[int] = []  # noqa: RUF012  # of all of them

    def __init__(self, n_estimators: int, random_state: int, oob_score: bool = False) -> None:
        assert random_state == 0
        self.trees.append(n_estimators)
        self.oob_score_ = 0.37 if oob_score else None

    def fit(self, positions: np.ndarray, values: np.ndarray) -> Product:
        assert len(positions) == len(values)
        return self

    def predict(self, positions: np.ndarray) -> np.ndarray:
        return np.asarray(positions[:, 0] * positions[:, 1])


@pytest.fixture
def product(monkeypatch: pytest.MonkeyPatch) -> type[Product]:
    monkeypatch.setattr(module, "RandomForestRegressor", Product)
    monkeypatch.setattr(Product, "trees", [])
    return Product


def test_the_interaction_of_a_product(product: type[Product]) -> None:
    """x in (0, 1), y in (2, 4): Vx = 9/12, Vy = 1/12, both together E[x^2 y^2] - E^2 = 28/9 - 9/4 = 31/36."""
    (pair,) = _interactions(rows(12), [X, Y], np.random.default_rng(0), 7)
    assert (pair.first, pair.second) == ("x", "y")
    assert pair.share.value == pytest.approx((31 / 36 - 9 / 12 - 1 / 12) / (31 / 36), abs=0.004)
    assert product.trees == [64, 16, 16]
    _interactions(rows(12), [X, Y], np.random.default_rng(0), 1)
    assert product.trees == [64, 16, 16, 64, 16], "one resample at least"


def test_no_variance_nothing_shared(product: type[Product], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "predict", lambda _, positions: np.ones(len(positions)))
    assert _interactions(rows(12), [X, Y], np.random.default_rng(0), 1)[0].share == Share(0, 0, 0)


def test_out_of_bag(product: type[Product]) -> None:
    assert _r2(rows(8), [X]) == 0.37
    assert product.trees == [200]
    assert np.isnan(_r2(rows(7), [X]))
    assert np.isnan(_r2(rows(8), []))


def test_positions_spread_and_encoded_by_hand() -> None:
    unit = np.array([[0.0, 0.0], [0.5, 0.34], [0.999, 0.999]])
    spread = _spread(unit, [Y, COLOUR])
    np.testing.assert_allclose(spread, [[2.0, 0], [3.0, 1], [3.998, 2]])
    np.testing.assert_array_equal(_encoded(spread, [Y, COLOUR])[:, 1:], np.eye(3))
    np.testing.assert_array_equal(_encoded(spread, [Y, COLOUR])[:, 0], spread[:, 0])


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


def test_the_seed_s_share_wants_three_degrees_of_freedom() -> None:
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


def test_eight_points_are_enough() -> None:
    points = [{"x": i / 8} for i in range(8)]
    study = memory_study(points, [i / 8 for i in range(8)], {"x": {"float": [0, 1]}})
    assert importance(study, np.random.default_rng(0), 1).completed == 8
    short = memory_study(points[:7], [i / 8 for i in range(7)], {"x": {"float": [0, 1]}})
    with pytest.raises(AnalysisError, match="at least 8 completed points, got 7"):
        importance(short, np.random.default_rng(0), 1)
    two = memory_study(points, [0.5] * 7 + [0.6], {"x": {"float": [0, 1]}})
    assert importance(two, np.random.default_rng(0), 1).params, "two values are enough"


def test_the_note_says_what_was_counted() -> None:
    share = Share(0.5, 0.4, 0.6)
    param = ParamImportance("x", share, None, 20, False, 0.5)
    assert not param.important, "no more than chance"
    found = Importance((param,), (), None, 20, 3, float("nan"))
    assert found.note == (
        "20 completed points (mean over seeds); 3 pruned ones count in PED-ANOVA only, as worse than all completed. "
        "Intervals: 90 % bootstrap over points. No parameter has more than what shuffled values give in 5 % of cases."
    )
    some = replace(found, params=(replace(param, null=0.49),), completed=19, r2=-0.2).note
    assert "More than what shuffled values give in 5 % of cases: x." in some
    assert "The forest predicts 0 % of the variance of unseen points." in some
    assert some.endswith("Caution: 19 points are few; the order of the parameters may be chance.")
    assert "The forest predicts 37 % of" in replace(found, r2=0.37).note
