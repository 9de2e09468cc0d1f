"""A study as Optuna has it: parameters, values, states, evaluations, in memory and in a storage."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import numpy as np
import optuna
import pytest
from click.testing import CliRunner, Result
from memory_study import MemoryStore, memory_study, run
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState
from small_store import SPACE, SmallStore

from analysis.commands.main import main
from analysis.errors import InputError
from analysis.tables.optuna_study import optuna_study
from analysis.tables.study import Study

PARAMS: dict[str, Any] = {
    "rate": {"float": [1e-5, 1e-2], "log": True},
    "marks": {"int": [1, 7]},
    "size": {"choice": [8, 16]},
    "edit": {"choice": ["modal", "none"], "when": {"size": [16]}},
}
POINTS = [
    {"rate": 0.1, "marks": 3, "size": 16, "edit": "modal"},  # outside the space
    {"rate": 1e-4, "marks": 1, "size": 8, "edit": None},
    {"rate": 1e-3, "marks": 7, "size": 16, "edit": "none"},
    {"rate": 1e-3, "marks": 7, "size": 16, "edit": "none"},
    {"rate": 1e-3, "marks": 2, "size": 8, "edit": None},
]


def study(**changes: Any) -> Study:
    stops = ["completed", "completed", "pruned", "failed:nan", "running"]
    found = memory_study(POINTS, [0.7, 0.8, 0.5, np.nan, np.nan], PARAMS, stops, seeds=[0, 0, 0, 1, 0])
    rows = [("r0", "stsb_dev", 500, 0.6), ("r0", "stsb_dev", 1000, 0.7), ("r2", "stsb_dev", 500, 0.5)]
    store = MemoryStore({"params": PARAMS}, rows)
    vars(found)["stored"] = run("memory", study_id="memory-1", **changes)
    vars(found)["store"] = store
    return found


def test_trials_as_optuna_has_them() -> None:
    made = optuna_study(study())
    assert made.direction == optuna.study.StudyDirection.MAXIMIZE
    assert [t.state for t in made.trials] == [
        TrialState.COMPLETE, TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING,
    ]  # fmt: skip
    first, second, third, *_ = made.trials
    assert first.params == {"rate": 0.1, "marks": 3, "size": 16, "edit": "modal"}
    assert second.params == {"rate": 1e-4, "marks": 1, "size": 8}  # no edit under size 8
    assert first.distributions == {
        "rate": FloatDistribution(1e-5, 0.1, log=True),  # widened to what was run
        "marks": IntDistribution(1, 7),
        "size": CategoricalDistribution((8, 16)),
        "edit": CategoricalDistribution(("modal", "none")),
    }
    assert (first.value, third.value) == (0.7, 0.5)
    assert first.intermediate_values == {500: 0.6, 1000: 0.7}
    assert first.user_attrs == {
        "trial": "t0000", "point": str(sorted(POINTS[0].items(), key=str)), "stage": "search", "stop": "completed",
        "seed": 0, "baseline": True, "run_id": "r0",
    }  # fmt: skip
    assert made.best_trial.number == 1
    assert set(optuna.importance.get_param_importances(made, params=["rate", "marks"])) == {"rate", "marks"}


def test_storage_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(InputError, match="nonsense: "):
        optuna_study(study(), "nonsense")


@pytest.fixture
def stored(tmp_path: Path) -> SmallStore:
    store = SmallStore(tmp_path / "runs")
    made = store.study("small-1", copy.deepcopy(SPACE))
    for i in range(5):
        point = {"learning_rate": 10.0 ** (i - 6), "batch_size": 8 * (1 + i % 2), "max_marks": i % 4, "alphabet": None}
        store.trial(made, "small-1", f"t{i:04}", point, [0.2, 0.3, 0.3 + i / 10], "pruned" if i == 1 else "completed")
    return store


def copied(store: SmallStore, target: str, *more: str) -> Result:
    return CliRunner().invoke(main, ["optuna", "small-1", "--from", str(store.folder), "--storage", target, *more])


def test_command_writes_what_optuna_loads(stored: SmallStore, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path / 'optuna.db'}"
    done = copied(stored, target)
    assert (done.exit_code, done.stdout) == (
        0, f"small-1: 5 trials written; optuna-dashboard {target} shows them\n",
    )  # fmt: skip
    loaded = optuna.load_study(study_name="small-1", storage=target)
    assert loaded.best_value == pytest.approx(0.7)
    assert loaded.best_params == {"learning_rate": 1e-2, "batch_size": 8, "max_marks": 0}
    assert loaded.trials[0].datetime_start is not None
    assert list(loaded.trials[1].intermediate_values) == [500, 1000, 2000]
    optuna.visualization.plot_optimization_history(loaded)
    again = copied(stored, target)
    assert again.exit_code == 2
    assert again.stderr == f"analysis: {target}: a study small-1 is there already\n"


def test_dashboard_shows_it(stored: SmallStore, tmp_path: Path) -> None:
    dashboard = pytest.importorskip("optuna_dashboard")
    target = f"sqlite:///{tmp_path / 'optuna.db'}"
    assert copied(stored, target).exit_code == 0
    app = dashboard.wsgi(optuna.storages.RDBStorage(target))
    status: list[str] = []
    environ: dict[str, Any] = {"PATH_INFO": "/api/studies"}
    setup_testing_defaults(environ)
    body = b"".join(app(environ, lambda line, *_: status.append(line)))
    assert status == ["200 OK"]
    assert b'"small-1"' in body
