"""What the held-out dev pairs say of the best, by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from small_tables import judge, table, table_study

from analysis.tables.study import Held, Study, held
from analysis.writing.answer import held_lines

VALUES = {"p0": [0.70, 0.72], "p1": [0.80, 0.82]}
HELD = {"p0": [0.69, 0.70], "p1": [0.74, 0.75]}


def study(held_values: dict[str, list[float]]) -> Study:
    trials = table(VALUES)
    trials["run_id"] = trials["point"] + trials["seed"].astype(str)
    runs = [
        SimpleNamespace(run_id=f"{p}{seed}", metrics={"best_stsb_held_dev": v})
        for p, vs in held_values.items()
        for seed, v in enumerate(vs)
    ]
    return table_study(trials, runs=runs)


def test_means_over_the_counted_seeds() -> None:
    found = study(HELD)
    assert held(found, "p1") == Held(pytest.approx(0.81), pytest.approx(0.745))
    assert held(found, "p7") is None
    assert held(study({}), "p1") is None
    assert held(study({"p1": [0.74]}), "p0") is None  # of the baseline nothing is stored


def test_held_lines() -> None:
    found = study(HELD)
    verdict = judge(found.trials)
    assert held_lines(found, verdict) == [
        "On the dev pairs held out, by which nothing was chosen: 74.50 for the best, 69.50 for the paper's setting: "
        "+5.00, and +10.00 as measured on those that selected (81.00, 71.00)."
    ]
    assert held_lines(study({"p1": [0.74, 0.75]}), verdict) == [
        "On the dev pairs held out, by which nothing was chosen: 74.50 for the best (81.00 on those that selected)."
    ]
    assert held_lines(study({}), verdict) == []
