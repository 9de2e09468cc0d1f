"""`python -m benchmarks outside`: how LCBench's model is queried, which files it takes, how regrets become rows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.curves.outside import EVALUATIONS, LCBench, lcbench_tasks
from benchmarks.outside import rows

POINT = {"batch_size": 64, "learning_rate": 0.01, "momentum": 0.9, "weight_decay": 0.001, "num_layers": 3}
POINT |= {"max_units": 256, "max_dropout": 0.2}


def test_lcbench_encodes_points_in_model_order_and_shows_the_best() -> None:
    asked: list[Any] = []

    def accuracy(_: object, inputs: dict[str, Any]) -> list[Any]:
        asked.append(inputs)
        shown = np.where(inputs["x_cont"][:, 0] == 13, 90.0, inputs["x_cont"][:, 0])
        return [np.stack([np.zeros(len(shown)), shown, np.zeros(len(shown))], 1)]  # time, accuracy, ...

    task = LCBench(SimpleNamespace(run=accuracy), "3945", 34, noise=0.0)
    curve = task.curve(POINT, seed=7)
    assert curve.tolist() == pytest.approx([0.04, 0.09] + [0.9] * (EVALUATIONS - 2))
    assert asked[0]["x_cat"].tolist() == [[34]] * EVALUATIONS
    assert asked[0]["x_cont"][0].tolist() == pytest.approx([4, 64, 0.01, 0.9, 0.001, 3, 256, 0.2])
    assert asked[0]["x_cont"][-1][0] == 52
    assert task.true_value(POINT) == pytest.approx(0.9)


def test_another_model_than_yahpos_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model\.onnx: expected .* SHA-256 b45c0d85.*, got no file"):
        lcbench_tasks(tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"another")
    with pytest.raises(ValueError, match=r"model\.onnx: expected .* SHA-256 b45c0d85.*, got [0-9a-f]{64}$"):
        lcbench_tasks(tmp_path)


def test_rows_have_means_ranks_and_paired_differences() -> None:
    """Two tasks, two runs each, two budgets. A search that has played less often has no rank."""
    ours = {"regrets": [[[0.4, 0.2], [0.2, 0.2]], [[0.2, 0.0], [0.4, 0.0]]], "seconds": 1.0}
    random = {"regrets": [[[0.5, 0.4], [0.3, 0.4]], [[0.1, 0.4], [0.5, 0.4]]], "seconds": 0.1}
    slow = {"regrets": [[[0.1, 0.1]], [[0.1, 0.1]]], "seconds": 9.0}
    found = rows({"simple|1|ours": ours, "simple|1|random": random, "simple|1|slow": slow})
    at = {(row["search"], row["trials"]): row for row in found}
    assert at["ours", 20] == {
        "tasks": "simple", "workers": 1, "trials": 20, "search": "ours", "regret": 0.1, "se": 0.1, "rank": 1.0,
        "less ours": 0.0, "its se": 0.0, "runs": 4, "seconds": 1.0,
    }  # fmt: skip
    assert (at["random", 10]["regret"], at["random", 10]["rank"], at["random", 10]["less ours"]) == (0.35, 1.75, 0.05)
    assert (at["slow", 10]["rank"], at["slow", 10]["less ours"]) == ("-", -0.2)
