"""Searched parameters as axes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from memory_study import memory_study

from analysis.tables.axes import label, study_axes


def test_axes_of_a_space_file() -> None:
    space = {
        "lr": {"float": [1e-5, 1e-3], "log": True},
        "marks": {"int": [0, 3]},
        "alphabet": {"choice": ["en", "zh"], "when": {"marks": [1, 2, 3]}},
        "sizes": {"grid": [[1, 2], [3]]},
        "temperature": 0.05,
        "one": {"choice": ["only"]},
    }
    lr, marks, alphabet, sizes = study_axes(memory_study([{"lr": 1e-4}], [0.1], space))
    np.testing.assert_allclose(lr.positions(pd.Series([1e-5, 1e-4, None])), [-5, -4, np.nan])
    assert lr.bounds == (-5, pytest.approx(-3))
    assert (marks.low, marks.high, marks.log) == (0, 3, False)
    assert alphabet.when == {"marks": ("1", "2", "3")}
    np.testing.assert_array_equal(alphabet.positions(pd.Series(["zh", "en", None])), [1, 0, np.nan])
    np.testing.assert_array_equal(sizes.positions(pd.Series([[3], [1, 2]])), [1, 0])


def test_listed_points_are_categories() -> None:
    rows = [{"lr": 1e-5, "pooling": "cls"}, {"lr": 3e-5, "pooling": "avg"}]
    study = memory_study(rows, [0.1, 0.2], {"lr": {}, "pooling": {}}, space={"params": {}, "points": rows})
    assert {a.name: a.values for a in study_axes(study)} == {"lr": ("1e-05", "3e-05"), "pooling": ("avg", "cls")}


def test_without_a_space_file_values_decide() -> None:
    rng = np.random.default_rng(0)
    points = [{"lr": float(10 ** rng.uniform(-6, -2)), "batch": int(rng.choice([8, 16]))} for _ in range(30)]
    lr, batch = study_axes(memory_study(points, [0.1] * 30, {"lr": {}, "batch": {}}), space={})
    assert lr.numeric
    assert lr.log
    assert batch.values == ("8", "16")


@pytest.mark.parametrize(
    ("value", "text"),
    [(3e-5, "3e-05"), (438650, "438650"), (1.0, "1"), (None, "null"), (True, "true"), ([1, 2], "[1, 2]"), ("pi", "pi")],
)
def test_labels(value: object, text: str) -> None:
    assert label(value) == text
